"""Shapes that no build drew, which variants are forced on them, and summaries of times: all without a device."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stats import Timing, best, geometric_mean

__all__ = [
    "COPIED",
    "ON_CPU",
    "ON_GPU",
    "WIDTHS",
    "Products",
    "Shape",
    "any_row_shapes",
    "of_a_copy",
    "products",
    "ratio",
    "row_shapes",
    "rows_of",
    "tell",
    "timings",
    "variants_of",
]

Shape = tuple[int, ...]
"""Extents in the order of the operator's dims."""

_CERTAIN = 2.0
"""A shape is certainly slower if it is slower by this many standard errors of the mean log ratio over rounds."""


_LARGE_ELEMENTS, _MOST_ELEMENTS = 2**25, 2**28
COPIED = 8 * 10**6
"""A call of at least this many bytes is compared with a copy."""
_SIZES = {"8 to 16 MB": (COPIED, 16 * 10**6), "128 MB on": (128 * 10**6, 2**60)}


@dataclass(frozen=True)
class Products:
    """What products are drawn from: N and K of layers, the most rows, and limits of M * N * K and of N * K."""

    layers: tuple[tuple[int, int], ...]
    rows: int
    columns: int
    depth: int
    most: int
    weights: int


_Layers = tuple[tuple[int, int], ...]

_LAYERS: _Layers = ((4096, 4096), (14336, 4096), (4096, 14336), (6144, 4096), (1024, 1024), (8192, 8192), (28672, 8192))
_LAYERS += ((3584, 3584), (18944, 3584), (3584, 18944), (5120, 5120), (13824, 5120), (2048, 2048), (5632, 2048))
_SMALL_LAYERS: _Layers = ((768, 768), (3072, 768), (768, 3072), (1024, 1024), (4096, 1024), (1024, 4096), (2048, 2048))
_SMALL_LAYERS += ((5632, 2048), (2048, 5632), (2560, 2560), (3584, 3584), (4096, 4096), (6144, 4096))

ON_GPU = Products(_LAYERS, rows=8192, columns=32768, depth=20000, most=2**40, weights=2**40)
ON_CPU = Products(_SMALL_LAYERS, rows=2048, columns=8192, depth=8192, most=2**33, weights=2**25)
"""A call takes two cores at most a fifth of a second, and the weights of each library take at most 128 MiB."""


class _Draw(random.Random):
    def log(self, least: int, most: int) -> int:
        """A number that is drawn evenly in the logarithm."""
        return round(float(least * (most / least) ** self.random()))

    def extent(self, least: int, most: int) -> int:
        """The same as an extent. Most are multiples of 64, some of 8, a few of neither."""
        step = self.choices((64, 8, 1), (0.7, 0.2, 0.1))[0]
        return max(round(self.log(least, most) / step), 1) * step


