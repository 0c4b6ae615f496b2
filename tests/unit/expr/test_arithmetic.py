"""What grids and heuristics do with integers beside + - * // %, as expressions: it gives what Python gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aot_tune.spec import Expr, dims, trace
from aot_tune.support.errors import SpecError

N, B = dims("N B")

IDIOMS: dict[str, Callable[[Any, Any], Any]] = {
    "rounded up by negatives": lambda n, b: -(-n // b),
    "rounded up by a quotient": lambda n, b: math.ceil(n / b),
    "rounded up by a constant": lambda n, _: math.ceil(n / 48) + math.ceil(n),
    "rounded down": lambda n, b: math.floor(n / b) + (n / b) // 2,
    "what is missing to a block": lambda n, b: -n % b + (-n % 64),
    "shifted": lambda n, b: (n << 3) + (b >> 2) + +n,
    "a power of two above": lambda n, _: 1 << (n - 1).bit_length(),
    "another": lambda n, _: 2 ** (n.bit_length() + 1) + (1 << (n.bit_length() - 1)),
    "waves": lambda n, b: 64 if n * 3 / 132 > 1 and (n + 1) / b <= 2.5 else 32,
    "half of each other": lambda n, b: 1 if n / b - b / n >= 0.5 else 2 if 1 / n == 1 / b else 3,
    "a quotient of sums": lambda n, b: math.ceil((n / b + 2) * 3 / 2) - math.ceil(1 - 1 / b),
}


OF_BITS = ("shifted", "a power of two above", "another")


@pytest.mark.parametrize("name", IDIOMS)
@settings(max_examples=30)
@given(st.integers(1, 5000), st.integers(1, 300))
@example(380, 57)  # (n / b + 2) * 3 / 2 is 13; of floats it is 13.000000000000002
def test_an_idiom_gives_what_it_gives_for_numbers(name: str, n: int, b: int) -> None:
    traced = trace(lambda: IDIOMS[name](N, B), name)
    exact = (n, b) if name in OF_BITS else (Fraction(n), Fraction(b))
    assert traced.evaluate({"N": n, "B": b}) == IDIOMS[name](*exact)


def test_a_doubling_loop_ends() -> None:
    """After `n <= 4096`, `8192 <= n` is no question."""

    def block(rows: Any, n: Any) -> Any:
        size, most = 1, min(n, 4096)
        while size <= most:
            if rows * ((n + size - 1) // size) / 132 > 1 and size * 2 <= most:
                size *= 2
            else:
                break
        return size

    traced = trace(lambda: block(B, N), "it")
    for rows, n in ((1, 1), (1, 100), (7, 5000), (4096, 3), (4096, 100_000)):
        assert traced.evaluate({"B": rows, "N": n}) == block(rows, n)


def test_what_is_no_integer_says_so() -> None:
    with pytest.raises(SpecError, match=r"an extent cannot be \(N / 2\)(.|\n)*math\.ceil"):
        as_extent(N / 2)
    for value in (N, N / 2):
        with pytest.raises(SpecError, match=r"int\(.*N.*\) is not a number here(.|\n)*// or math\.ceil"):
            int(value)
    with pytest.raises(TypeError, match="unsupported operand"):
        N / "2"
    with pytest.raises(TypeError):
        3 ** N.bit_length()
    assert repr(N.bit_length() - 1) == "the exponent of next_power_of_2((N + 1)) -1"


def as_extent(value: Any) -> Expr:
    from aot_tune.expr.integers import as_expr

    return as_expr(value, "an extent")
