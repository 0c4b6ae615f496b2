"""How input values are drawn for tests, so that an operator is defined on them: in range, sorted, summing to 1.

They depend only on the seed, the operator's name, the problem and the tensor. Rules about rows, along the last axis,
hold for each row by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import FunctionType
from typing import Any, Literal

from aot_tune.expr.integer_expressions import Expr, ExprLike, as_expr
from aot_tune.spec.dtypes import DType
from aot_tune.spec.names import check_among
from aot_tune.spec.targets import refuse_device_facts
from aot_tune.support.errors import SpecError

__all__ = [
    "OF_VALUES",
    "ROWWISE",
    "Drawn",
    "FromFile",
    "Generator",
    "IntegerSums",
    "Integers",
    "Permutation",
    "Probabilities",
    "SortedOffsets",
    "Sparse",
    "Values",
    "check_values",
    "drawn",
    "from_file",
    "integers",
    "largest_integer",
    "normal",
    "permutation",
    "probabilities",
    "sorted_offsets",
    "sparse",
    "uniform",
]

OF_VALUES = "values of the input"
"""How messages about errors in such a function begin."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """A function whose result, an array of the tensor's shape, gives the values; see `drawn`."""

    function: Callable[[Any, Any], Any]
    reads: tuple[str, ...] | None = None

    @property
    def file(self) -> str:
        """The file of the function."""
        return str(inspect.unwrap(self.function).__code__.co_filename)

    @property
    def place(self) -> str:
        """The function's name, with the file and line where it begins."""
        function = inspect.unwrap(self.function)
        return f"{function.__qualname__} ({self.file}:{function.__code__.co_firstlineno})"


def drawn(function: Callable[[Any, Any], Any], *, reads: Sequence[str] | None = None) -> Drawn:
    """Values by `function(rng, call)`. All of its randomness must come from `rng`, a `numpy.random.Generator`.

    `call` has the dims by name, the tensor's own `shape`, and scalars and attributes as a reference gets them. It also
    has the arrays of inputs that are declared before the tensor. They are read-only, and None if absent. `reads` names
    those that it may read, all of them by default.
    """
    if not isinstance(inspect.unwrap(function) if callable(function) else None, FunctionType):
        raise SpecError(f"drawn({str(function)[:60]!r}) is not a function", fix="write def lengths(rng, call): ...")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise SpecError(
            f"drawn: {Drawn(function).place} cannot be called with (rng, call): {error}",
            fix="write def lengths(rng, call): ...",
        ) from None
    return Drawn(function, None if reads is None else tuple(reads))


@dataclass(frozen=True)
class Generator:
    """How input values are drawn: `normal` with standard deviation `high`, or `uniform` in [low, high)."""

    kind: Literal["normal", "uniform"]
    low: float
    high: float

    @property
    def signs(self) -> tuple[float, ...]:
        """The signs of the values next to 0 that are drawn. Empty if 0 is not in the range."""
        if self.kind == "normal" or self.low < 0 < self.high:
            return (1.0, -1.0)
        return (1.0,) if self.low == 0 else ()


@dataclass(frozen=True, eq=False)
class Integers:
    """Integers drawn evenly from [low, high). Both bounds are expressions of dims."""

    low: Expr
    high: Expr


@dataclass(frozen=True, eq=False)
class Permutation:
    """Each row is a permutation of 0 to its length - 1."""


@dataclass(frozen=True, eq=False)
class SortedOffsets:
    """Each row begins with 0, ends with `total` (an expression of dims) and never decreases."""

    total: Expr


@dataclass(frozen=True, eq=False)
class Probabilities:
    """No element is negative, and each row sums to 1, except for the rounding of its elements."""


@dataclass(frozen=True, eq=False)
class Sparse:
    """`values` draws a share `density` of the elements. The others are 0."""

    density: float
    values: Generator | Integers


@dataclass(frozen=True, eq=False)
class FromFile:
    """The elements of a .npy file in row-major order, repeated as often as needed.

    `path` is below the operator's folder. `digest` is the file's SHA-256, known once the operator is loaded.
    """

    path: str
    digest: str = ""


Values = Generator | Integers | Permutation | SortedOffsets | Probabilities | Sparse | FromFile | Drawn

ROWWISE = (Permutation, SortedOffsets, Probabilities)
"""Generators that draw whole rows. The elements of a row must be distinct places, so a stride must not be 0."""


@dataclass(frozen=True, eq=False)
class IntegerSums:
    """Declares that an operator computes sums of products. On small integers these are exact in any order of summation.

    Candidates are then also verified on small integers, and must be right to the last bit: rounding cannot hide a term
    that is left out or counted twice. Every input with `normal` or `uniform` values gets integers other than 0. They
    are so small that the sum of all absolute terms is exact in the outputs' dtypes (at most 256 in bf16, 2048 in f16).
    If there are too many terms for that, they are thinned out in `thinned`, an input that is a factor of each product.
    Its elements are 0 unless the sum of their indices, counted from the end of each axis, is a multiple of some number.

    Args:
        terms: the number of products that are summed in one element: an expression of dims such as `K`.
        factors: how many inputs have an element in each product: 2 for two matrices, 4 if each has a scale.
        thinned: the name of the input described above.
        requires: conditions on a call under which all this holds, such as `attribute("activation") == 0`.
    """

    terms: Expr
    thinned: str
    requires: tuple[Expr, ...] = ()
    factors: int = 2

    def __post_init__(self) -> None:
        if type(self.factors) is not int or self.factors < 1:
            raise SpecError(f"IntegerSums: factors {self.factors!r} is not a number of inputs", fix="write factors=2")
        object.__setattr__(self, "terms", as_expr(self.terms, "IntegerSums: terms"))