def products(count: int, seed: int, given: Products = ON_GPU) -> list[Shape]:
    """M, N and K of `count` different products."""
    draw = _Draw(f"unseen {seed}")
    found: dict[Shape, None] = {}
    while len(found) < count:
        few, many = (draw.log(2, 64), draw.log(2, 64)), draw.log(65, given.rows)
        m = draw.choice((1, *few, many, 64 * draw.randint(1, given.rows // 128)))
        layer = draw.random() < 0.5
        n, k = draw.choice(given.layers) if layer else (draw.extent(256, given.columns), draw.extent(256, given.depth))
        if m * n * k <= given.most and n * k <= given.weights:
            found[m, n, k] = None
    return list(found)


def row_shapes(count: int, seed: int) -> list[Shape]:
    """Rows and widths of different calls: 1 to 16384 rows; widths of 64 to 16384 that are multiples of 8."""
    draw = _Draw(f"unseen rows {seed}")
    found: dict[Shape, None] = {}
    while len(found) < count:
        few, many = draw.log(2, 64), (draw.log(65, 16384), draw.log(65, 16384))
        rows = draw.choice((1, few, *many))
        found[rows, 8 * round(draw.log(64, 16384) / 8)] = None
    return list(found)


def any_row_shapes(count: int, seed: int) -> list[Shape]:
    """The same with any widths from 1 to 160000, every other one odd.

    A tensor has at most 2**28 elements. A fourth have at least 2**25: 128 MB read and written in two bytes each.
    """
    draw = _Draw(f"unseen rows of any width {seed}")
    found: dict[Shape, None] = {}
    while len(found) < count:
        rows, width = draw.choice((1, draw.log(2, 64), draw.log(2, 16384))), draw.log(1, 160000)
        shape = rows, width | 1 if len(found) % 2 else width + width % 2
        if (_LARGE_ELEMENTS if len(found) % 8 > 5 else 1) <= math.prod(shape) <= _MOST_ELEMENTS:
            found[shape] = None
    return list(found)


WIDTHS: dict[str, Callable[[int, int], list[Shape]]] = {"whole": row_shapes, "any": any_row_shapes}
"""The functions that draw widths of rows, by their name in the command."""


def variants_of(manifest: Mapping[str, Any], operator: str, dtype: str, family: str) -> list[str]:
    """Names of the kept variants of a dtype for a family of devices, without a vendor's algorithms for one problem."""
    (one,) = (o for o in manifest["operators"] if o["name"] == operator)
    found = [v for v in one["variants"] if v["target"].startswith(family) and v["dtypes"].get("T", "f32") == dtype]
    return [v["name"] for v in found if v["kernel"] != "cublaslt" or v["config"].get("ALGO") == -1]


def timings(row: Mapping[str, Any]) -> tuple[Timing, list[Timing]]:
    """Our time on a shape, and the times of the libraries that raced with it."""
    found = {name: Timing(name, tuple(rounds)) for name, rounds in row["us"].items()}
    return found.pop("ours"), list(found.values())


def ratio(row: Mapping[str, Any]) -> tuple[float, float]:
    """Our speed over that of the fastest other library, and the standard error of its logarithm over rounds."""
    ours, others = timings(row)
    logs = [math.log(t / o) for o, t in zip(ours.rounds, best(others).rounds, strict=True)]
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return math.exp(statistics.fmean(logs)), error


def rows_of(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[bool, list[dict[str, Any]]]]:
    """The shapes with several rows, and those with one row, which are another kind of call."""
    for single in (False, True):
        yield single, [r for r in rows if (r["shape"][0] == 1) == single]


def tell(name: str, rows: Sequence[Mapping[str, Any]], fastest: Mapping[Shape, float]) -> dict[str, Any]:
    """Print one line, and return what it says.

    Args:
        rows: `shape`, `us` of each library by round or an `error`, and whether the shape was `tuned`.
        fastest: by shape, us of the best kept variant, if variants were forced. The regret is against it.
    """
    timed = [r for r in rows if "us" in r]
    found = [(r["shape"], *ratio(r)) for r in timed]
    ours = {tuple(r["shape"]): timings(r)[0].median for r in timed}
    regret = sorted(us / min(fastest[shape], us) - 1 for shape, us in ours.items() if shape in fastest)
    told = {
        "name": name,
        "shapes": len(timed),
        "failed": len(rows) - len(timed),
        "geometric_mean": geometric_mean(x for _, x, _ in found) if found else None,
        "below_0.95": _share_below(0.95, found),
        "below_0.80": _share_below(0.8, found),
        "certainly_below_0.95": _certainly_below(0.95, found),
        "certainly_below_0.80": _certainly_below(0.8, found),
        "worst": min(((x, s) for s, x, _ in found), default=None),
        "regret_mean": statistics.fmean(regret) if regret else None,
        "regret_p95": regret[int(0.95 * len(regret))] if regret else None,
        "tuned": sum(bool(r.get("tuned")) for r in timed),
        "of_a_copy": of_a_copy(timed),
    }
    print(json.dumps(told), flush=True)
    return told


def of_a_copy(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By size: the speed of calls that raced with a copy of as many bytes, as a share of the copy's speed."""
    shares = [
        (row["bytes"], statistics.median(row["copy"]) / statistics.median(row["us"]["ours"]))
        for row in rows
        if "copy" in row
    ]
    found = {name: [share for size, share in shares if a <= size < b] for name, (a, b) in _SIZES.items()}
    return {n: {"calls": len(x), "mean": geometric_mean(x), "least": min(x)} for n, x in found.items() if x}


def _certainly_below(limit: float, found: Sequence[tuple[Any, float, float]]) -> list[Any]:
    return [s for s, x, error in found if math.log(x) + _CERTAIN * error < math.log(limit)]


def _share_below(limit: float, found: Sequence[tuple[Any, float, float]]) -> float | None:
    return sum(x < limit for _, x, _ in found) / len(found) if found else None
