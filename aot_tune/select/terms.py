"""What a variant's time is expected from: small integers that describe a call, and a variant's tiles on it.

Analytical models of GPU kernels consist of blocks, waves, how full waves are, and steps. Terms are integers, made of
quantities, which are doubles. numpy and C++ for x86-64 round sums, products and quotients of doubles alike. So what is
learned from terms, and what is expected from them, is the same everywhere, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot_tune.expr.columns import Calls
from aot_tune.expr.nodes import OPERATORS, ExprNode, printed
from aot_tune.spec import Expr, Operator, Tiling, attribute, dim, present, stride
from aot_tune.spec.dtypes import dtype

UNIT = 256
"""The 1 of a term: logarithms are in 1/256 of a factor of two."""

_LATENCIES = (20, 22, 24)
"""log2 of the bytes that a device moves in about the time of a launch. Near them, times stop being proportional."""
_PROLOGUE = 4
"""Extra steps of a block, to fill and drain its pipeline."""
_RIDGE = 256
"""FLOPs per byte at which devices are about equally busy with both."""
_KNEES = (0.5, 2.0)
"""About how many bytes are moved in the time of one multiplication in a tile of each processor."""
_FEW = 8
"""Up to this many tiles along a dim are distinguished. Calls that fit into one or a few may differ much from others."""
_COMMON = (128, 32)
"""Rows and columns of the tiles assumed for a product whose tile is unknown: what vendors' libraries use most, and a
small one."""
_COMMON_STEP = 64
_MOST_CHOICES = 8
_MOST_PRODUCTS = 4

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **OPERATORS,
    "max": lambda left, right: np.where(left > right, left, right),
    "min": lambda left, right: np.where(left < right, left, right),
    "up": np.ceil,
}
_CPP = {"max": "({0} > {1} ? {0} : {1})", "min": "({0} < {1} ? {0} : {1})", "up": "up({})"}


class Quantity(ExprNode):
    """A double of a call: a number, an `integer` (an expression of facts), or an operation.

    Operations are + - * / and `max`, `min`, `up` (rounded up to an integer).
    """

    __slots__ = ()

    @classmethod
    def wrapped(cls, value: Any) -> Quantity:
        """A number or an expression. Its sums and products are doubles, which cannot overflow; the rest is integers."""
        if isinstance(value, Quantity):
            return value
        if not isinstance(value, Expr):
            return cls("const", value=float(value))
        if value.op == "const":
            return cls("const", value=float(value.value))
        return cls.made(value.op, *value.args) if value.op in ("+", "*", "-") else cls("integer", value=value)

    def values(self, calls: Calls) -> NDArray[np.float64]:
        """The value for each call."""
        if self.op == "const":
            return np.full(len(calls), self.value)
        if self.op == "integer":
            return calls.values(self.value).astype(np.float64)
        result: NDArray[np.float64] = _FUNCTIONS[self.op](*(a.values(calls) for a in self.args))
        return result

    def cpp(self, fact: Callable[[str], str]) -> str:
        """The quantity as C++. `fact` prints a fact, and `up` must be declared."""
        return printed(self, lambda leaf: leaf._leaf(fact), _CPP)

    def _leaf(self, fact: Callable[[str], str]) -> str:
        return f"{self.value!r}" if self.op == "const" else f"static_cast<double>({self.value.cpp(fact)})"


def _rounded_up(value: Quantity) -> Quantity:
    return Quantity.made("up", value)


def _lesser(left: Quantity, right: float) -> Quantity:
    return Quantity.made("min", left, right)


class Term:
    """An integer of a call: the `log` of a quantity of at least 1, a `ratio`, a `number`, or a `product` of two terms.

    A product multiplies the terms with the numbers `pair` in its list.
    """

    __slots__ = ("kind", "pair", "quantity")

    def __init__(self, kind: str, quantity: Quantity | Expr | None = None, pair: tuple[int, int] = (0, 0)) -> None:
        self.kind, self.pair = kind, pair
        self.quantity = None if quantity is None else Quantity.wrapped(quantity)

    def values(self, calls: Calls, before: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """The value for each call. `before` are the terms in front of it."""
        if self.quantity is None:
            product: NDArray[np.int64] = before[self.pair[0]] * before[self.pair[1]] >> 11
            return product
        quantity = self.quantity.values(calls)
        if self.kind == "log":
            return log2_of(quantity)
        rounded: NDArray[np.int64] = (quantity * UNIT + 0.5).astype(np.int64)
        return rounded


class Terms:
    """The terms of a variant. The first `shared` ones are common to all variants of the operator.

    The terms of variants with the same `form` mean the same. Times are not learned from `needless` terms: those of the
    common tiles, if the variant's own tile is known.
    """

    def __init__(
        self, terms: Sequence[Term], shared: int, form: Sequence[str] = (), needless: Sequence[int] = ()
    ) -> None:
        self.terms, self.shared, self.form, self.needless = tuple(terms), shared, tuple(form), tuple(needless)


def log2_of(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """log2 in 1/256 of values of at least 1, from the bits: the exponent, and a parabola through an octave's ends."""
    bits: NDArray[np.int64] = np.where(values < 1.0, 1.0, values).view(np.int64) >> 44
    fraction = bits & 255
    logs: NDArray[np.int64] = bits - (1023 << 8) + ((fraction * (256 - fraction) * 88) >> 16)
    return logs


def terms_of(operator: Operator, tilings: Mapping[str, Tiling | None], processors: int) -> dict[str, Terms]:
    """The terms of variants, with their tiles if known, on a device of so many multiprocessors (or cores)."""
    shared = _shared(operator)
    plain = len(shared)
    for side in _COMMON:
        common = _common_tile(operator, side)
        if common is not None:
            shared += _of_tiles(operator, common, processors)
    return {name: _with_tile(operator, shared, plain, tiling, processors) for name, tiling in tilings.items()}


