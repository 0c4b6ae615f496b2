"""Terms: what follows from a variant's tile on a call."""

from __future__ import annotations

import math

from bundled import OPERATORS

from aot_tune.select import terms_of
from aot_tune.select.terms import UNIT, columns_of
from aot_tune.spec import Tiling, problem

GEMM = OPERATORS["gemm"]


def own_terms(tiling: Tiling, **dims: int) -> list[int]:
    """The terms of a variant's own, on a device of 132 multiprocessors."""
    terms = terms_of(GEMM, tiling, 132)
    (row,) = columns_of(terms, [GEMM.facts(problem(**dims))]).tolist()
    return list(row[terms.shared :])


def test_blocks_come_in_whole_clusters() -> None:
    """3 x 34 tiles of 132 multiprocessors are one wave; in clusters of two along M they are 4 x 34, and two waves."""
    dims = {"M": 380, "N": 4352, "K": 3584}
    tile = {"M": 128, "N": 128, "K": 32}
    single, pairs = own_terms(Tiling(tile), **dims), own_terms(Tiling(tile, cluster={"M": 2}), **dims)
    assert abs(single[0] - UNIT * math.log2(3 * 34)) <= 2
    assert abs(pairs[0] - UNIT * math.log2(4 * 34)) <= 2
    assert (single[1], pairs[1]) == (0, UNIT)


def test_several_blocks_run_at_a_time() -> None:
    dims = {"M": 64, "N": 64 * 264, "K": 512}
    tile = {"M": 64, "N": 64, "K": 64}
    assert own_terms(Tiling(tile), **dims)[1] == UNIT
    assert own_terms(Tiling(tile, occupancy=2), **dims)[1] == 0


def test_what_fits_into_one_tile_is_told_apart() -> None:
    tile = {"M": 64, "N": 1024, "K": 64}
    within, beyond = (own_terms(Tiling(tile), M=1, N=n, K=512) for n in (1024, 1025))
    assert UNIT in within
    assert 2 * UNIT in set(beyond) - set(within)
