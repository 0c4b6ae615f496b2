"""Surveys: one with little time is planned so that what is begun fits; what a budget cut off does not count."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from bundled import OPERATORS
from hypothesis import given, settings
from hypothesis import strategies as st

from aot_tune.bench.protocol.measurement_records import Device, Measurement, Policy
from aot_tune.compile import Variant, target_by_name
from aot_tune.database.checks import tuned_kernels
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.failures import Failures
from aot_tune.pipeline.shipping import survey
from aot_tune.pipeline.shipping.survey import Surveying
from aot_tune.pipeline.shipping.surveyed_shapes import HANDFUL, Shapes, drawn_shapes, plan, told_gaps
from aot_tune.render import Rendered, candidate_for
from aot_tune.select.decide import is_held_out
from aot_tune.spec import Problem, dim, problem
from aot_tune.spec.regimes import OTHER, regime_of
from aot_tune.spec.survey_shapes import kind_of, survey_shapes
from aot_tune.support.errors import AotTuneError

shapes = st.lists(st.tuples(st.tuples(st.floats(0, 16), st.floats(0, 16)), st.floats(1e-3, 30.0)), max_size=40).map(
    lambda found: Shapes([p for p, _ in found], [s for _, s in found])
)


def spent(kinds: list[Shapes]) -> float:
    return sum(kind.seconds[n] for kind in kinds for n in kind.chosen)


@settings(max_examples=20)
@given(st.lists(shapes, max_size=8), st.floats(0.1, 60.0))
def test_a_plan_fits_its_seconds_and_has_no_shape_twice(kinds: list[Shapes], seconds: float) -> None:
    plan(kinds, seconds)
    assert spent(kinds) <= seconds * (1 + 1e-9)
    assert all(len(set(kind.chosen)) == len(kind.chosen) for kind in kinds)


@settings(max_examples=20)
@given(st.lists(shapes, min_size=1, max_size=8), st.floats(0.1, 60.0))
def test_each_kind_gets_a_handful_of_what_does_not_take_too_long(kinds: list[Shapes], seconds: float) -> None:
    plan(kinds, seconds)
    share = seconds / len(kinds) / HANDFUL
    for kind in kinds:
        able = sum(s <= share for s in kind.seconds)
        assert len(kind.chosen) >= min(able, HANDFUL)
        assert all(kind.seconds[n] <= share for n in kind.chosen)


def line(count: int, known: tuple[float, ...] = (), slow: frozenset[int] = frozenset()) -> Shapes:
    """Shapes that differ in one extent, from 1 to 2^(count - 1). Each takes a little longer than the one before."""
    seconds = [(9.0 if n in slow else 1.0) + n / 1000 for n in range(count)]
    return Shapes([[float(n)] for n in range(count)], seconds, [[k] for k in known])


def test_both_extremes_come_first_and_then_what_is_far_from_all_that_is_known() -> None:
    kind = line(17)
    for _ in range(4):
        kind.choose(math.inf)
    assert kind.chosen[:2] == [0, 16]
    assert 5 <= kind.chosen[2] <= 8
    assert abs(kind.chosen[3] - 12) <= 2


def test_a_shape_that_a_lost_device_had_is_the_same_job_on_another() -> None:
    """So a shape that no device stands is found, before all of them are given up."""
    session: Any = SimpleNamespace(progress=SimpleNamespace(now=lambda: 0.0, count=lambda *_a, **_k: None))
    problems = [SimpleNamespace(id=f"N={n}") for n in range(4)]
    part: Any = SimpleNamespace(
        evidence=None, problems=problems, scouted=problems[:2], share=1.0, lacks=lambda _p: True, settle=lambda: None
    )
    surveying = Surveying(session, [part], 60.0)
    first, other = surveying.job("a"), surveying.job("b")
    assert first is not None
    assert other is not None
    surveying.lost("a", first)
    again = surveying.job("b")
    assert again is not None
    assert (again.number, again.problem) == (first.number, first.problem)
    for job in (again, other):
        surveying.measured(job)
    later = [job for _ in range(2) if (job := surveying.job("b")) is not None]
    assert len({job.number for job in (first, other, *later)}) == 4


def test_the_time_in_which_another_build_has_the_device_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    progress = SimpleNamespace(now=lambda: clock[0], count=lambda *_a, **_k: None)
    problems = [SimpleNamespace(id=f"N={n}") for n in range(9)]
    part: Any = SimpleNamespace(evidence=None, problems=problems, scouted=problems, share=1.0, lacks=lambda _p: True)
    part.settle, part.variants = (lambda: None), list
    session: Any = SimpleNamespace(progress=progress)
    surveying = Surveying(session, [part], 60.0)
    assert surveying.batch() is None
    monkeypatch.setattr(survey, "survey_one", lambda *_a: None)
    bench = SimpleNamespace(since=math.inf)

    def surveys(until: float, *, over: bool = False) -> None:
        job = surveying.job("a")
        assert job is not None
        clock[0], bench.since = until, 450.0
        job.do(SimpleNamespace(bench=bench, turn=SimpleNamespace(over=over)))
        surveying.measured(job)

    surveys(452.0)
    surveys(509.0)
    surveys(511.0)
    assert surveying.job("a") is None
    clock[0] = 480.0
    surveys(481.0, over=True)  # nothing is left of what the budget has for it
    assert surveying.job("a") is None


@pytest.fixture
def evidence() -> Evidence:
    """Two regimes, with tuned problems on which one kernel is far behind the other."""
    operator = dataclasses.replace(OPERATORS["softmax"], regimes={"short": (dim("D") <= 1024,)})
    target, variants = target_by_name("cpu-x86-64-v3"), dict[str, Variant]()
    for kernel in tuned_kernels(operator, target)[:2]:
        candidate = candidate_for(operator, kernel, next(kernel.configs(target.facts)), target, None, {"T": "f32"})
        rendered = Rendered(candidate=candidate, source="", digest="", symbol="s", lines=[])
        variants[candidate.id] = Variant(rendered=rendered, recorded=candidate.id)
    made = Evidence(operator, target, variants)
    for shape in made.workload:
        fields: Any = {"problem": shape, "device": "d", "policy": "p", "status": "ok"}
        if all(made.worth_a_try(variant, shape) for variant in variants.values()):
            for name, ns in zip(variants, (10.0, 1000.0), strict=True):
                made.add(Measurement(candidate=name, code=name, screen=(ns,), **fields))
    return made


def parts_of(evidence: Evidence) -> list[Any]:
    kernels = tuned_kernels(evidence.operator, evidence.target)
    return list(survey.parts_of(evidence, survey_shapes(evidence.operator, "cpu", 40, kernels)))


def test_an_operator_without_a_shape_that_kernels_take_is_told_of(evidence: Evidence) -> None:
    nothing = dataclasses.replace(evidence.operator, expected=(dim("D") < 0,))
    lines: list[str] = []
    session: Any = SimpleNamespace(progress=SimpleNamespace(line=lines.append))
    assert not any(drawn_shapes(session, dataclasses.replace(evidence, operator=nothing), 8).values())
    (line,) = lines
    assert line.startswith("NOTE softmax on cpu-x86-64-v3: there is no shape within its ranges and values")
    assert line.endswith("Compare ranges and values with what kernels require")


def test_what_the_workload_says_nothing_of_is_told(evidence: Evidence) -> None:
    operator = evidence.operator
    wide, other = (k.name for k in tuned_kernels(operator, evidence.target)[:2])
    kernels = [
        dataclasses.replace(k, worthwhile=(dim("D") > 100_000,)) if k.name == wide else k for k in operator.kernels
    ]
    workload = {"cpu": (problem(R=64, D=512), problem(R=64, D=90_000))}
    less = dataclasses.replace(operator, kernels=tuple(kernels), workload=workload)
    drawn = survey_shapes(less, "cpu", 40, tuned_kernels(less, evidence.target))
    assert any(p.dims["D"] > 100_000 for (shapes,) in [drawn.values()] for p in shapes)
    untried = told_gaps(dataclasses.replace(evidence, operator=less), drawn)
    assert any(f"the workload has no problem for {wide}, but calls such as 'R=" in line for line in untried)
    assert not any(f"for {other}" in line for line in untried)
    only = dataclasses.replace(
        evidence, operator=less, variants={i: v for i, v in evidence.variants.items() if v.candidate.kernel == wide}
    )
    (_, bare) = told_gaps(only, drawn)
    (shapes,) = drawn.values()
    others = sum(p.dims["D"] <= 100_000 for p in shapes)
    assert bare.startswith(
        f"T=f32: only the generic variant serves {others} of {len(shapes)} drawn shapes, such as 'R="
    )


def test_a_shape_that_no_leading_candidate_serves_is_surveyed_with_another(evidence: Evidence) -> None:
    lead, spare = evidence.variants
    short = evidence.variants[lead].candidate.kernel
    kernels = [
        dataclasses.replace(k, worthwhile=(dim("D") <= 900,)) if k.name == short else k
        for k in evidence.operator.kernels
    ]
    narrow = dataclasses.replace(evidence, operator=dataclasses.replace(evidence.operator, kernels=tuple(kernels)))
    part = next(p for p in parts_of(narrow) if any(q.dims["D"] > 900 for q in p.problems))
    part.settle(1)
    assert part.chosen == [lead, spare]


def test_shapes_that_are_held_out_do_not_choose_what_is_surveyed(evidence: Evidence) -> None:
    good, bad = evidence.variants
    part, *_ = parts_of(evidence)
    fresh = [p for p in part.problems if p.id not in part.rows]
    assert part.scouted
    assert not any(is_held_out(p.id) for p in part.scouted if p in fresh)
    times = {True: {good: 1000.0, bad: 10.0}, False: {good: 10.0, bad: 1000.0}}
    evidence.add_survey([(p, times[is_held_out(p.id)]) for p in fresh])
    part.settle(1)
    assert part.chosen == [good]


def test_a_second_plan_goes_on_with_the_candidates_of_the_first(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, other = evidence.variants
    shape = next(p for p in parts_of(evidence)[0].problems if p.id not in {q.id for q in evidence.workload})
    evidence.add_survey([(shape, {other: 5.0})])
    monkeypatch.setattr(survey, "LEADERS", 1)
    part, *_ = parts_of(evidence)
    survey.planned([part], 5.0)
    assert part.chosen == [other]
    assert part.problems
    assert shape not in part.problems
    assert evidence.surveyed.times[shape.id] == {other: 5.0}


def test_regimes_that_lose_too_much_get_more_shapes_within_what_a_budget_has_for_surveys(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, asked = evidence.operator, list[tuple[float, set[str]]]()

    class Surveyed:
        def __init__(self, _session: object, parts: Sequence[Any], seconds: float) -> None:
            asked.append((seconds, {regime_of(operator, operator.facts(p)) for part in parts for p in part.problems}))

        def on(self, _devices: object) -> float:
            return 12.0

    monkeypatch.setattr(survey, "Surveying", Surveyed)
    monkeypatch.setattr(survey, "seconds_after", lambda _session: 0.0)
    device = Device(family="cpu", name="this", slug="this", unit="", identity={"threads": 2})
    session: Any = SimpleNamespace(
        options=SimpleNamespace(survey=None, effort="default", mode="tune"),
        plan=SimpleNamespace(may_measure=True),
        devices_for=lambda _target: [device],
        databases=(),
        policy=lambda _family: Policy(),
        progress=SimpleNamespace(line=lambda _line: None),
        time=SimpleNamespace(budget=SimpleNamespace(seconds=100.0, left=90.0)),
    )
    kind, *_ = (kind_of(operator, operator.facts(p)) for part in parts_of(evidence) for p in part.problems)
    survey.survey_all(session, {"softmax": [evidence]}, 1000.0, lambda _evidence: {(kind, "short")})
    assert asked == [(15.0, {"short", OTHER}), (3.0, {"short"})]


class _Bench:
    """Gives each candidate 10 ns, unless it is cut: then the last one dies with its worker, or the bench does."""

    device: Any = SimpleNamespace(family="cpu")
    since = 0.0

    def __init__(self, cut: str) -> None:
        self.cut = cut

    def get(self) -> _Bench:
        return self

    def linked(self, variant: Variant, _evidence: Evidence) -> Variant:
        return variant

    def survey(self, _operator: object, shape: Problem, variants: Sequence[Variant]) -> list[Measurement]:
        if self.cut == "bench":
            raise AotTuneError("the workers are gone")
        fields: Any = {"code": "", "problem": shape, "device": "d", "policy": "p"}
        killed: Any = {"status": "crashed", "reason": "killed by SIGKILL"} if self.cut == "worker" else {}
        good: Any = {"status": "ok", "screen": (10.0,)}
        last = variants[-1].id
        return [Measurement(candidate=v.id, **fields, **(killed or good if v.id == last else good)) for v in variants]


@pytest.mark.parametrize(
    ("cut", "left", "times"),
    [("", 0.0, 2), ("bench", 0.0, None), ("worker", 0.0, None), ("worker", 60.0, 1)],
    ids=["not cut", "no worker is left", "a worker is killed", "a candidate kills its worker"],
)
def test_a_shape_that_a_budget_cut_off_does_not_count(cut: str, left: float, times: int | None) -> None:
    softmax, target, shape = OPERATORS["softmax"], target_by_name("cpu-x86-64-v3"), problem(R=3, D=5)
    kernels = [k for k in softmax.kernels if k.backend == "cxx"][:2]
    candidates = [candidate_for(softmax, k, {}, target, shape, {"T": "f32"}) for k in kernels]
    rendered = [Rendered(candidate=c, source="", digest="", symbol="s", lines=[]) for c in candidates]
    variants = [Variant(rendered=r) for r in rendered]
    evidence, stored = Evidence(softmax, target, {v.id: v for v in variants}), list[Sequence[Measurement]]()
    store = SimpleNamespace(find_race=lambda *_a: None, put_race=lambda race, _v: stored.append(race))
    session: Any = SimpleNamespace(
        progress=SimpleNamespace(now=lambda: 0.0, count=lambda *_a, **_k: None),
        failures=Failures(),
        store=SimpleNamespace(operator=lambda *_a, **_k: store),
        policy=lambda _family: Policy(),
    )
    part: Any = SimpleNamespace(
        evidence=evidence,
        problems=[shape],
        scouted=[shape],
        share=1.0,
        lacks=lambda _p: True,
        settle=lambda: None,
        tried=lambda _p: variants,
    )
    job = Surveying(session, [part], 60.0).job("a")
    assert job is not None
    job.do(SimpleNamespace(bench=_Bench(cut), turn=SimpleNamespace(over=left <= 0), log=lambda *_: None))
    row = evidence.surveyed.times.get(shape.id)
    assert (row if row is None else len(row)) == times
    assert len(stored) == (times == 2)