def _with_tile(operator: Operator, shared: Sequence[Term], plain: int, tiling: Tiling | None, processors: int) -> Terms:
    if tiling is None:
        return Terms(shared, len(shared))
    form = [f"{d} in one" if e == 1 else d for d, e in tiling.extents.items()]
    terms = [*shared, *_of_tiles(operator, tiling, processors)]
    return Terms(terms, len(shared), form, range(plain, len(shared)))


def columns_of(terms: Terms, calls: Calls) -> NDArray[np.int64]:
    """The terms of calls [call, term]."""
    columns: list[NDArray[np.int64]] = []
    for term in terms.terms:
        columns.append(calls.once(term, partial(term.values, calls, columns)))
    columns_by_term: NDArray[np.int64] = np.array(columns, dtype=np.int64).reshape(len(terms.terms), len(calls))
    transposed: NDArray[np.int64] = columns_by_term.transpose()
    return transposed


def _shared(operator: Operator) -> list[Term]:
    """The terms of a call that do not depend on the variant."""
    logs = [Term("log", dim(d)) for d in operator.dims]
    moved = _bytes(operator)
    terms = [*logs, Term("log", moved)]
    terms += [Term("log", moved + 2.0**latency) for latency in _LATENCIES]
    if operator.flops is not None:
        done = Quantity.wrapped(operator.flops)
        terms += [Term("log", done), Term("log", moved + done / _RIDGE + 2.0 ** _LATENCIES[1])]
    terms += [Term("number", _twos(d)) for d in operator.dims]
    flags = [present(t.name) for t in operator.tensors if t.optional]
    for declared in operator.attributes:
        flags += [attribute(declared.name) == i for i in range(1, min(len(declared.choices), _MOST_CHOICES))]
    for tensor in operator.tensors:
        flags += [stride(tensor.name, axis) == 1 for axis in range(tensor.rank - 1)]
    terms += [Term("number", flag) for flag in flags]
    if len(logs) <= _MOST_PRODUCTS:
        terms += [Term("product", pair=p) for p in combinations_with_replacement(range(len(logs)), 2)]
    return terms


def _common_tile(operator: Operator, side: int) -> Tiling | None:
    """A product's tile of so many rows and columns; None if it sums along no dim, or its result has no two."""
    of_outputs = {f for t in operator.outputs for s in t.shape for f in s.facts()}
    needed = [{f for s in t.shape for f in s.facts()} for t in operator.tensors if not t.optional]
    apart = [d for d in operator.dims if d in of_outputs and all(d in dims for dims in needed)]  # such as a batch dim
    across = [d for d in operator.dims if d in of_outputs and d not in apart]
    along = [d for d in operator.dims if d not in of_outputs]
    if len(across) != 2 or not along:
        return None
    steps = {d: _COMMON_STEP if d == along[-1] else 1 for d in along}
    return Tiling(dict.fromkeys(apart, 1) | dict.fromkeys(across, side) | steps)


def _of_tiles(operator: Operator, tiling: Tiling, processors: int) -> list[Term]:
    """The terms that follow from a variant's tile."""
    of_outputs = {f for t in operator.outputs for s in t.shape for f in s.facts()}
    across = {d: e for d, e in tiling.extents.items() if d in of_outputs}
    tiles = {d: _rounded_up(Quantity.wrapped(dim(d)) / e) for d, e in across.items()}
    blocks, volume, steps = Quantity.wrapped(tiling.split), 1.0, Quantity.wrapped(1)
    for name, count in tiles.items():
        cluster = tiling.cluster.get(name, 1)
        blocks = blocks * (_rounded_up(count / cluster) * cluster if cluster > 1 else count)
    for name, extent in tiling.extents.items():
        volume *= extent
        if name not in of_outputs:
            steps = steps * _rounded_up(Quantity.wrapped(dim(name)) / (extent * tiling.split))
    processors *= tiling.occupancy
    waves = _rounded_up(blocks / processors)
    work = waves * (steps + _PROLOGUE) * volume
    moved = _bytes(operator)
    terms = [Term("log", blocks), Term("log", waves), Term("ratio", blocks / (waves * processors))]
    terms += [Term("log", steps), Term("log", work)]
    terms += [Term("ratio", Quantity.wrapped(dim(d)) / (tiles[d] * e)) for d, e in across.items() if e > 1]
    terms += [Term("number", _lesser(tiles[d], _FEW)) for d, e in across.items() if e > 1]
    terms += [Term("log", _lesser(blocks, processors)), Term("ratio", 1 / waves)]
    terms += [Term("log", work * knee + moved + 2.0 ** _LATENCIES[1]) for knee in _KNEES]
    terms += [Term("log", Quantity.made("max", work, moved)), Term("log", waves * steps)]
    return terms


def _bytes(operator: Operator) -> Quantity:
    """Bytes of a call's tensors. A varying dtype counts as its first choice: each variant has its own dtypes."""
    total = Quantity.wrapped(0)
    for tensor in operator.tensors:
        name = operator.dtypes.get(tensor.dtype_name, (tensor.dtype_name,))[0]
        size = Quantity.wrapped(dtype(name).bits / 8)
        for extent in tensor.shape:
            size = size * extent
        if tensor.optional:
            size = size * present(tensor.name)
        total = total + size
    return total


def _twos(name: str) -> Quantity:
    """How often 2 divides a dim, up to six times."""
    total = Quantity.wrapped(0)
    for power in range(1, 7):
        total = total + (dim(name) % 2**power == 0)
    return total
