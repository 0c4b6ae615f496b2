"""The functions that formulas are written with: `from aot_tune.spec import elementwise as el`.

    x = el.value()
    Epilogue("out", x * el.sigmoid(x) + el.element("bias", 1) * el.scalar("alpha"))

Values are floats (f32 in kernels), integers or booleans. An integer beside a float becomes a float. Functions are
defined everywhere. An element outside of a tensor, or of an absent tensor, is 0. A quotient of integers by 0 is 0.
`minimum`, `maximum` and all activations pass NaN on. At -inf, activations have their mathematical limits.
"""

from __future__ import annotations

from aot_tune.expr.formulas import Formula, FormulaLike, as_formula

__all__ = [
    "absolute",
    "attribute",
    "cast",
    "choice",
    "dim",
    "element",
    "erf",
    "exp",
    "floor",
    "gelu",
    "gelu_tanh",
    "index",
    "log",
    "maximum",
    "minimum",
    "present",
    "relu",
    "rsqrt",
    "scalar",
    "sigmoid",
    "silu",
    "sqrt",
    "tanh",
    "value",
    "where",
]


def value() -> Formula:
    """The value that was computed for the element: a float."""
    return Formula("value")


def index(of: int | str) -> Formula:
    """The element's index along an axis of the output, or a fragment's index of that name."""
    return Formula("index", value=of)


def element(tensor: str, *places: FormulaLike | str) -> Formula:
    """An element of an input, with one place for each of its axes.

    A place is the number of the output's axis that gives the index. In a fragment it is the name of an index. It may
    also be any integer formula: `element("bias", 1)`, `element("table", index("q") - index("k") + 5)`.
    """
    return Formula("element", tuple(_place(p, tensor) for p in places), tensor)


def _place(place: FormulaLike | str, tensor: str) -> Formula:
    if isinstance(place, str) or (isinstance(place, int) and not isinstance(place, bool)):
        return Formula("axis", value=place)
    return as_formula(place, f"a place of element({tensor!r}, ...)")


def scalar(name: str) -> Formula:
    """A scalar of the operator."""
    return Formula("scalar", value=name)


def dim(name: str) -> Formula:
    """The extent of a dim: an integer."""
    return Formula("dim", value=name)


def attribute(name: str) -> Formula:
    """The index of an attribute's value among its choices: an integer."""
    return Formula("attribute", value=name)


def choice(name: str, value: str) -> Formula:
    """Whether an attribute has this value: `choice("activation", "relu")`."""
    return Formula("choice", value=f"{name}={value}")


def present(tensor: str) -> Formula:
    """Whether an optional tensor was passed."""
    return Formula("present", value=tensor)


def where(condition: FormulaLike, yes: FormulaLike, no: FormulaLike) -> Formula:
    """`yes` if the condition holds, else `no`."""
    return Formula("where", (as_formula(condition), as_formula(yes), as_formula(no)))


def minimum(left: FormulaLike, right: FormulaLike) -> Formula:
    """The lesser of two; NaN if one of them is NaN."""
    return Formula("min", (as_formula(left), as_formula(right)))


def maximum(left: FormulaLike, right: FormulaLike) -> Formula:
    """The greater of two; NaN if one of them is NaN."""
    return Formula("max", (as_formula(left), as_formula(right)))


def absolute(x: FormulaLike) -> Formula:
    """The absolute value; `abs(x)` is the same."""
    return Formula("abs", (as_formula(x),))


def cast(x: FormulaLike, dtype_name: str) -> Formula:
    """The number as a dtype holds it: rounded to the nearest f16 or bf16, as a float in f32, or as an integer in i32.

    Floats are rounded towards 0 to integers and limited to 32 bits. NaN becomes 0.
    """
    return Formula("cast", (as_formula(x),), dtype_name)


def floor(x: FormulaLike) -> Formula:
    """The largest whole number that is not above, as a float."""
    return Formula("floor", (as_formula(x),))


def exp(x: FormulaLike) -> Formula:
    """e to the power of x."""
    return Formula("exp", (as_formula(x),))


def log(x: FormulaLike) -> Formula:
    """The natural logarithm."""
    return Formula("log", (as_formula(x),))


def sqrt(x: FormulaLike) -> Formula:
    """The square root."""
    return Formula("sqrt", (as_formula(x),))


def rsqrt(x: FormulaLike) -> Formula:
    """1 over the square root."""
    return Formula("rsqrt", (as_formula(x),))


def tanh(x: FormulaLike) -> Formula:
    """The hyperbolic tangent."""
    return Formula("tanh", (as_formula(x),))


def erf(x: FormulaLike) -> Formula:
    """The error function."""
    return Formula("erf", (as_formula(x),))


def sigmoid(x: FormulaLike) -> Formula:
    """1 / (1 + exp(-x))."""
    return Formula("sigmoid", (as_formula(x),))


def relu(x: FormulaLike) -> Formula:
    """x, or 0 where x is below 0."""
    return Formula("relu", (as_formula(x),))


def gelu(x: FormulaLike) -> Formula:
    """GELU by the error function."""
    return Formula("gelu", (as_formula(x),))


def gelu_tanh(x: FormulaLike) -> Formula:
    """GELU by the hyperbolic tangent."""
    return Formula("gelu_tanh", (as_formula(x),))


def silu(x: FormulaLike) -> Formula:
    """x * sigmoid(x)."""
    return Formula("silu", (as_formula(x),))
