"""The search in the pipeline: what strategies are told, that they are asked step by step, and what records suggest."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from databases import POLICY
from pipelines import OPERATOR, measured

from aot_tune.bench.protocol.measurement_records import Device, Measurement
from aot_tune.compile import Object
from aot_tune.database import CandidateRecord, OperatorDatabase
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.scheduling.tune import tune
from aot_tune.pipeline.session import Session
from aot_tune.plan.library_plan import Request, make_plan
from aot_tune.render import Candidate, Rendered
from aot_tune.spec import Config, Problem
from aot_tune.support.progress import Progress

ONE, TWO = OPERATOR.workload


def variant(width: int, dtype: str = "f32") -> Entry:
    candidate = Candidate(
        operator="scale", kernel="fast", backend="cxx", target="t", config={"W": width}, dtypes={"T": dtype}
    )
    return Entry(candidate, Rendered(candidate=candidate, source="", digest="", symbol="s", lines=[]), ())


def database(device: Device, *times: tuple[int, Problem, float]) -> OperatorDatabase:
    entries = {width: variant(width) for width, _, _ in times}
    return OperatorDatabase(
        operator="scale",
        contract="c",
        device=device,
        policy={},
        policy_digest=POLICY.digest,
        toolchains={},
        baselines={},
        candidates=tuple(
            CandidateRecord(candidate=e.candidate, source="s", object="o", status="ok") for e in entries.values()
        ),
        problems=(ONE, TWO),
        measurements=tuple(measured(entries[width], where, (time,)) for width, where, time in times),
    )


class Bench:
    """Stands in for the pool, its compilers and its device: configs have made-up costs, and each takes a second."""

    def __init__(self, cost: Callable[[Config], float]) -> None:
        self.cost, self.now = cost, 0.0
        self.steps: list[list[Candidate]] = []
        self.tuned: float | None = None

    @contextmanager
    def pool(self, session: Session, devices: list[Device]) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(device=devices[0], members=[None], reused=0, measured=0)
        self.tuned = session.tuned

    def within(self, session: Session, _pool: object, pairs: list) -> SimpleNamespace:
        return SimpleNamespace(
            run=lambda entries: self.measure(session, None, pairs, entries, None), finish=lambda: None
        )

    def measure(self, _session: Session, _measurer: None, pairs: list, entries: list[Entry], _target: object) -> None:
        self.steps.append([e.candidate for e in entries if not e.candidate.generic])
        for entry in entries:
            self.now += 1.0
            entry.object = made(entry)
            for _, found in pairs:
                for where in found.workload[:2]:
                    if entry.candidate.id in found.entries and found.meant_for(entry, where):
                        found.add(timed(entry, where, self.cost(entry.candidate.config)))


def made(entry: Entry) -> Object:
    return Object(
        key="k",
        path="p",
        digest=entry.candidate.id,
        symbol="s",
        source="s",
        target="t",
        status="ok",
        error="",
        cached=True,
    )


def timed(entry: Entry, where: Problem, cost: float) -> Measurement:
    return measured(entry, where, () if math.isinf(cost) else (cost,), status="failed" if math.isinf(cost) else "ok")


def packed(config: Config) -> float:
    """The farther the numbers of a config are from 3, the more it costs."""
    return 100.0 + sum(20.0 * abs(math.log2(v + 1) - 2.0) for v in config.values() if isinstance(v, int))


def tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *operators: str, **options: str
) -> tuple[Bench, list[Evidence]]:
    """What is found of the last of some operators."""
    given = {"AOT_TUNE_TARGETS": "cpu-x86-64", "AOT_TUNE_CACHE": "off", "AOT_TUNE_MODE": "tune", **options}
    request = Request(name="ops", prefix="ops", header="ops.h", operators=operators, options=given)
    plan, paths, _ = make_plan(request, {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    session, bench = Session(plan, paths, Progress()), Bench(packed)
    try:
        session.budget._clock = lambda: bench.now
        session.budget._start = 0.0
        module = sys.modules["aot_tune.pipeline.scheduling.tune"]  # the package has a function of that name
        monkeypatch.setattr(module, "DevicePool", bench.pool)
        monkeypatch.setattr(module, "one_after_the_other", bench.measure)
        monkeypatch.setattr(module, "BudgetTuning", bench.within)
        monkeypatch.setattr(session, "compile", lambda entries, *_: [setattr(e, "object", made(e)) for e in entries])
        return bench, tune(session)[operators[-1]]
    finally:
        session.close()


@pytest.mark.slow
def test_under_a_budget_a_thorough_search_goes_step_by_step_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"AOT_TUNE_EFFORT": "thorough", "AOT_TUNE_BUDGET": "100", "AOT_TUNE_FILTER": "gemm/packed"}
    bench, _ = tuned(tmp_path, monkeypatch, "gemm", **options)
    tried = [c for step in bench.steps for c in step]
    assert len({c.id for c in tried}) == len(tried)
    assert len(bench.steps) > 1
    assert bench.now <= 100
    assert bench.tuned is not None  # before workers are ended and their files removed, which the link's time counts
    costs = [packed(c.config) for c in tried]
    assert min(costs) < min(costs[: len(bench.steps[0])])


def test_operators_that_the_filter_leaves_out_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"AOT_TUNE_FILTER": "softmax/*", "AOT_TUNE_BUDGET": "40"}
    bench, (found,) = tuned(tmp_path, monkeypatch, "softmax", "silu_mul", **options)
    assert {c.operator for step in bench.steps for c in step} == {"softmax"}
    assert (found.workload, found.measurements) == ((), {})
    assert all(e.candidate.generic for e in found.entries.values())
    assert len(found.unserved) == len(found.entries) > 0  # to be verified in the same time
    assert found.note == "not tuned for cpu-x86-64, the generic variant serves: AOT_TUNE_FILTER names no kernel there"