def normal(std: float = 1.0) -> Generator:
    """Values of a normal distribution around 0 with standard deviation `std`."""
    return Generator("normal", 0.0, std)


def uniform(low: float, high: float) -> Generator:
    """Values drawn evenly from [low, high)."""
    if not low < high:
        raise SpecError(f"uniform({low}, {high}) is empty", fix="give low < high")
    return Generator("uniform", low, high)


def integers(low: ExprLike, high: ExprLike) -> Integers:
    """Integers drawn evenly from [low, high), for any dtype. Bounds may depend on dims: `integers(0, V)`."""
    bounds = Integers(as_expr(low, "integers: low"), as_expr(high, "integers: high"))
    if not bounds.low.facts() and not bounds.high.facts() and not bounds.low.evaluate({}) < bounds.high.evaluate({}):
        raise SpecError(f"integers({low}, {high}) is empty", why="high is not drawn", fix="give low < high")
    return bounds


def permutation() -> Permutation:
    """Each row (the last axis) is a permutation of 0 to its length - 1."""
    return Permutation()


def sorted_offsets(total: ExprLike) -> SortedOffsets:
    """Offsets of segments, such as `cu_seqlens`: each row begins with 0, ends with `total` and never decreases.

    If there are many segments, some are empty. A row of one element is 0.
    """
    offsets = SortedOffsets(as_expr(total, "sorted_offsets: total"))
    if not offsets.total.facts() and offsets.total.evaluate({}) < 0:
        raise SpecError(f"sorted_offsets({total}) ends below 0, where it begins", fix="give the length of all segments")
    return offsets


def probabilities() -> Probabilities:
    """No element is negative, and each row (the last axis) sums to 1, except for rounding."""
    return Probabilities()


def sparse(density: float, values: Generator | Integers | None = None) -> Sparse:
    """`values` (by default `normal()`, True for bool) draws a share `density` of the elements. The others are 0.

    This is the share in a large tensor. A small one may have more or fewer.
    """
    if isinstance(density, bool) or not isinstance(density, (int, float)) or not 0 < density <= 1:
        raise SpecError(f"sparse: density {density!r} is not a share", fix="give a number above 0, at most 1")
    if values is not None and not isinstance(values, (Generator, Integers)):
        raise SpecError(
            f"sparse: values cannot be {type(values).__name__}",
            why="elements that are set to 0 would break its promise about rows",
            fix="use normal, uniform or integers",
        )
    return Sparse(float(density), values or normal())


def from_file(path: str) -> FromFile:
    """The elements of a .npy file below the operator's folder in row-major order, repeated as often as needed."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or pure.suffix != ".npy":
        raise SpecError(
            f"from_file({path!r}) names no .npy file below the operator's folder",
            why="a library is built from its own folders, on any machine",
            fix="save the values by numpy.save beside operator.py",
        )
    return FromFile(str(pure))


def largest_integer(dtype: DType) -> int:
    """The number up to which a dtype holds all integers from 0."""
    return int(2 ** (dtype.fraction + 1)) if dtype.is_floating else dtype.limits[1]


def check_values(values: Values, dtype: DType, dims: Collection[str], where: str) -> None:
    """Check that a dtype can hold the drawn values, and that bounds depend only on dims.

    Raises:
        SpecError: a message that begins with `where`.
    """
    for expr in _expressions(values):
        refuse_device_facts(expr.facts(), where)
        for fact in sorted(expr.facts()):
            check_among(
                fact,
                dims,
                f"{where}: {expr.key()} uses {fact!r}, which is not a dim",
                why="values are drawn before there is a call",
            )
    if isinstance(values, (Permutation, SortedOffsets)) and dtype.code not in (0, 1):
        raise SpecError(f"{where}: {dtype.name} does not count", why="these are indices", fix="use i32 or i64")
    if isinstance(values, Probabilities) and not dtype.is_floating:
        raise SpecError(f"{where}: {dtype.name} has no fractions", why="probabilities sum to 1", fix="use f32")
    if isinstance(values, Sparse):
        check_values(values.values, dtype, dims, where)
    most = largest_integer(dtype)
    least = {1: 0, 6: 0, 0: -most - 1}.get(dtype.code, -most)
    bounds = [(values.low, 0), (values.high, 1)] if isinstance(values, Integers) else []
    bounds += [(values.total, 0)] if isinstance(values, SortedOffsets) else []
    if isinstance(values, Generator) and values.kind == "uniform" and not dtype.is_floating and dtype.name != "bool":
        bounds += [(Expr("const", value=int(values.low)), 0), (Expr("const", value=int(values.high)), 1)]
    for expr, beyond in bounds:
        if not expr.facts() and not least <= expr.evaluate({}) - beyond <= most:
            raise SpecError(
                f"{where}: {expr.key()} is out of the range of {dtype.name}",
                why=f"it holds all integers from {least} to {most}",
                fix="use a wider dtype, or other bounds",
            )


def _expressions(values: Values) -> Iterator[Expr]:
    if isinstance(values, Integers):
        yield from (values.low, values.high)
    elif isinstance(values, SortedOffsets):
        yield values.total
    elif isinstance(values, Sparse):
        yield from _expressions(values.values)
