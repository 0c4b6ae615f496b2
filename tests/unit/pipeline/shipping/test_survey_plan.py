"""Surveys: one with little time is planned so that what is begun fits; what a budget cut off does not count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from bundled import OPERATORS
from hypothesis import given, settings
from hypothesis import strategies as st

from aot_tune.bench.protocol.measurement_records import Measurement
from aot_tune.compile import Variant, target_by_name
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.failures import Failures
from aot_tune.pipeline.shipping.survey import HANDFUL, Shapes, Surveying, plan
from aot_tune.render import Rendered, candidate_for
from aot_tune.spec import Problem, problem
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


class _Bench:
    """Gives each candidate 10 ns, unless it is cut: then the last one dies with its worker, or the bench does."""

    device: Any = SimpleNamespace(family="cpu")

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
        time=SimpleNamespace(budget=SimpleNamespace(left=left)),
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
    job.do(SimpleNamespace(bench=_Bench(cut)))
    row = evidence.surveyed.times.get(shape.id)
    assert (row if row is None else len(row)) == times
    assert len(stored) == (times == 2)
