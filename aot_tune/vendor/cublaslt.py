"""The algorithms that cuBLASLt has for a product on the current device, as configs of the kernels `cublaslt`.

Run it in a process that may use the GPU: `python -m aot_tune.vendor.cublaslt --problems IN --out OUT`. The answer is
plain numbers. An algorithm is identified by its attributes and the library's version, never by its place in a list.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from aot_tune.support.errors import AotTuneError, SpecError
from aot_tune.vendor.cublaslt_library import (
    ACTIVATIONS,
    ALIGNMENT,
    BIAS,
    COMPUTE,
    DEFAULT,
    TYPES,
    Algorithm,
    Library,
    Operands,
)
from aot_tune.vendor.cublaslt_library import device_facts as ask_device

_CLUSTER_BLOCKS = {
    2: (1, 1),
    3: (2, 1),
    4: (4, 1),
    5: (1, 2),
    6: (2, 2),
    7: (4, 2),
    8: (1, 4),
    9: (2, 4),
    10: (4, 4),
    11: (8, 1),
    12: (1, 8),
}
"""Cluster id (`cublasLtClusterShape_t`) to blocks along rows and columns of the column-major result; 0 is automatic."""

_FIRST = (
    "8x8 8x16 16x8 8x32 16x16 32x8 8x64 16x32 32x16 64x8 32x32 32x64 64x32 32x128 64x64 128x32 64x128 128x64 64x256 "
    "128x128 256x64 64x512 128x256 256x128 512x64 64x96 96x64 96x128 128x160 160x128 192x128 128x192 128x96 "
    "32x256 256x32"
)
_LAST = "256x512 256x1024 512x512 512x1024 4x1 8x1 16x1 24x1 32x1 40x1 48x1 64x1 128x1 192x1 256x1"

WORKSPACE_LIMIT = 32 << 20
"""Bytes of workspace, as many as the baseline has."""

HEURISTICS = 16
CHECKS = 12_000
"""About how many configs of a product the library is asked about by default."""

_MULTIPROCESSORS = 132
_CLUSTERS = (0, *_CLUSTER_BLOCKS)
_INNER_SHAPES = (0, 1, 2, 3, 4)
_SPLITS = (2, 3, 4, 5, 6, 8, 12, 16)
_SHORTEST_PART = 128
"""The least number of K steps in each part of a split product."""
_CLUSTER_PROBE = 2
_PROBED = 3
"""How many configs are used to find out which clusters and inner shapes an algorithm has."""
_VARIANTS_OF_A_TILE = 3
_NAMED_SHARE = 8
"""An algorithm among the library's heuristics gets this many times as many questions as another."""
_UNNAMED_COST = 2.0
"""Other algorithms are assumed to be this many times slower. An H200 tried 493 in 16 bits, and none was the fastest."""
_ANY_REDUCTION, _FLOAT_REDUCTION = 7, 2


@cache
def _tile_sizes() -> dict[int, tuple[int, int]]:
    """Tile id (`cublasLtMatmulTile_t`) to rows and columns of the column-major result (columns and rows of ours).

    The numbers follow rules.
    """
    sizes = _parsed(_FIRST)
    for step_rows, step_columns, most in ((8, 64, 768 * 64), (64, 8, 256 * 256)):
        so_far = set(sizes)
        sizes += [
            (rows, columns)
            for rows in range(step_rows, 769, step_rows)
            for columns in range(step_columns, 769, step_columns)
            if rows * columns <= most and (rows, columns) not in so_far
        ]
    sizes += _parsed(_LAST)
    return dict(enumerate(sizes, start=1))


def _parsed(text: str) -> list[tuple[int, int]]:
    pairs = (word.split("x") for word in text.split())
    return [(int(rows), int(columns)) for rows, columns in pairs]


