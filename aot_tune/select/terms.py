"""What a variant's time is expected from: small integers that describe a call, and a variant's tiles on it.

Analytical models of GPU kernels consist of blocks, waves, how full waves are, and steps. All is in integers. So what is
learned from terms, and what is expected from them, is the same everywhere, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from aot_tune.expr.columns import Calls
from aot_tune.select.quantity import Quantity, constant, fact, greater, lesser, quantity_of, rounded_up
from aot_tune.spec import Expr, Operator, Tiling
from aot_tune.spec.dtypes import dtype

__all__ = ["UNIT", "Term", "Terms", "columns_of", "terms_of"]

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
_COMMON = 128
"""Rows and columns of the tile assumed for a product whose tile is unknown. Vendors' libraries use it most."""
_COMMON_STEP = 64
_MOST_CHOICES = 8
_MOST_PRODUCTS = 4


class Term:
    """An integer of a call: the `log` of a quantity of at least 1, a `ratio`, a `number`, or a `product` of two terms.

    A product multiplies the terms with the numbers `pair` in its list.
    """

    __slots__ = ("kind", "pair", "quantity")

    def __init__(self, kind: str, quantity: Quantity | None = None, pair: tuple[int, int] = (0, 0)) -> None:
        self.kind, self.quantity, self.pair = kind, quantity, pair

    def values(self, calls: Calls, before: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """The value for each call. `before` are the terms in front of it."""
        if self.quantity is None:
            product: NDArray[np.int64] = before[self.pair[0]] * before[self.pair[1]] >> 11
            return product
        quantity = self.quantity.values(calls)
        if self.kind == "log":
            return _log(quantity)
        found: NDArray[np.int64] = (quantity * UNIT + 0.5).astype(np.int64)
        return found


class Terms:
    """The terms of a variant. The first `shared` ones are common to all variants of the operator.

    The terms of variants with the same `form` mean the same. Times are not learned from `needless` terms: those of the
    common tile, if the variant's own tile is known.
    """

    def __init__(
        self, terms: Sequence[Term], shared: int, form: Sequence[str] = (), needless: Sequence[int] = ()
    ) -> None:
        self.terms, self.shared, self.form, self.needless = tuple(terms), shared, tuple(form), tuple(needless)


def _log(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """log2 in 1/256 from the bits of a double: the exponent, and a parabola through the ends of an octave."""
    bits: NDArray[np.int64] = np.where(values < 1.0, 1.0, values).view(np.int64) >> 44
    fraction = bits & 255
    found: NDArray[np.int64] = bits - (1023 << 8) + ((fraction * (256 - fraction) * 88) >> 16)
    return found


def terms_of(operator: Operator, tilings: Mapping[str, Tiling | None], processors: int) -> dict[str, Terms]:
    """The terms of variants, with their tiles if known, on a device of so many multiprocessors (or cores)."""
    shared = _shared(operator)
    common, plain = _common_tile(operator), len(shared)
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
    found: list[NDArray[np.int64]] = []
    for term in terms.terms:
        found.append(calls.once(term, partial(term.values, calls, found)))
    columns_by_term: NDArray[np.int64] = np.array(found, dtype=np.int64).reshape(len(terms.terms), len(calls))
    transposed: NDArray[np.int64] = columns_by_term.transpose()
    return transposed


def _shared(operator: Operator) -> list[Term]:
    """The terms of a call that do not depend on the variant."""
    logs = [Term("log", fact(d)) for d in operator.dims]
    moved = _bytes(operator)
    terms = [*logs, Term("log", moved)]
    terms += [Term("log", moved + 2.0**latency) for latency in _LATENCIES]
    if operator.flops is not None:
        done = quantity_of(operator.flops)
        terms += [Term("log", done), Term("log", moved + done / _RIDGE + 2.0 ** _LATENCIES[1])]
    terms += [Term("number", _twos(d)) for d in operator.dims]
    flags = [Expr("fact", value=f"present.{t.name}") for t in operator.tensors if t.optional]
    for attribute in operator.attributes:
        chosen = Expr("fact", value=f"attribute.{attribute.name}")
        flags += [chosen == i for i in range(1, min(len(attribute.choices), _MOST_CHOICES))]
    for tensor in operator.tensors:
        flags += [Expr("fact", value=f"stride.{tensor.name}.{axis}") == 1 for axis in range(tensor.rank - 1)]
    terms += [Term("number", quantity_of(flag)) for flag in flags]
    if len(logs) <= _MOST_PRODUCTS:
        terms += [Term("product", pair=p) for p in combinations_with_replacement(range(len(logs)), 2)]
    return terms


def _common_tile(operator: Operator) -> Tiling | None:
    """A tile of a product; None if the operator sums along no dim, or its result does not have two dims for a tile."""
    made = {f for t in operator.outputs for s in t.shape for f in s.facts()}
    needed = [{f for s in t.shape for f in s.facts()} for t in operator.tensors if not t.optional]
    apart = {d for d in made if all(d in dims for dims in needed)}  # such as a batch dim
    across = [d for d in operator.dims if d in made - apart]
    along = [d for d in operator.dims if d not in made]
    if len(across) != 2 or not along:
        return None
    steps = {d: _COMMON_STEP if d == along[-1] else 1 for d in along}
    return Tiling(dict.fromkeys(apart, 1) | dict.fromkeys(across, _COMMON) | steps)


def _of_tiles(operator: Operator, tiling: Tiling, processors: int) -> list[Term]:
    """The terms that follow from a variant's tile."""
    made = {f for t in operator.outputs for s in t.shape for f in s.facts()}
    across = {d: e for d, e in tiling.extents.items() if d in made}
    tiles = {d: rounded_up(fact(d) / e) for d, e in across.items()}
    blocks, volume, steps = constant(tiling.split), 1.0, constant(1)
    for name, count in tiles.items():
        cluster = tiling.cluster.get(name, 1)
        blocks = blocks * (rounded_up(count / cluster) * cluster if cluster > 1 else count)
    for name, extent in tiling.extents.items():
        volume *= extent
        if name not in made:
            steps = steps * rounded_up(fact(name) / (extent * tiling.split))
    processors *= tiling.occupancy
    waves = rounded_up(blocks / processors)
    work = waves * (steps + _PROLOGUE) * volume
    moved = _bytes(operator)
    terms = [Term("log", blocks), Term("log", waves), Term("ratio", blocks / (waves * processors))]
    terms += [Term("log", steps), Term("log", work)]
    terms += [Term("ratio", fact(d) / (tiles[d] * e)) for d, e in across.items() if e > 1]
    terms += [Term("number", lesser(tiles[d], _FEW)) for d, e in across.items() if e > 1]
    terms += [Term("log", lesser(blocks, processors)), Term("ratio", constant(1) / waves)]
    terms += [Term("log", work * knee + moved + 2.0 ** _LATENCIES[1]) for knee in _KNEES]
    terms += [Term("log", greater(work, moved)), Term("log", waves * steps)]
    return terms


def _bytes(operator: Operator) -> Quantity:
    """Bytes of a call's tensors. A varying dtype counts as its first choice: each variant has its own dtypes."""
    total = constant(0)
    for tensor in operator.tensors:
        name = operator.dtypes.get(tensor.dtype_name, (tensor.dtype_name,))[0]
        size = constant(dtype(name).bits / 8)
        for extent in tensor.shape:
            size = size * quantity_of(extent)
        if tensor.optional:
            size = size * fact(f"present.{tensor.name}")
        total = total + size
    return total


def _twos(name: str) -> Quantity:
    """How often 2 divides a dim, up to six times."""
    dim = Expr("fact", value=name)
    total = constant(0)
    for power in range(1, 7):
        total = total + Quantity("integer", of=dim % 2**power == 0)
    return total
