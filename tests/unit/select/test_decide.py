"""Decisions from a survey: shapes that nobody timed get what is expected to be fastest there."""

import dataclasses
import random
from collections.abc import Callable

import numpy as np
from bundled import OPERATORS

from aot_tune.select import ChoiceLimits, Costs, Judged, Selection, Survey, ranked, select, terms_of
from aot_tune.select.decide import is_held_out
from aot_tune.spec import Expr, Problem, Tiling, dim, problem
from aot_tune.spec.regimes import OTHER

GEMM = OPERATORS["gemm"]
TILES = {
    "small": Tiling({"M": 16, "N": 64, "K": 64}),
    "middle": Tiling({"M": 64, "N": 128, "K": 64}),
    "large": Tiling({"M": 128, "N": 256, "K": 64}),
    "vendor": None,
}
PROCESSORS = 132
M = dim("M")
REGIMES = (("few", (M <= 16,)), ("many", (M > 16,)))


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


def test_nothing_is_learned_or_chosen_by_held_out_shapes() -> None:
    survey = survey_of(drawn(300, 1), ("small", "large", "middle", "vendor"))
    regimes = (("small", (M <= 16,)), ("large", (M > 16,)))
    draw, scrambled = random.Random(3), {}
    for name, row in survey.costs.items():
        times = list(row.values())
        if is_held_out(name):
            draw.shuffle(times)
            times[0] *= draw.uniform(0.01, 100)
        scrambled[name] = dict(zip(row, times, strict=True))
    found, other = (
        decided(s, regimes=regimes, limits=ChoiceLimits(regret=0.01, worst=0.1, variants=2))
        for s in (survey, dataclasses.replace(survey, costs=scrambled))
    )
    assert found.judged is not None
    assert other.judged is not None
    assert found.judged.mean < 0.2 * other.judged.mean
    assert [regime for _, regime in found.rules] == ["small", "large", OTHER]
    assert without_judgement(found) == without_judgement(other)


def without_judgement(selection: Selection) -> Selection:
    rules = {cell: dataclasses.replace(rule, judged=Judged()) for cell, rule in selection.rules.items()}
    return dataclasses.replace(selection, rules=rules)


