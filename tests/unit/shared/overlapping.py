"""A session, a compiler and a device that are made up, for tests of screening while other candidates still compile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from aot_tune.bench.protocol.measurement_records import Measurement
from aot_tune.compile import Jobs, Object
from aot_tune.compile.batches import Task
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.measuring.measure import finalists
from aot_tune.pipeline.measuring.pool_jobs import Job, More
from aot_tune.pipeline.records.lookup import Known
from aot_tune.pipeline.scheduling.overlapped import measure_overlapped
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.render import Candidate, Rendered, requirements
from aot_tune.search import Budget
from aot_tune.search import Task as ProblemTask
from aot_tune.spec import Kernel, Operator, Parameter, Problem, Target, Tensor, dims, problem

(N,) = dims("N")
TARGET = Target(name="cuda-sm_90a", family="cuda", level=90, last=90)
OPERATOR = Operator(
    name="scale",
    dims=("N",),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(Tensor("x", (N,), "T"), Tensor("out", (N,), "T", output=True)),
    reference=lambda xp, call: {"out": call.x},
    flops=N,
    workload={"cuda": (problem(N=8), problem(N=64), problem(N=8, dtypes={"T": "f16"}))},
    kernels=(
        Kernel("generic", "g.cu.j2", backend="nvcc", generic=True),
        Kernel(
            "slow",
            "s.cu.j2",
            backend="nvcc",
            parameters=(Parameter("W", (1, 2, 3)),),
            follows={"f16": "bf16"},
            compile_seconds=40.0,
        ),
        Kernel("quick", "q.cu.j2", backend="nvcc", dtypes={"T": ("bf16",)}, compile_seconds=1.0),
        Kernel("vendor", "v.cpp.j2", backend="cublaslt", dtypes={"T": ("bf16",)}, algorithms=lambda _: None),
    ),
)
TIMES = {1: 100.0, 2: 101.0, 3: 150.0}
"""Of the kernel `slow` by its W: the first two are among the best, the third is not."""


def entry(kernel: str, dtype: str, width: int = 0) -> Entry:
    candidate = Candidate(
        operator="scale",
        kernel=kernel,
        backend="nvcc",
        target=TARGET.name,
        config={"W": width} if width else {},
        generic=kernel == "generic",
        dtypes={"T": dtype},
    )
    symbol = f"{kernel}_{dtype}_{width}"
    rendered = Rendered(candidate=candidate, source=symbol, digest=symbol, symbol=symbol, lines=[])
    return Entry(candidate=candidate, rendered=rendered, requires=requirements(OPERATOR, candidate))


class World:
    """A session, a pool and a measurer that only note what they are asked for."""

    def __init__(
        self,
        budget: float | None = None,
        delay: float = 0.0,
        fault: BaseException | None = None,
    ) -> None:
        self.compiled: list[str] = []
        self.screened: list[tuple[str, str]] = []
        self.raced: list[str] = []
        self.delay, self.fault, self.busy = delay, fault, False
        self.main = threading.get_ident()
        self.turn = Budget(budget)
        self.pending = SimpleNamespace(races=self.races, anything=True)
        self.progress = SimpleNamespace(now=time.monotonic)
        self.operators = {"scale": SimpleNamespace(operator=OPERATOR)}
        self.shared = SimpleNamespace(link=lambda *_: None, is_linked=lambda _: True)
        self.members = [self]

    def jobs_of(self, _backend: str) -> Jobs:
        return Jobs(count=2, reason="")

    def knows(self, *_: object) -> bool:
        return False

    knows_race = knows

    def compile(
        self,
        entries: Iterable[Entry],
        what: str,
        ready: Callable[[Entry], None] = lambda _entry: None,
        then: Callable[[Entry, Object], Task | None] = lambda _entry, _made: None,
    ) -> None:
        assert (threading.get_ident() == self.main) == (what in ("finalists", "generic"))
        self.busy = True
        try:
            self._compile(entries, ready, then)
        finally:
            self.busy = False

    def _compile(
        self,
        entries: Iterable[Entry],
        ready: Callable[[Entry], None],
        then: Callable[[Entry, Object], Task | None],
    ) -> None:
        for one in entries:
            if one.object is not None:
                continue
            time.sleep(self.delay)
            if self.fault is not None:
                raise self.fault
            self.compiled.append(one.rendered.symbol)
            made = Object(
                key="",
                path="x",
                digest=one.rendered.symbol,
                symbol=one.rendered.symbol,
                source="",
                target=TARGET.name,
                status="ok",
                error="",
                cached=False,
            )
            task = then(one, made)
            if task is not None:
                task()
            one.object = made
            try:
                ready(one)
            except BaseException:
                one.object = None
                raise

    def races(self) -> dict[ProblemTask, float]:
        """What waits: a problem may race once it has two screens."""
        places = [where for where, _ in self.screened]
        due = {w for w in places if places.count(w) > 1 and w not in self.raced}
        return {ProblemTask("scale", w, 1.0): 0.0 for w in due}

    def each(
        self,
        jobs: Iterable[tuple[int, Job]],
        more: More = lambda: (),
        of: Callable[[int], str] = lambda _number: "",
    ) -> None:
        """As a pool of one device."""
        waiting = list(jobs)
        while waiting or (waiting := list(more())):
            for number, job in waiting:
                of(number)
                job(cast(Any, self))
            waiting = []

    def spare(self, *_: object) -> None:
        pass

    verify = spare

    def screen(self, _loaded: object, evidence: Evidence, where: Problem, tried: list[Entry]) -> None:
        for one in tried:
            self.screened.append((where.id, one.rendered.symbol))
            width = cast(int, one.candidate.config.get("W", 0))
            evidence.add(
                Measurement(
                    candidate=one.candidate.id,
                    code=one.code,
                    problem=where,
                    device="d",
                    policy="p",
                    status="ok",
                    screen=(TIMES.get(width, 200.0),) * 4,
                )
            )
            evidence.fresh.setdefault(where.id, set()).add(one.candidate.id)

    def race(self, _loaded: object, evidence: Evidence, where: Problem) -> None:
        assert not self.busy  # compilers pause while there are finals
        self.raced.append(where.id)
        for one in finalists(evidence, where):
            told = evidence.measurements[where.id][one.candidate.id]
            times = (TIMES.get(cast(int, one.candidate.config.get("W", 0)), 200.0),) * 4
            evidence.add(msgspec.structs.replace(told, screen=(), final=times, race=f"{len(self.raced)}"))
        del evidence.fresh[where.id]

    def run(self, entries: list[Entry], evidence: Evidence | None = None) -> Evidence:
        evidence = evidence or Evidence(OPERATOR, TARGET, {e.candidate.id: e for e in entries})
        pairs = [(cast(LoadedOperator, SimpleNamespace(operator=OPERATOR)), evidence)]
        measure_overlapped(cast(Session, self), cast(DevicePool, self), pairs, entries)
        return evidence


def recorded(entries: list[Entry], names: Iterable[str]) -> Evidence:
    """Evidence whose candidates of these symbols are known from a record, races of the best included."""
    world, found = World(), Evidence(OPERATOR, TARGET, {e.candidate.id: e for e in entries})
    for one in entries:
        if one.rendered.symbol in names:
            one.recorded = one.rendered.symbol
    for where in found.workload:
        world.screen(None, found, where, found.tried(where))
        world.race(None, found, where)
    known = Known(tuple(m for row in found.measurements.values() for m in row.values()))
    evidence = Evidence(OPERATOR, TARGET, found.entries)
    assert known.give(evidence) == sum(map(len, found.measurements.values()))
    return evidence


def everyone() -> list[Entry]:
    slow = [entry("slow", dtype, width) for dtype in ("bf16", "f16") for width in TIMES]
    return [entry("generic", "bf16"), entry("generic", "f16"), entry("quick", "bf16"), *slow]
