"""What formulas are written with: `from aot_tune.spec import elementwise as el`.

    x = el.value()
    Epilogue("out", x * el.sigmoid(x) + el.element("bias", 1) * el.scalar("alpha"))

Values are floats (f32 in kernels), integers or booleans; integers become floats beside floats. Functions are defined
everywhere: an element outside of a tensor, or of one that is absent, is 0; so is a quotient of integers by 0; NaN comes
through `minimum`, `maximum` and all activations, whose limits at -inf are the mathematical ones.
"""

from __future__ import annotations

from aot_tune.spec.formula import Formula, FormulaLike, as_formula

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
    """What was computed for the element: a float."""
    return Formula("value")


def index(of: int | str) -> Formula:
    """Where the element is: its index along an axis of the output, or the index that a fragment has of that name."""
    return Formula("index", value=of)


def element(tensor: str, *places: FormulaLike | str) -> Formula:
    """An element of an input, with a place for each of its axes.

    A place is the number of the output's axis whose index it is, in a fragment the name of an index, or any integer
    formula: `element("bias", 1)`, `element("table", index("q") - index("k") + 5)`.
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
    """The extent that a call binds to a dim: an integer."""
    return Formula("dim", value=name)


def attribute(name: str) -> Formula:
    """The index of an attribute's value among its choices: an integer."""
    return Formula("attribute", value=name)


def choice(name: str, value: str) -> Formula:
    """Whether an attribute has a value: `choice("activation", "relu")`."""
    return Formula("choice", value=f"{name}={value}")


def present(tensor: str) -> Formula:
    """Whether an optional tensor was passed."""
    return Formula("present", value=tensor)


def where(condition: FormulaLike, yes: FormulaLike, no: FormulaLike) -> Formula:
    """One of two values."""
    return Formula("where", (as_formula(condition), as_formula(yes), as_formula(no)))


def minimum(left: FormulaLike, right: FormulaLike) -> Formula:
    """The lesser of two; NaN where one of them is NaN."""
    return Formula("min", (as_formula(left), as_formula(right)))


def maximum(left: FormulaLike, right: FormulaLike) -> Formula:
    """The greater of two; NaN where one of them is NaN."""
    return Formula("max", (as_formula(left), as_formula(right)))


def absolute(x: FormulaLike) -> Formula:
    """Without its sign; `abs(x)` is the same."""
    return Formula("abs", (as_formula(x),))


def cast(x: FormulaLike, dtype_name: str) -> Formula:
    """The number as a dtype holds it: rounded to the nearest of f16 or bf16, a float in f32, an integer in i32.

    Floats become integers towards 0, and stay within those of 32 bits; NaN becomes 0.
    """
    return Formula("cast", (as_formula(x),), dtype_name)


def floor(x: FormulaLike) -> Formula:
    """The next whole number below, as a float."""
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
    """x, but 0 below 0."""
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