@dataclass(frozen=True)
class Estimate:
    """An estimate of time, in products of a multiprocessor. It only orders configs of one product.

    A tile takes the longer of two times, for its products and for loading their factors, and a part of the shorter one.

    Args:
        load: products in the time of loading one element of a row of A or B.
        exposed: the part of the shorter of the two times that the longer one does not hide.
        wave: extra time of a wave of tiles, in products per element of the tile.
        split: for a split product, products in the time of writing and reading an element of a part.
        alone: factor on loads of blocks without a neighbour in a cluster.
        doubling: share of the time that each doubling of a cluster adds.
        crowded: share of the multiprocessors that clusters of more than eight blocks can use.
    """

    load: float
    exposed: float
    wave: float
    split: float
    alone: float
    doubling: float
    crowded: float = 0.85

    def time(
        self, extents: tuple[int, int, int, int], tile: int, cluster: int, split: int, multiprocessors: int
    ) -> float:
        """The time of a batch of column-major rows x columns products of some depth (`extents`, the batch last)."""
        all_rows, all_columns, depth, batch = extents
        rows, columns = _tile_sizes().get(tile, (128, 128))
        down, across = _CLUSTER_BLOCKS.get(cluster, (1, 1))
        blocks = down * across
        tiles = down * math.ceil(all_rows / (rows * down)) * across * math.ceil(all_columns / (columns * across))
        room = multiprocessors if blocks <= 8 else max(int(multiprocessors * self.crowded), 1)
        waves = math.ceil(tiles * batch * split / room)
        products, loads = rows * columns, self.load * (rows + columns) * (self.alone if blocks == 1 else 1.0)
        step = max(products, loads) + self.exposed * min(products, loads)
        work = waves * (step * depth / split + self.wave * products) * (1 + self.doubling * math.log2(blocks))
        return work + (self.split * all_rows * all_columns * batch * split / multiprocessors if split > 1 else 0.0)


_HALVES = Estimate(load=64, exposed=0, wave=800, split=5000, alone=1.25, doubling=0.05)
"""Fitted to an H200's record: the 2,227 times of 170 products of 16 bits with one algorithm.

Its first config is 2 % behind the best measured one for products with 64 rows or more, and 15 % for fewer rows. The
best of its first three is 0.5 % behind."""
_FLOATS = Estimate(load=64, exposed=1, wave=0, split=1600, alone=1, doubling=0)


@dataclass(frozen=True)
class Product:
    """out[m, n] = activation(a[m, k] @ b[k, n] + bias) + residual, row-major, as the kernel's guards allow it.

    With a `batch`, there are that many products, of matrices at equal distances.

    Args:
        m: rows of a and out.
        n: columns of b and out.
        k: columns of a.
        dtype: f32, f16 or bf16, for all tensors.
        math: `ieee` or `tf32`. It matters only for f32.
        a_by_columns: whether a's first axis is the contiguous one.
        b_by_columns: the same for b. Weights of linear layers are stored so.
        lda: stride of a's other axis, in elements; 0 means dense. ldb, ldd (of out) and ld_residual are alike.
        activation: none, relu or gelu_tanh.
        bias: whether there is a bias.
        residual: whether there is a residual. Then there is no activation.
        batch: number of products. If there are several, there is no bias and no residual.
        next_a: distance from one matrix a to the next, in elements; None means dense. next_b and next_d (of out) are
            alike.
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    math: str = "ieee"
    a_by_columns: bool = False
    b_by_columns: bool = True
    lda: int = 0
    ldb: int = 0
    ldd: int = 0
    ld_residual: int = 0
    activation: str = "none"
    bias: bool = False
    residual: bool = False
    batch: int = 1
    next_a: int | None = None
    next_b: int | None = None
    next_d: int | None = None

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k, self.batch) < 1 or self.dtype not in TYPES or self.math not in COMPUTE:
            raise SpecError(f"{self} is not a product of positive extents in {', '.join(TYPES)}")
        if self.activation not in ACTIVATIONS or (self.activation != "none" and self.residual):
            raise SpecError(
                f"cuBLASLt has no epilogue for activation {self.activation!r}, residual {self.residual}",
                why="it has relu and the GELU by tanh, and adds the residual before these",
            )


@dataclass(frozen=True)
class Found:
    """The result of a search: configs, how many of them are the library's own choices, and how many were checked.

    `heuristics` is the number of own choices. `costs` are estimates of the configs' times, good only for ordering.
    """

    configs: list[dict[str, int]]
    costs: list[float]
    heuristics: int = 0
    checked: int = 0
    passed: int = 0


@dataclass
class _Search:
    """One product's search: what all its steps need (`own` are the library's heuristics), and its counts."""

    library: Library
    product: Product
    operands: Operands
    multiprocessors: int
    own: list[dict[str, int]]
    checked: int = 0
    passed: int = 0
    found: dict[tuple[int, int], dict[int, tuple[float, dict[str, int]]]] = field(default_factory=dict)

    def named(self, number: int) -> bool:
        """Whether an algorithm is among the library's heuristics."""
        return any(config["ALGO"] == number for config in self.own)


