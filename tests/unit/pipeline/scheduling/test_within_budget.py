"""A CPU tuned within a budget, on a clock that only compiles and measurements move on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aot_tune.bench.protocol.measurement_records import Measurement
from aot_tune.compile import Object
from aot_tune.compile.jobs import Jobs
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.measuring.measure import finalists
from aot_tune.pipeline.pending import PendingWork, task_of
from aot_tune.pipeline.scheduling import within_budget as budgeted
from aot_tune.pipeline.scheduling.within_budget import BudgetTuning
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.render import Candidate, Rendered
from aot_tune.search import Budget
from aot_tune.spec import Kernel, Operator, Parameter, Problem, Target, Tensor, dims, problem
from aot_tune.support.progress import Progress

(N,) = dims("N")
TARGET = Target(name="cpu-x86-64-v3", family="cpu", level=3)
COMPILE, RACE = 2.0, 8.0
"""Seconds of a compile, and of a race over those of a screen on the same problem."""


def operator(name: str, sizes: tuple[int, ...], weights: Mapping[str, float]) -> Operator:
    return Operator(
        weights=weights,
        name=name,
        dims=("N",),
        tensors=(Tensor("x", (N,)), Tensor("out", (N,), output=True)),
        reference=lambda xp, call: {"out": call.x},
        flops=N,
        workload=tuple(problem(N=n) for n in sizes),
        kernels=(
            Kernel("generic", "g.j2", generic=True),
            Kernel("rows", "r.j2", parameters=(Parameter("W", tuple(range(1, 9))),)),
            Kernel("brief", "s.j2", parameters=(Parameter("W", (1, 2)),), worthwhile=(N <= 1000,)),
        ),
    )


def entries_of(one: Operator) -> list[Entry]:
    found = []
    for kernel in one.kernels:
        for width in [0] if kernel.generic else kernel.parameters[0].values:
            candidate = Candidate(
                operator=one.name,
                kernel=kernel.name,
                backend="cxx",
                target=TARGET.name,
                config={"W": width},
                generic=kernel.generic,
            )
            symbol = f"{one.name}_{kernel.name}_{width}"
            rendered = Rendered(candidate=candidate, source=symbol, digest=symbol, symbol=symbol, lines=[])
            found.append(Entry(candidate=candidate, rendered=rendered, requires=()))
    return found


def ns(entry: Entry) -> float:
    width = cast(int, entry.candidate.config["W"])
    return 1000.0 if entry.candidate.generic else 100.0 + 40.0 * abs(width - 6)


class World:
    """The session, the pool and its only member: what was done, and when."""

    def __init__(
        self,
        seconds: float | None,
        *,
        stored: Iterable[str] = (),
        raced: bool = False,
        weights: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self.now, self.log, self.stored, self.raced = 0.0, [], set(stored), raced
        self.turn = Budget(seconds, lambda: self.now)
        self.progress = Progress(cast(Any, SimpleNamespace(write=len, flush=lambda: None)), lambda: self.now)
        self.pending = PendingWork(self.progress, self.turn)
        self.members = [self]
        self.overran = 0.0
        known = weights or {}
        both = operator("a", (10, 1000, 10**7), known.get("a", {})), operator("b", (10, 10**6), known.get("b", {}))
        self.operators = {o.name: LoadedOperator(Path(), o) for o in both}
        self.pairs = [
            (loaded, Evidence(loaded.operator, TARGET, {e.candidate.id: e for e in entries_of(loaded.operator)}))
            for loaded in self.operators.values()
        ]
        self.entries = [e for _, v in self.pairs for e in v.entries.values()]

    def jobs_of(self, _backend: str) -> Jobs:
        return Jobs(count=2, reason="")

    def keep(self, seconds: float) -> None:
        assert seconds == 0.0

    def interrupt(self) -> None:
        raise AssertionError("the clock stands still while nothing runs")

    def spend(self, seconds: float) -> None:
        self.now += seconds
        self.overran = max(self.overran, -(self.turn.seconds or self.now) + self.now)

    def compile(self, entries: list[Entry], what: str, ready: Callable[[Entry], None] = lambda _: None) -> None:
        assert len(entries) <= 4
        self.pending.compiling()
        for entry in entries:
            self.spend(COMPILE)
            self.log.append(f"compile {entry.rendered.symbol}")
            fields = {"key": "", "path": "x", "symbol": entry.rendered.symbol, "source": "", "target": ""}
            late = not self.turn.allows(1e-9)
            entry.object = Object(
                digest="" if late else entry.rendered.symbol, status="compile-failed" if late else "ok", **fields
            )
            self.pending.compiled(self.operators[entry.candidate.operator].operator, entry)
            ready(entry)

    def recall(self, _loaded: object, evidence: Evidence, where: Problem, entry: Entry) -> bool:
        known = entry.rendered.symbol in self.stored
        if known:
            self._take(evidence, where, entry)
        return known

    def screen(self, loaded: LoadedOperator, evidence: Evidence, where: Problem, entries: list[Entry]) -> None:
        task = task_of(loaded.operator, where)
        seconds, beside = 0.05 + 1e-8 * task.size, 0.0 if task in self.pending.durations.prepared else 2e-8 * task.size
        for entry in entries:
            self.spend(seconds + beside)
            self.log.append(f"screen {entry.rendered.symbol} {where.id}")
            self._take(evidence, where, entry)
            self.pending.screened(task, seconds, beside, "")

    def verify(self, entries: Iterable[Entry]) -> None:
        self.log += [f"verify {e.rendered.symbol}" for e in entries]

    def _take(self, evidence: Evidence, where: Problem, entry: Entry) -> None:
        evidence.add(self._measurement(where, entry, screen=(ns(entry),) * 4))
        evidence.fresh.setdefault(where.id, set()).add(entry.candidate.id)

    def knows_race(self, _loaded: object, _where: Problem, entrants: list[Entry]) -> bool:
        return self.raced and all(e.rendered.symbol in self.stored for e in entrants)

    def race(self, loaded: LoadedOperator, evidence: Evidence, where: Problem) -> None:
        seconds = 0.0 if self.raced else RACE * (0.05 + 1e-8 * task_of(loaded.operator, where).size)
        self.spend(seconds)
        self.log.append(f"race {loaded.operator.name} {where.id}")
        for entry in finalists(evidence, where):
            evidence.add(self._measurement(where, entry, final=(ns(entry),) * 4, race="r"))
        evidence.fresh.pop(where.id, None)
        self.pending.raced(task_of(loaded.operator, where), seconds, 0.0)

    def _measurement(self, where: Problem, entry: Entry, **fields: Any) -> Measurement:
        return Measurement(
            candidate=entry.candidate.id,
            code=entry.code,
            problem=where,
            device="d",
            policy="p",
            status="ok",
            **fields,
        )

    def tune(self, monkeypatch: pytest.MonkeyPatch) -> World:
        """What a build with a budget does: generic variants first, then the rest, then what only the report needs."""
        monkeypatch.setattr(budgeted, "seconds_after", lambda _: 0.0)
        self.compile([e for e in self.entries if e.candidate.generic], "generic")
        within = BudgetTuning(cast(Session, self), cast(DevicePool, self), self.pairs)
        entries = [e for e in self.entries if e.object is None]
        self.pending.expect([v for _, v in self.pairs], entries)
        within.run(entries)
        self.log.append("finish")
        within.finish()
        return self

    def winners(self) -> dict[str, float]:
        return {f"{v.operator.name} {p}": min(row.values()) for _, v in self.pairs for p, row in v.times().items()}


def test_with_enough_time_everything_is_measured_and_raced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1000.0).tune(monkeypatch)
    screens = [line for line in world.log if line.startswith("screen")]
    assert len(screens) == len(set(screens)) == 3 * 11 + 2 * 9
    assert set(world.winners().values()) == {100.0}
    assert {line for line in world.log if line.startswith("race")} >= {"race a N=10", "race b N=1000000"}
    assert all(v.note == "" for _, v in world.pairs)
    assert not world.pending.anything


@pytest.mark.parametrize("seconds", [9.0, 15.0, 25.0, 40.0])
def test_nothing_begins_that_what_was_seen_says_ends_too_late(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(seconds).tune(monkeypatch)
    assert world.overran <= 0.05 * seconds
    assert world.now >= 0.75 * seconds


def test_a_short_budget_serves_every_operator_before_any_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(16.0).tune(monkeypatch)
    tried = [line for line in world.log if line.startswith("screen") and "generic" not in line]
    assert {line.split()[1][0] for line in tried[:2]} == {"a", "b"}
    assert len(world.winners()) >= 4


def tried(log: list[str]) -> list[str]:
    """The problems of the screens, without those of generic variants, by operator and id."""
    lines = (line.split() for line in log if line.startswith("screen") and "generic" not in line)
    return [f"{symbol[0]} {where}" for _, symbol, where in lines]


@pytest.mark.parametrize("heavy", ["a N=10", "a N=1000", "a N=10000000", "b N=1000000"])
def test_the_heaviest_problem_is_begun_first(heavy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large it is; and a budget that ends before the others have theirs has tried more on it."""
    name, _, where = heavy.partition(" ")
    plain = World(60.0).tune(monkeypatch)
    world = World(60.0, weights={name: {where: 1000.0}}).tune(monkeypatch)
    assert tried(world.log)[0] == heavy
    assert tried(world.log).index(heavy) <= tried(plain.log).index(heavy)
    cut = len(tried(plain.log)) // 2
    assert tried(world.log)[:cut].count(heavy) >= tried(plain.log)[:cut].count(heavy)
