"""Functions on call facts become expressions that give what the functions give."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot_tune.spec import dims, trace
from aot_tune.support.errors import SpecError

M, N = dims("M N")


def grid_of(m: Any, n: Any) -> Any:
    """As in packages: conditions, builtin min and max, chained comparisons."""
    block = 128 if n > 1000 else 64
    if 16 < m <= 64:
        block = block // 2
    return (min(m, 4096) * ((n + block - 1) // block), max(m % 7, 1))


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_a_traced_function_gives_what_the_function_gives(m: int, n: int) -> None:
    traced = trace(lambda: grid_of(M, N), "grid")
    assert tuple(e.evaluate({"M": m, "N": n}) for e in traced) == grid_of(m, n)


def test_outside_of_a_trace_a_condition_is_an_error() -> None:
    trace(lambda: M if M > 3 else N, "it")
    with pytest.raises(SpecError, match="used as a Python condition"):
        bool(M > 3)


def test_values_that_are_no_integers_must_not_depend_on_the_path() -> None:
    assert trace(lambda: "odd" if M > N or N > 0 or N == 0 else "odd", "it") == "odd"  # noqa: RUF034
    with pytest.raises(SpecError, match=r"heuristic X gives 'a' or 'b', depending on \(M > 1\)"):
        trace(lambda: "a" if M > 1 else "b", "heuristic X")


def test_too_many_paths_are_an_error() -> None:
    def function() -> int:
        return sum(1 for i in range(2, 9) if M % i == 0)

    with pytest.raises(SpecError, match="more than 64 paths"):
        trace(function, "it")


def test_a_function_that_keeps_something_between_runs_is_an_error() -> None:
    seen: list[bool] = []

    def function() -> int:
        if not seen:
            seen.append(bool(M > 3))
        return int(seen[0])

    with pytest.raises(SpecError, match="it decides differently when it runs again"):
        trace(function, "it")


def test_a_loop_until_a_condition_of_the_call_ends() -> None:
    def function() -> int:
        block = 1
        while block < M:
            block *= 2
        return block

    with pytest.raises(SpecError, match="it has more than 64 paths"):
        trace(function, "it")


@pytest.mark.parametrize("keys", [{1, 2}, {1: 2, 2: 3}])
def test_an_expression_is_no_key(keys: Any) -> None:
    """Its hash is another one than the number's: it would never be found."""
    with pytest.raises(SpecError, match=r"M was looked up in a set, a dict or a cache"):
        trace(lambda: 1 if M in keys else 0, "it")
    assert len({M, N, M}) == 2, "outside of a trace it may be one"


@pytest.mark.parametrize(
    "function", [lambda: (M + 63) & ~63, lambda: M | 1, lambda: 3 if M & 15 else 4, lambda: (1, (M > 2) & N)]
)
def test_operators_for_bits_are_refused(function: Any) -> None:
    with pytest.raises(SpecError, match=r"it has .*, where .* is a number"):
        trace(function, "it")
    assert trace(lambda: (M > 2) & (N > 2), "it").key() == "((M > 2) and (N > 2))"