def in_places(candidate: str, dims: dict[str, int]) -> float:
    """The best alternates between places, which neighbours know."""
    place = round(np.log2(dims["N"])) * 7 + round(np.log2(dims["K"])) * 5
    return 1000.0 if (place // 2 % 2 == 0) == (candidate == "small") else 2000.0


def by_divisors(candidate: str, dims: dict[str, int]) -> float:
    """The best depends on whether N is even, which no neighbour knows. The vendor is a tenth slower than the best."""
    return {"vendor": 1100.0, "small": 1000.0, "large": 2000.0}[candidate] if dims["N"] % 2 else (
        {"vendor": 1100.0, "small": 2000.0, "large": 1000.0}[candidate]
    )  # fmt: skip


def by_chance(candidate: str, dims: dict[str, int]) -> float:
    """Nothing tells how fast a candidate is, but the vendor's choice is good."""
    return 1000.0 if candidate == "vendor" else random.Random(f"{candidate} {dims}").choice((900.0, 1300.0, 4000.0))


def surveyed(few: Callable[..., float], many: Callable[..., float], *candidates: str) -> Survey:
    draw = random.Random(5)
    problems = [
        problem(M=draw.choice((1, 2, 3, 4, 100, 110, 120)), N=2 ** draw.randint(5, 12) + draw.randint(0, 9), K=2**k)
        for k in range(5, 12)
        for _ in range(60)
    ]
    survey = survey_of(problems, candidates)
    times = {p.id: few if p.dims["M"] <= 16 else many for p in problems}
    costs = {p.id: {c: times[p.id](c, p.dims) for c in candidates} for p in problems}
    return dataclasses.replace(survey, costs=costs)


def test_each_regime_has_the_rule_that_is_best_there() -> None:
    for few, many in ((in_places, by_divisors), (by_divisors, in_places)):
        survey = surveyed(few, many, "small", "large")
        found = decided(survey, regimes=REGIMES)
        rules = {regime: rule for (_, regime), rule in found.rules.items()}
        wanted = {in_places: "nearest", by_divisors: "expected"}
        assert {n: rule.by for n, rule in rules.items()} == {"few": wanted[few], "many": wanted[many], OTHER: "nearest"}
        assert rules["few"].judged.mean < 0.15
        assert rules["many"].judged.mean < 0.15
        assert not rules[OTHER].judged.regret
        assert found.nearest is not None
        taught = {survey.facts[n]["M"] <= 16 for n in found.nearest.problems if n in survey.costs}
        assert taught == {few is in_places}  # shapes of the other regime are not needed


def test_the_caution_before_a_vendor_is_an_error_of_its_regime() -> None:
    survey = surveyed(by_chance, by_divisors, "small", "large", "vendor")
    found = decided(survey, regimes=REGIMES, limits=ChoiceLimits(regret=0.0, worst=0.0))
    assert found.kept[0] == "vendor"  # in any case, though another one is always faster
    assert {e.candidate: e.vendor for e in found.expected} == {"vendor": True, "small": False, "large": False}
    few, many, other = (found.rules[(), regime] for regime in ("few", "many", OTHER))
    assert few.by in ("expected", "vendor")
    assert few.caution > 1000
    assert many.by == "expected"
    assert many.caution < 500
    assert other.by == "vendor"  # nothing was measured there


def test_a_caution_below_0_favours_others_where_the_vendor_is_expected_to_be_faster_but_loses_more() -> None:
    def mostly(candidate: str, dims: dict[str, int]) -> float:
        return 1000.0 if candidate == "small" else random.Random(f"{dims}").choice((950.0, 950.0, 950.0, 8000.0))

    survey = surveyed(mostly, by_divisors, "small", "vendor")
    few = decided(survey, regimes=REGIMES, limits=ChoiceLimits(regret=0.0, worst=0.0)).rules[(), "few"]
    assert (few.by, few.caution < 0) == ("expected", True)


def test_what_was_not_timed_in_a_regime_is_not_expected_there() -> None:
    survey = survey_of(drawn(200, 1), ("small", "large", "middle"))
    costs = {
        n: {c: t for c, t in row.items() if c != "small" or survey.facts[n]["M"] <= 16}
        for n, row in survey.costs.items()
    }
    found = decided(
        dataclasses.replace(survey, costs=costs), regimes=REGIMES, limits=ChoiceLimits(regret=0.0, worst=0.0)
    )
    regimes = {e.candidate: e.regimes for e in found.expected}
    assert regimes == {"small": {"few"}, "large": {"few", "many"}, "middle": {"few", "many"}}


def test_what_was_timed_elsewhere_comes_before_the_generic_variant() -> None:
    survey = survey_of(drawn(200, 1), ("small", "large", "middle"))
    costs = {
        n: {c: t for c, t in row.items() if (c == "small") == (survey.facts[n]["M"] <= 16) or c == "middle"}
        for n, row in survey.costs.items()
    }
    found = decided(
        dataclasses.replace(survey, costs=costs),
        {"M=16 N=4096 K=4096": {"small": 1.0, "middle": 2.0}},
        regimes=REGIMES,
        limits=ChoiceLimits(regret=0.0, worst=0.0),
        generic=frozenset({"middle"}),
    )
    facts = GEMM.facts(problem(M=5, N=4096, K=4096))
    refused = {"small": (M > 16,)}
    assert "large" not in ranked(found, "", facts, always)
    assert ranked(found, "", facts, lambda c: refused.get(c, ()))[:2] == ("large", "middle")


def test_a_generic_variant_that_never_was_the_fastest_is_not_expected_to_be() -> None:
    """Times of few others may be expected to be longer where they were not measured."""
    for slower, modelled in ((10.0, False), (1.0, True)):
        survey = survey_of(drawn(120, 1), ("small", "large", "middle"))
        costs = {n: {**row, "middle": slower * min(row.values())} for n, row in survey.costs.items()}
        found = decided(dataclasses.replace(survey, costs=costs), generic=frozenset({"middle"}))
        assert ("middle" in {e.candidate for e in found.expected}) is modelled
        facts = GEMM.facts(problem(M=5, N=64, K=64))
        assert ranked(found, "", facts, lambda c: (M > 16,) if c != "middle" else ()) == ("middle",)


def test_where_the_vendor_was_not_timed_it_does_not_decide() -> None:
    survey = surveyed(by_divisors, by_chance, "small", "large", "vendor")
    costs = {
        n: {c: t for c, t in row.items() if c != "vendor" or survey.facts[n]["M"] > 16}
        for n, row in survey.costs.items()
    }
    found = decided(dataclasses.replace(survey, costs=costs), regimes=REGIMES)
    assert {e.candidate: e.regimes for e in found.expected}["vendor"] == {"many", OTHER}
    few = found.rules[(), "few"]
    assert (few.by, few.caution) == ("expected", 0)


def test_a_tuned_problem_is_nearer_than_a_shape_like_it() -> None:
    shape = problem(M=16, N=4096, K=4096)
    assert not is_held_out(shape.id)
    survey = Survey({shape.id: {"large": 1.0, "small": 2.0}}, {shape.id: GEMM.facts(shape)}, {}, always)
    found = decided(survey, {"tuned": {"small": 1.0, "large": 2.0}})
    assert found.nearest is not None
    assert found.nearest.by_problem == {"tuned": ("small", "large")}


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
