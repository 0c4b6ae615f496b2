"""Decisions from a survey: shapes that nobody timed get what is expected to be fastest there."""

from __future__ import annotations

import random

import numpy as np
from bundled import OPERATORS

from aot_tune.select import ChoiceLimits, Costs, Selection, Survey, ranked, select, terms_of
from aot_tune.select.decide import is_held_out
from aot_tune.spec import Expr, Problem, Tiling, problem

GEMM = OPERATORS["gemm"]
TILES = {
    "small": Tiling({"M": 16, "N": 64, "K": 64}),
    "middle": Tiling({"M": 64, "N": 128, "K": 64}),
    "large": Tiling({"M": 128, "N": 256, "K": 64}),
    "vendor": None,
}
PROCESSORS = 132


def always(_candidate: str) -> tuple[Expr, ...]:
    return ()


def time_of(candidate: str, dims: dict[str, int], noise: random.Random) -> float:
    """ns: tiles in waves, as GPUs have it; the vendor is a tenth slower than the better of two."""
    if candidate == "vendor":
        quiet = random.Random(0)
        return 1.1 * min(time_of(c, dims, quiet) for c in ("small", "large"))
    tile = TILES[candidate]
    assert tile is not None
    m, n, k = (-(-dims[d] // tile.extents[d]) for d in "MNK")
    step = {"small": 1.0, "middle": 4.5, "large": 14.0}[candidate]
    return (2000 + 10 * -(-m * n // PROCESSORS) * (k + 4) * step) * noise.uniform(0.97, 1.03)


def drawn(count: int, seed: int) -> list[Problem]:
    draw = random.Random(seed)
    return [
        problem(M=round(2 ** draw.uniform(0, 13)), N=64 * draw.randint(1, 200), K=64 * draw.randint(1, 200))
        for _ in range(count)
    ]


def survey_of(problems: list[Problem], candidates: tuple[str, ...] = ("small", "large")) -> Survey:
    noise = random.Random(7)
    return Survey(
        costs={p.id: {c: time_of(c, p.dims, noise) for c in candidates} for p in problems},
        facts={p.id: GEMM.facts(p) for p in problems},
        terms=terms_of(GEMM, {c: TILES[c] for c in candidates}, PROCESSORS),
        worth=always,
        vendor=frozenset({"vendor"} & set(candidates)),
    )


def decided(survey: Survey, rows: Costs | None = None, **options: object) -> Selection:
    tuned = rows or {"M=16 N=4096 K=4096": {"small": 1.0, "large": 2.0}}
    facts = {name: GEMM.facts(problem(M=16, N=4096, K=4096)) for name in tuned}
    return select(tuned, facts, always, survey=survey, **options)  # type: ignore[arg-type]


def test_other_shapes_get_what_is_faster_there() -> None:
    found = decided(survey_of(drawn(150, 1)))
    quiet, lost, most = random.Random(0), list[float](), list[float]()
    for p in drawn(100, 2):
        picked = ranked(found, p.id, GEMM.facts(p), always)[0]
        times = {c: time_of(c, p.dims, quiet) for c in ("small", "large")}
        lost.append(times[picked] / min(times.values()) - 1)
        most.append(max(times.values()) / min(times.values()) - 1)
    assert np.mean(lost) < 0.02
    assert np.mean(most) > 0.3  # there was something to lose


def test_a_tuned_problem_gets_what_was_measured_whatever_is_expected() -> None:
    name = "M=16 N=4096 K=4096"
    for first, other in (("small", "large"), ("large", "small")):
        found = decided(survey_of(drawn(100, 1)), {name: {first: 1.0, other: 9.0}})
        assert ranked(found, name, GEMM.facts(problem(M=16, N=4096, K=4096)), always)[0] == first
        assert found.regret == {name: 0.0}


def test_a_fifth_is_held_out_and_judged() -> None:
    problems = drawn(150, 1)
    survey = survey_of(problems)
    judged = decided(survey).judged
    assert judged is not None
    assert set(judged.regret) == {p.id for p in problems if is_held_out(p.id)}
    assert 15 < len(judged.regret) < 45
    assert judged.learned_from + len(judged.regret) == len(survey.costs)
    assert 0 <= judged.mean <= judged.worst[0]
    assert 0 <= judged.percentile(0.5) <= judged.percentile(0.95) <= judged.worst[0]


def test_the_vendor_serves_where_others_are_not_expected_to_be_faster_by_their_error() -> None:
    found = decided(survey_of(drawn(150, 1), ("small", "large", "vendor")), limits=ChoiceLimits(regret=0.0, worst=0.0))
    assert found.kept[0] == "vendor"  # in any case, though another one is always faster
    cautions = {e.candidate: e.caution for e in found.expected}
    assert cautions["vendor"] == 0
    assert min(cautions["small"], cautions["large"]) > 0


def test_an_algorithm_for_one_problem_serves_that_alone() -> None:
    name = "M=16 N=4096 K=4096"
    rows = {name: {"small": 10.0, "large": 20.0, "algorithm": 5.0}}
    found = decided(survey_of(drawn(100, 1)), rows, bound=frozenset({"algorithm"}))
    assert ranked(found, name, GEMM.facts(problem(M=16, N=4096, K=4096)), always)[0] == "algorithm"
    assert "algorithm" not in ranked(found, "", GEMM.facts(problem(M=17, N=4096, K=4096)), always)
    behind = decided(
        survey_of(drawn(100, 1)), {name: {"small": 10.0, "algorithm": 9.95}}, bound=frozenset({"algorithm"})
    )
    assert "algorithm" not in behind.kept
