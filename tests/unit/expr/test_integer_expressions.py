"""Functions of a call's facts become expressions, which give what the functions give: also grids and heuristics."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aot_tune.expr.integer_expressions import as_expr
from aot_tune.spec import Expr, ceildiv, dims, maximum, minimum, next_power_of_2, trace, where
from aot_tune.support.errors import SpecError

M, N, B = dims("M N B")


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


def test_what_is_no_integer_says_so() -> None:
    with pytest.raises(SpecError, match=r"an extent cannot be \(N / 2\)(.|\n)*math\.ceil"):
        as_expr(N / 2, "an extent")  # type: ignore[arg-type]
    for value in (N, N / 2):
        with pytest.raises(SpecError, match=r"int\(.*N.*\) is not a number here(.|\n)*// or math\.ceil"):
            int(value)
    with pytest.raises(TypeError, match="unsupported operand"):
        N / "2"
    with pytest.raises(TypeError):
        3 ** N.bit_length()
    assert repr(N.bit_length() - 1) == "the exponent of next_power_of_2((N + 1)) -1"


def test_a_condition_on_constants_is_decided_at_once() -> None:
    runs = []

    def function() -> Expr | int:
        runs.append(1)
        return M if Expr("const", value=3) > 2 else N

    assert trace(function, "it").key() == "M"
    assert len(runs) == 1


def test_outside_of_a_trace_a_condition_is_an_error() -> None:
    trace(lambda: M if M > 3 else N, "it")
    with pytest.raises(SpecError, match="used as a Python condition"):
        bool(M > 3)


def test_values_that_are_no_integers_must_not_depend_on_the_path() -> None:
    assert trace(lambda: "odd" if M > N or N > 0 or N == 0 else "odd", "it") == "odd"  # noqa: RUF034
    with pytest.raises(SpecError, match=r"heuristic X gives 'a' or 'b', depending on \(M > 1\)"):
        trace(lambda: "a" if M > 1 else "b", "heuristic X")


@pytest.mark.parametrize("n", [0, 3, 5, 7, 9])
def test_a_comparison_that_follows_from_those_before_it_is_decided_at_once(n: int) -> None:
    asked = []

    def function(m: Any) -> int:
        asked.append(1)
        if m == 5 or not 3 <= m <= 7:
            return 1 if m == 5 and m > 4 and m != 6 else 2 if m < 8 else 4
        return 8 if m > 2 and m != 9 and not (8 <= m) else 16  # noqa: SIM300

    traced = trace(lambda: function(M), "it")
    paths = ("5", "below 3", "above 7", "else")
    assert len(asked) == 2 * len(paths) - 1, "a run for each of them, and for each of the three decisions"
    assert traced.evaluate({"M": n}) == function(n)


EXPRESSIONS = st.recursive(
    st.sampled_from([M, N]) | st.integers(1, 99).map(lambda v: Expr("const", value=v)),
    lambda e: (
        st.tuples(e, e).map(lambda p: p[0] + p[1])
        | st.tuples(e, e).map(lambda p: ceildiv(p[0], maximum(p[1], 1)))
        | st.tuples(e, e).map(lambda p: minimum(p[0], p[1]))
        | st.tuples(e, e, e).map(lambda p: where(p[0] > p[1], p[2], p[0]))
        | e.map(next_power_of_2)
    ),
    max_leaves=8,
)


@given(EXPRESSIONS, st.integers(0, 300), st.integers(0, 300))
def test_data_substitution_and_evaluation_agree(expression: Expr, m: int, n: int) -> None:
    facts = {"M": m, "N": n}
    value = expression.evaluate(facts)
    again = Expr.of(expression.data())
    assert again.key() == expression.key()
    assert again.evaluate(facts) == value
    assert expression.substitute({"M": m}).evaluate({"N": n}) == value
    assert expression.substitute(facts).key() == str(value)


@pytest.mark.parametrize(
    "data", [[], ["fact"], ["fact", 3], ["const", "x"], ["+", ["const", 1]], ["eval", "1"], "M", None]
)
def test_other_data_is_refused(data: object) -> None:
    with pytest.raises(SpecError, match="is not an expression"):
        Expr.of(data)


def test_where_evaluates_one_branch_only() -> None:
    assert where(N > 0, M // N, 0).evaluate({"M": 4, "N": 0}) == 0


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


def test_an_expression_never_changes() -> None:
    product = M * N + 1
    for name in ("op", "args", "value"):
        with pytest.raises(AttributeError, match=f"never changes.*{name}"):
            setattr(product, name, getattr(product, name))