def _enumerate_algorithms(library: Library, product: Product, limit: int = 48, *, checks: int = CHECKS) -> Found:
    """At most `limit` configs that the library says can run.

    First come the library's heuristics, in their order. The rest is drawn from all ids, tiles, stages, custom options,
    swizzles, splits of K, clusters and inner shapes, most of it from the ids of the heuristics. Combinations of the
    first four are checked; if there are too many for `checks`, an even sample. Those that pass are varied in the
    others, cheapest first. All are ranked by an estimate of time. Among equals, those with an option and a cluster of
    the heuristics come first. They are taken in rounds: the best of each (id, tile), then the second best, then the
    third, for as many pairs as give `limit` configs.
    """
    operands = _operands(library, product)
    processors = ask_device().get("multiprocessors", _MULTIPROCESSORS)
    reduction = _ANY_REDUCTION if product.dtype == "f32" else _FLOAT_REDUCTION
    configs: list[dict[str, int]] = []
    for algorithm in library.heuristic(operands, HEURISTICS, WORKSPACE_LIMIT, reduction):
        config = library.config(algorithm) | {"VERSION": library.version}
        if "ALGO" in config and config not in configs:
            configs.append(config)
    search = _Search(library, product, operands, processors, own=list(configs))
    configs = configs[:limit]
    heuristics = len(configs)
    ids = sorted(library.ids(operands), key=lambda number: (not search.named(number), number))
    shares = [_NAMED_SHARE if search.named(number) else 1 for number in ids]
    for turn, number in enumerate(ids):  # questions that one does not use are left to the others
        allowed = (checks - search.checked) * shares[turn] // sum(shares[turn:])
        _search_algorithm(search, number, max(allowed, 2))
    for config in _rounds(search, limit):
        if len(configs) >= limit:
            break
        if config not in configs:
            configs.append(config)
    return Found(configs, [_cost(search, c) for c in configs], heuristics, search.checked, search.passed)


def _operands(library: Library, product: Product) -> Operands:
    """The row-major product as the column-major out^T = b^T a^T: the library's A is b."""
    p, made = product, Operands(product.dtype, product.math)

    def layout(to: Any, rows: int, columns: int, ld: int, offset: int | None) -> None:
        ld = ld or rows
        offset = ld * columns if offset is None else offset
        library.layout(to, made.type, rows, columns, ld, batch=p.batch, offset=offset)

    rows, columns = (p.m, p.k) if p.a_by_columns else (p.k, p.m)
    layout(made.a, rows, columns, p.lda, p.next_a)
    rows, columns = (p.k, p.n) if p.b_by_columns else (p.n, p.k)
    layout(made.b, rows, columns, p.ldb, p.next_b)
    layout(made.c, p.n, p.m, (p.residual and p.ld_residual) or p.ldd, p.next_d)
    layout(made.d, p.n, p.m, p.ldd, p.next_d)
    epilogue = ACTIVATIONS[p.activation] | (BIAS if p.bias else 0)
    library.describe(made, transposed_a=p.b_by_columns, transposed_b=p.a_by_columns, epilogue=epilogue or DEFAULT)
    return made


