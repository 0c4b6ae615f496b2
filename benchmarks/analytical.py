"""An analytical model: the time of a product from the work of its tiles, with a few constants of a device.

It follows the idea of Origami (tritonBLAS, arXiv 2512.04226). A wave of blocks takes steps along K. Each step takes the
longer of two times: to compute it, or to load it. What blocks of a wave share comes from the cache, and only once from
memory. Only constants that describe the device are fitted, to all variants together. A variant without a known tile
counts as the best of some common tiles, as a vendor's library would choose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from surveyed import SurveyedKind

from aot_tune.select import Costs
from aot_tune.spec import Tiling
from aot_tune.spec.dtypes import dtype

__all__ = ["Device", "fit_device"]

Floats = NDArray[np.float64]

_COMMON = tuple(Tiling({"M": m, "N": n, "K": 64}) for m, n in ((64, 64), (128, 128), (128, 256)))
_CONSTANTS = ("launch", "memory", "cache", "compute", "prologue", "split")
_PASSES = 6
_MOST_ROWS = 400
"""Constants are fitted to at most this many problems."""


@dataclass(frozen=True)
class Device:
    """Constants of a device.

    Args:
        processors: number of processors that blocks are spread over.
        launch: ns before the first block runs, and after the last one.
        memory, cache: bytes per ns that the whole device gets from memory, and from its last cache.
        compute: FLOPs per ns of one processor.
        prologue: ns of a block in addition to its steps.
        split: ns for each of the parts into which a tile's sums are split.
    """

    processors: int
    launch: float = 2000.0
    memory: float = 3000.0
    cache: float = 6000.0
    compute: float = 5000.0
    prologue: float = 1000.0
    split: float = 300.0

    OPERATIONS: ClassVar[int] = 40
    BYTES: ClassVar[int] = 56

    def log_times(self, kind: SurveyedKind, variant: str, problems: Sequence[str]) -> Floats:
        """log2 ns of a variant on some problems."""
        tiling = kind.tilings[variant]
        tiles = [tiling] if tiling is not None else list(_COMMON)
        dims = {d: np.array([kind.facts[p][d] for p in problems], dtype=np.float64) for d in kind.operator.dims}
        moved = np.array([kind.moved[p] for p in problems], dtype=np.float64)
        size = _size(kind)
        found: Floats = np.log2(np.min([self._times(tile, dims, moved, size) for tile in tiles], axis=0))
        return found

    def _times(self, tile: Tiling, dims: dict[str, Floats], moved: Floats, size: float) -> Floats:
        m, n, k = (float(tile.extents.get(d, 1)) for d in dims)
        rows, columns, depth = dims.values()
        down, across = np.ceil(rows / m), np.ceil(columns / n)
        blocks = down * across * tile.split
        waves = np.ceil(blocks / self.processors)
        steps = np.ceil(depth / (k * tile.split))
        running = np.minimum(blocks, self.processors)
        computing = 2 * m * n * k / self.compute
        # All running blocks read their part of a and b from the cache. Blocks of a column share b, blocks of a row
        # share a.
        asked = running * (m + n) * k * size
        high = np.minimum(np.ceil(np.sqrt(running)), down)
        wide = np.minimum(np.ceil(running / high), across)
        fresh = (high * np.minimum(m, rows) + wide * np.minimum(n, columns)) * k * size * tile.split
        bringing = np.maximum(asked / self.cache, np.minimum(fresh, asked) / self.memory)
        inner = waves * (steps * np.maximum(computing, bringing) + self.prologue)
        reduced = (tile.split - 1) * (self.split + rows * columns * 4 * 2 / self.cache)
        return self.launch + np.maximum(inner, moved / self.memory) + reduced


def fit_device(kind: SurveyedKind, rows: Costs) -> Device:
    """The constants that fit all times best, by the mean absolute difference of logarithms."""
    problems = sorted(rows)
    problems = problems[:: max(len(problems) // _MOST_ROWS, 1)]
    by_variant = {v: [p for p in problems if v in rows[p]] for v in sorted({v for p in problems for v in rows[p]})}
    logs = {v: np.log2([rows[p][v] for p in own]) for v, own in by_variant.items()}

    def off(device: Device) -> float:
        parts = [np.abs(device.log_times(kind, v, own) - logs[v]) for v, own in by_variant.items()]
        return float(np.concatenate(parts).mean())

    device = Device(kind.processors)
    best = off(device)
    for number in range(_PASSES):
        step = 2.0 ** (1.0 / (1 + number))
        for name in _CONSTANTS:
            device, best = _along(device, best, name, step, off)
    return device


def _along(device: Device, best: float, name: str, step: float, off: Callable[[Device], float]) -> tuple[Device, float]:
    """Change one constant in steps, as long as that helps."""
    for factor in (step, 1 / step):
        while True:
            other = replace(device, **{name: getattr(device, name) * factor})
            value = off(other)
            if not value < best - 1e-6 or math.isinf(value):
                break
            device, best = other, value
    return device, best


def _size(kind: SurveyedKind) -> float:
    """Bytes of an element of the factors."""
    name = next(t.dtype_name for t in kind.operator.tensors if not t.output)
    choices = kind.operator.dtypes.get(name, (name,))
    facts = next(iter(kind.facts.values()))
    return dtype(choices[facts.get(f"dtype.{name}", 0)]).bits / 8
