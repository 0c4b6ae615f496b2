"""Shapes that no build drew, which variants are forced on them, and summaries of times: all without a device."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stats import Timing, best, geometric_mean

from aot_tune.spec import Operator, Problem, problem

__all__ = [
    "COPIED",
    "ON_CPU",
    "ON_GPU",
    "WIDTHS",
    "Products",
    "Shape",
    "any_row_shapes",
    "attentions",
    "batches",
    "called",
    "products",
    "ratio",
    "row_shapes",
    "speed_over",
    "tell",
    "timings",
    "turns",
    "variants_of",
]

Shape = tuple[int | str, ...]
"""Extents in the order of the operator's dims, then orders of axes such as `b:021`, and attributes as `math=tf32`."""

_CERTAIN = 2.0
"""A shape is certainly slower if it is slower by this many standard errors of the mean log ratio over rounds."""


_MOST_ELEMENTS = 2**28
COPIED = 8 * 10**6
"""A call of at least this many bytes is compared with a copy."""
_MB = 10**6
_SIZES = {"8 to 16 MB": (8 * _MB, 16 * _MB), "16 to 128 MB": (16 * _MB, 128 * _MB), "128 MB on": (128 * _MB, 2**60)}

_HEADS = ((8, 8), (12, 12), (16, 16), (20, 20), (32, 32), (40, 40), (8, 1), (8, 4), (16, 8), (16, 2), (24, 8), (28, 4))
_HEADS += ((32, 8), (32, 4), (40, 8), (48, 8), (64, 8), (64, 4))
"""Heads of queries and of keys in models."""
_MOST_PAIRS, _MOST_BYTES, _MOST_WORK = 2**43, 2**32, 2**38
"""Limits of B * H * M * N * D of attention, of the bytes of its keys and values in 16 bits, and of B * M * N * K."""


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
    """M, N and K of `count` different products. A third has one row, a third at most 64."""
    draw = _Draw(f"unseen {seed}")
    found: dict[Shape, None] = {}
    while len(found) < count:
        many = draw.log(65, given.rows), 64 * draw.randint(1, given.rows // 128)
        m = draw.choice((1, 1, draw.log(2, 64), draw.log(2, 64), *many))
        kind, n = draw.random(), draw.extent(256, given.columns)
        n, k = draw.choice(given.layers) if kind < 0.4 else (n, draw.extent(256, given.depth if kind < 0.8 else 1024))
        if m * n * k <= given.most and n * k <= given.weights:
            found[m, n, k] = None
    return list(found)


def called(operator: Operator, shape: Shape, dtype: str, form: Mapping[str, Any]) -> Problem:
    """A shape of an operator as a problem, with the optional tensors and attributes of a form."""
    told = [part for part in shape if isinstance(part, str)]
    attributes = dict(part.split("=") for part in told if "=" in part)
    return problem(
        order={name: tuple(map(int, axes)) for name, axes in (part.split(":") for part in told if ":" in part)},
        present=form.get("present", ()),
        attributes={**attributes, **form.get("attributes", {})},
        dtypes={"T": dtype},
        **dict(zip(operator.dims, (n for n in shape if isinstance(n, int)), strict=True)),
    )


def batches(count: int, seed: int, most: int = _MOST_WORK) -> list[Shape]:
    """B, M, N and K of different batches, and the orders of the axes of a and b. Some have one row or few.

    A fourth has N = 64, and a fourth K of at most 128.
    """
    draw = _Draw(f"unseen batches {seed}")
    found: dict[Shape, None] = {}
    while len(found) < count:
        m = draw.choice((1, draw.log(2, 32), *(draw.extent(16, 4096) for _ in range(6))))
        n = draw.choice((64, *(draw.extent(16, 4096) for _ in range(3))))
        k = draw.choice((draw.extent(16, 128), *(draw.extent(16, 4096) for _ in range(3))))
        shape = draw.log(2, 512), m, n, k
        a, b = (draw.choices(("012", "021", "102"), (2, 2, 1))[0] for _ in "ab")
        if math.prod(shape) <= most:
            found[(*shape, f"a:{a}", f"b:{b}")] = None
    return list(found)


def attentions(
    count: int,
    seed: int,
    form: str,
    widths: Sequence[int],
    most_pairs: int = _MOST_PAIRS,
    most_bytes: int = _MOST_BYTES,
) -> list[Shape]:
    """B, H, HK, M, N and D of different calls, their mask, and the orders of axes if heads lie beside each other.

    Args:
        form: `prompt`, `few` queries against many keys, or `one`.
        widths: values of D.
    """
    draw = _Draw(f"unseen attention {form} {seed}")
    found: dict[Shape, None] = {}
    while len(found) < count:
        b, (h, hk), d = draw.log(1, 64), draw.choice(_HEADS), draw.choice(tuple(widths))
        if form == "prompt":
            m = n = draw.extent(64, 16384)
            causal = draw.choice(("none", "upper_left", "upper_left"))
            if draw.random() < 0.3:
                n, causal = max(m, draw.extent(m, 32768)), draw.choice(("none", "lower_right", "lower_right"))
        else:
            m, n = 1 if form == "one" else draw.log(2, 32), draw.extent(256, 2**17)
            causal = draw.choice(("none", "lower_right"))
        while b > 1 and (b * h * m * n * d > most_pairs or 4 * b * hk * n * d > most_bytes):
            b //= 2
        orders = [f"{tensor}:0213" for tensor in ("q", "k", "v", "out")] if draw.random() < 0.4 else []
        if b * h * m * n * d <= most_pairs and 4 * b * hk * n * d <= most_bytes:
            found[(b, h, hk, m, n, d, f"causal={causal}", *orders)] = None
    return list(found)


def row_shapes(count: int, seed: int, most: int = _MOST_ELEMENTS) -> list[Shape]:
    """Rows and widths of different calls: 1 to 16384 rows; widths of 64 to 16384 that are multiples of 8."""
    draw = _Draw(f"unseen rows {seed}")
    found: dict[Shape, None] = {}
    while len(found) < count:
        few, many = draw.log(2, 64), (draw.log(65, 16384), draw.log(65, 16384))
        rows, width = draw.choice((1, few, *many)), 8 * round(draw.log(64, 16384) / 8)
        if rows * width <= most:
            found[rows, width] = None
    return list(found)


def any_row_shapes(count: int, seed: int, most: int = _MOST_ELEMENTS) -> list[Shape]:
    """The same with any widths from 1 to 160000, every other one odd.

    A fourth have at least an eighth of the most elements: by default 128 MB read and written in two bytes each.
    """
    draw = _Draw(f"unseen rows of any width {seed}")
    found: dict[Shape, None] = {}
    while len(found) < count:
        rows, width = draw.choice((1, draw.log(2, 64), draw.log(2, 16384))), draw.log(1, 160000)
        shape = rows, width | 1 if len(found) % 2 else width + width % 2
        if (most // 8 if len(found) % 8 > 5 else 1) <= math.prod(shape) <= most:
            found[shape] = None
    return list(found)


WIDTHS: dict[str, Callable[[int, int], list[Shape]]] = {"whole": row_shapes, "any": any_row_shapes}
"""The functions that draw widths of rows, by their name in the command."""


def turns(several: Iterable[Iterable[Any]]) -> list[Any]:
    """The first of each, the second of each, and so on."""
    return [item for turn in itertools.zip_longest(*several) for item in turn if item is not None]


def variants_of(manifest: Mapping[str, Any], operator: str, dtype: str, family: str) -> list[str]:
    """Names of the kept variants of a dtype for a family of devices.

    Without generic ones, which may take thousands of times as long, and a vendor's algorithms for one problem.
    """
    (one,) = (o for o in manifest["operators"] if o["name"] == operator)
    found = [v for v in one["variants"] if v["target"].startswith(family) and v["dtypes"].get("T", "f32") == dtype]
    return [v["name"] for v in found if not v["generic"] and (v["kernel"] != "cublaslt" or v["config"]["ALGO"] == -1)]


def timings(row: Mapping[str, Any]) -> tuple[Timing, list[Timing]]:
    """Our time on a shape, and the times of the libraries that raced with it."""
    found = {name: Timing(name, tuple(rounds)) for name, rounds in row["us"].items()}
    return found.pop("ours"), list(found.values())


def ratio(row: Mapping[str, Any]) -> tuple[float, float]:
    """Our speed over that of the fastest other library, and the standard error of its logarithm over rounds."""
    ours, others = timings(row)
    logs = [math.log(t / o) for o, t in zip(ours.rounds, best(others).rounds, strict=False)]
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return math.exp(statistics.fmean(logs)), error


def speed_over(row: Mapping[str, Any], times: Sequence[float]) -> float:
    """Our speed on a shape over that of other times."""
    return statistics.median(times) / statistics.median(row["us"]["ours"])


def tell(name: str, rows: Sequence[Mapping[str, Any]], fastest: Mapping[Shape, float]) -> list[dict[str, Any]]:
    """What there is to say of all shapes, and of each regime.

    Args:
        rows: `shape`, `regime`, `us` of each library by round or an `error`, and whether the shape was `tuned`.
        fastest: by shape, us of the best kept variant, if variants were forced. The regret is against it.
    """
    regimes = sorted({r["regime"] for r in rows})
    parts = {name: rows, **{f"{name}, {regime}": [r for r in rows if r["regime"] == regime] for regime in regimes}}
    return [_told(part, some, fastest) for part, some in parts.items()]


def _told(name: str, rows: Sequence[Mapping[str, Any]], fastest: Mapping[Shape, float]) -> dict[str, Any]:
    timed = [r for r in rows if "us" in r]
    found = [(r["shape"], *ratio(r)) for r in timed]
    ours = {tuple(r["shape"]): timings(r)[0].median for r in timed}
    regret = sorted(us / min(fastest[shape], us) - 1 for shape, us in ours.items() if shape in fastest)
    return {
        "name": name,
        "shapes": len(timed),
        "failed": len(rows) - len(timed),
        "geometric_mean": geometric_mean(x for _, x, _ in found) if found else None,
        **{f"below_{x:.2f}": sum(r < x for _, r, _ in found) / len(found) if found else None for x in (0.95, 0.9, 0.8)},
        **{f"certainly_below_{x:.2f}": [s for s, r, e in found if r * math.exp(_CERTAIN * e) < x] for x in (0.95, 0.8)},
        "worst": min(((x, s) for s, x, _ in found), default=None),
        "regret_mean": statistics.fmean(regret) if regret else None,
        "regret_p95": regret[int(0.95 * len(regret))] if regret else None,
        "regret_worst": max(regret, default=None),
        "tuned": sum(bool(r.get("tuned")) for r in timed),
        "of_a_copy": _of_a_copy(timed),
    }


def _of_a_copy(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By size: the speed of calls that raced with a copy of as many bytes, as a share of the copy's speed."""
    shares = [(row["bytes"], speed_over(row, row["copy"])) for row in rows if "copy" in row]
    found = {name: [share for size, share in shares if a <= size < b] for name, (a, b) in _SIZES.items()}
    return {n: {"calls": len(x), "mean": geometric_mean(x), "least": min(x)} for n, x in found.items() if x}