def _search_algorithm(search: _Search, number: int, checks: int) -> None:
    """Find the configs of one algorithm with about `checks` questions: half for combinations, half for variations."""
    library = search.library
    algorithm = library.algorithm(search.operands, number)
    if algorithm is None or not _can_serve(search, algorithm):
        return
    tiles = library.capability(algorithm, "TILE_IDS") or [0]
    stages = library.capability(algorithm, "STAGES_IDS") or [0]
    options = range((library.capability(algorithm, "CUSTOM_OPTION_MAX") or [0])[0] + 1)
    swizzles = (0, 1) if any(library.capability(algorithm, "CTA_SWIZZLING_SUPPORT")) else (0,)
    names = ("TILE", "STAGES", "CUSTOM", "SWIZZLE")
    fixed = {"SPLITK": 1, "REDUCTION": 0, "INNER": 0}
    base: list[dict[str, int]] = []
    # Some algorithms have no automatic cluster. For them, use the smallest.
    for cluster in (0, _CLUSTER_PROBE):
        for values in sample_of([tiles, stages, list(options), swizzles], checks // 2):
            config = dict(zip(names, values, strict=True)) | fixed | {"CLUSTER": cluster}
            if _try(search, number, algorithm, config):
                base.append(config)
        if base:
            break
    _vary(search, number, algorithm, base, checks // 2)


def _can_serve(search: _Search, algorithm: Algorithm) -> bool:
    """Whether the algorithm takes pointers aligned as the guards say, a batch, and a residual other than the output."""
    library, product = search.library, search.product
    for matrix in "ABCD":
        if max(library.capability(algorithm, f"MIN_ALIGNMENT_{matrix}_BYTES"), default=1) > ALIGNMENT:
            return False
    if product.batch > 1 and not any(library.capability(algorithm, "STRIDED_BATCH_SUPPORT")):
        return False
    return not product.residual or any(library.capability(algorithm, "OUT_OF_PLACE_RESULT_SUPPORT"))


def _vary(search: _Search, number: int, algorithm: Algorithm, base: list[dict[str, int]], checks: int) -> None:
    """Vary what passed: try splits of K, then other clusters and inner shapes. The most promising come first."""
    varied = [config | split for config in base for split in _splits(search, algorithm)]
    varied.sort(key=lambda config: _cost(search, config))  # the sort keeps the order of equals
    end = search.checked + checks // 2
    for config in varied:
        if config["SPLITK"] > 1 and search.checked < end:
            _try(search, number, algorithm, config)
    end += checks // 2
    shapes = _shapes(search, number, algorithm, varied[:_PROBED])
    for config, shape in itertools.product(varied, shapes):
        if search.checked >= end:
            return
        _try(search, number, algorithm, config | shape)


def _splits(search: _Search, algorithm: Algorithm) -> list[dict[str, int]]:
    """No split of K, and the splits that the algorithm can do with sums in float."""
    library, product = search.library, search.product
    mask = (library.capability(algorithm, "REDUCTION_SCHEME_MASK") or [0])[0]
    mask &= _ANY_REDUCTION if product.dtype == "f32" else _FLOAT_REDUCTION
    splits = [s for s in _SPLITS if product.k >= s * _SHORTEST_PART]
    if not any(library.capability(algorithm, "SPLITK_SUPPORT")):
        splits = []
    reductions = [bit for bit in (1, 2, 4) if mask & bit]
    return [{}, *({"SPLITK": s, "REDUCTION": r} for s in splits for r in reductions)]


def _shapes(search: _Search, number: int, algorithm: Algorithm, base: list[dict[str, int]]) -> list[dict[str, int]]:
    """Other clusters and inner shapes that pass for some of these configs."""
    clusters: set[int] = set()
    inners: set[int] = set()
    for config in base:
        clusters |= {c for c in _CLUSTERS if _try(search, number, algorithm, config | {"CLUSTER": c})}
        inners |= {i for i in _INNER_SHAPES if _try(search, number, algorithm, config | {"INNER": i})}
    own = {(config["CLUSTER"], config["INNER"]) for config in base}
    pairs = itertools.product(sorted(clusters), sorted(inners))
    return [{"CLUSTER": c, "INNER": i} for c, i in pairs if (c, i) not in own]


def _try(search: _Search, number: int, algorithm: Algorithm, config: dict[str, int]) -> bool:
    """Ask the library about one config, and keep it if it passes."""
    library = search.library
    search.checked += 1
    if not all(library.set(algorithm, name, value) for name, value in config.items()):
        return False
    needed = library.workspace(search.operands, algorithm)
    if needed is None or needed > WORKSPACE_LIMIT:
        return False
    whole = {"ALGO": number} | config | {"VERSION": library.version}
    group = search.found.setdefault((number, config["TILE"]), {})
    if _digest(whole) not in group:
        search.passed += 1
        group[_digest(whole)] = (_cost(search, config), whole)
    return True


def _cost(search: _Search, config: dict[str, int]) -> float:
    """An estimate of time, in products of a multiprocessor. It only orders configs of one product."""
    p = search.product
    extents = (p.n, p.m, p.k, p.batch)
    estimate = _FLOATS if p.dtype == "f32" else _HALVES
    return estimate.time(extents, config["TILE"], config["CLUSTER"], config["SPLITK"], search.multiprocessors)


def _rounds(search: _Search, limit: int) -> Iterator[dict[str, int]]:
    """The best of each (id, tile), then the second best, and so on. Equals come in a random but fixed order."""
    usual = {(c["ALGO"], c.get("CUSTOM"), c.get("CLUSTER")) for c in search.own}

    def rank(one: tuple[float, dict[str, int]]) -> tuple[float, bool, int]:
        cost, config = one
        unusual = (config["ALGO"], config["CUSTOM"], config["CLUSTER"]) not in usual
        return cost * (1.0 if search.named(config["ALGO"]) else _UNNAMED_COST), unusual, _digest(config)

    groups = [sorted(g.values(), key=rank) for g in search.found.values()]
    groups.sort(key=lambda g: rank(g[0]))
    groups = groups[: max(limit // _VARIANTS_OF_A_TILE, 1)]
    for rank_in_group in range(max((len(g) for g in groups), default=0)):
        for group in groups:
            if rank_in_group < len(group):
                yield group[rank_in_group][1]


def _digest(config: dict[str, int]) -> int:
    return zlib.crc32(json.dumps(config, sort_keys=True).encode())


def sample_of(axes: Sequence[Sequence[int]], most: int) -> Iterator[tuple[int, ...]]:
    """All combinations of the axes' values, or `most` of them, spread evenly."""
    total = math.prod(len(axis) for axis in axes)
    step = 1
    if total > most:  # a step without a common factor visits no combination twice
        step = max(int(total * 0.618), 1)
        while math.gcd(step, total) != 1:
            step += 1
    for i in range(min(total, most)):
        index, values = i * step % total, []
        for axis in reversed(axes):
            index, digit = divmod(index, len(axis))
            values.append(axis[digit])
        yield tuple(reversed(values))


def _main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m aot_tune.vendor.cublaslt", description=__doc__)
    parser.add_argument("--problems", type=Path, required=True, help="a JSON list of products, by their fields")
    parser.add_argument("--out", type=Path, required=True, help="where to write the answer, a list in the same order")
    parser.add_argument("--limit", type=int, default=48, help="configs per product")
    parser.add_argument("--checks", type=int, default=CHECKS, help="configs the library is asked about per product")
    parser.add_argument("--library", default="", help="path of libcublasLt.so; by default it is searched for")
    given = parser.parse_args(arguments)
    try:
        library = Library(given.library)
        products = [Product(**one) for one in json.loads(given.problems.read_text())]
        answer = [asdict(_enumerate_algorithms(library, p, given.limit, checks=given.checks)) for p in products]
    except (AotTuneError, OSError, TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    given.out.write_text(json.dumps({"version": library.version, "products": answer}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
