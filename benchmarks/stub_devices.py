"""Devices that only take time, to see how several are kept busy: SIMULATED, on any machine.

Operators, candidates, pruning, queues, threads, benches, races and the store are those of a build. Two things are
simulated. Compilers take no time, because each object comes from the cache. Workers only sleep and answer: each request
sleeps for about as long as it took on an H100 (see `Costs`), by a simulated clock. Computing in the build's own process
counts on this clock too, with the time that it takes here.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import msgspec
from virtual_clock import VirtualClock

from aot_tune.bench.devices.cuda import device_of
from aot_tune.bench.devices.family import floor_of
from aot_tune.bench.host.bench import Bench
from aot_tune.bench.host.worker_process import Holdings
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Device, Role
from aot_tune.compile import Jobs, Object
from aot_tune.compile.batches import Task
from aot_tune.pipeline.evidence import Entry
from aot_tune.pipeline.measuring import bench_files, lazy_bench
from aot_tune.pipeline.scheduling.tune import tune_on
from aot_tune.pipeline.session import Session
from aot_tune.plan.library_plan import read_plan
from aot_tune.search import Budget
from aot_tune.spec import Operator, Problem, Target
from aot_tune.support.progress import Progress

__all__ = ["Costs", "tune_on_stubs"]

_GIB = float(1 << 30)


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a worker's steps, from a tune of 461 problems on one H100 with 7900 screens and 461 races.

    That tune spent 173 s on races, 81 on samples of screens, 77 on verification, 71 on references, 48 on odd problems.
    `first` is fitted: with a build from before 2026-11-28, four devices measure 72 problems 2.6 x as fast as one. A
    machine with four GPUs measured 2.64 x, and 1.75 x with two.


    Args:
        start: starting a worker, until it answers.
        first: an operator's first reference in a worker, and each baseline's first problem there.
        reference, prepare: for a problem. Each GiB of its tensors, with outputs in f64, adds `per_gib`.
        load, check, verify, screen, turn: a request of that name. A race has 7 to 13 turns of each runner.
        hit: an object from the cache, until it is linked.
    """

    start: float = 5.0
    first: float = 1.2
    reference: float = 0.02
    prepare: float = 0.03
    per_gib: float = 0.2
    load: float = 0.004
    check: float = 0.06
    verify: float = 0.009
    screen: float = 0.01
    turn: float = 0.0075
    hit: float = 0.004


class _StubWorker(Holdings):
    """Knows what a worker would know. It is not a process."""

    state = "READY"

    def __init__(self, role: Role, ready: float) -> None:
        super().__init__()
        self.role, self.ready, self.pid = role, ready, 0
        self.operators, self.prepared = set[str](), set[str]()
        self.problems = dict[str, tuple[str, Problem]]()

    def kill(self) -> None:
        """Do nothing: there is no process."""


class _StubPool:
    """Answers as a pool of workers does, after the same time."""

    def __init__(self, bench: Bench, costs: Costs, clock: VirtualClock) -> None:
        self._bench, self._costs, self._clock, self.deaths = bench, costs, clock, 0
        self._workers: list[_StubWorker] = []

    def __enter__(self) -> _StubPool:
        self._bench.findings.folder.mkdir(parents=True, exist_ok=True)
        ready = self._clock.now() + self._costs.start
        self._workers = [_StubWorker("candidate", ready), _StubWorker("framework", ready)]
        return self

    def __exit__(self, *_failure: object) -> None:
        self._workers = []

    def workers(self) -> list[_StubWorker]:
        """None, because no signal can be sent to them."""
        return []

    def candidates(self) -> _StubWorker:
        """The worker for candidates, once it has started."""
        return self._awaited(0)

    def frameworks(self) -> _StubWorker:
        """The worker for references and baselines, once it has started."""
        return self._awaited(1)

    def _awaited(self, number: int) -> _StubWorker:
        worker = self._workers[number]
        self._clock.sleep(max(worker.ready - self._clock.now(), 0.0))
        return worker

    def settle(self) -> None:
        """Do nothing: nothing runs beside what is timed."""

    def quiet(self, _worker: _StubWorker) -> None:
        """Do nothing: nothing runs beside what is timed."""

    def refer(self, request: messages.Request, seconds: float) -> messages.Reply:
        """Ask for a reference."""
        return self.request(self.frameworks(), request, seconds)

    def request(self, worker: _StubWorker, request: messages.Request, _seconds: float) -> messages.Reply:
        """An answer that all is well."""
        seconds, reply = self._answer(worker, request)
        self._clock.sleep(seconds)
        return reply

    def _answer(self, worker: _StubWorker, request: messages.Request) -> tuple[float, messages.Reply]:
        costs, seconds = self._costs, 0.0
        reply: messages.Reply = messages.Done()
        match request:
            case messages.Reference(check=check, operator_folder=folder):
                seconds = self._first(worker, folder) + costs.reference + self._bytes(folder, check.problem)
            case messages.Work(key=key, check=check, operator_folder=folder):
                worker.problems[key] = folder, check.problem
            case messages.Prepare(key=key):
                if key not in worker.prepared:  # otherwise its buffers are kept
                    seconds = costs.prepare + self._bytes(*worker.problems[key])
                worker.prepared.add(key)
            case messages.Load():
                seconds = costs.load
            case messages.Verify(keys=keys, handle=handle):
                ns = self._ns(handle, *worker.problems[keys[-1]])
                seconds = costs.check if len(keys) > 1 else costs.verify
                reply = messages.Checked(status="ok", runs=(ns, ns))
            case messages.PrepareBaseline(key=key, name=name):
                seconds = self._first(worker, name) + costs.prepare + self._bytes(*worker.problems[key])
                reply = messages.Checked(status="ok")
            case messages.Screen(key=key, handle=handle) | messages.SurveyOne(key=key, handle=handle):
                seconds = costs.screen
                reply = messages.Timed(samples=(self._ns(handle, *worker.problems[key]),) * 4)
            case messages.Turn(key=key, handle=handle):
                seconds = costs.turn
                reply = messages.Timed(samples=(self._ns(handle, *worker.problems[key]),), mhz=1980.0)
        return seconds, reply

    def _first(self, worker: _StubWorker, what: str) -> float:
        new = what not in worker.operators
        worker.operators.add(what)
        return self._costs.first if new else 0.0

    def _operator(self, folder: str) -> Operator | None:
        return self._bench.context.operators.get(Path(folder).name)

    def _bytes(self, folder: str, problem: Problem) -> float:
        """Bytes of the problem's tensors, which are made or read."""
        operator = self._operator(folder)
        return 0.0 if operator is None else self._costs.per_gib * 2 * operator.compulsory_bytes(problem) / _GIB

    def _ns(self, handle: str, folder: str, problem: Problem) -> float:
        """A time for a config, by its digest: 1 to 4 x the best, and slightly different on each problem."""
        operator = self._operator(folder)
        floor = 1000.0 if operator is None else floor_of(self._bench.device, operator, problem)
        return max(floor, 500.0) * 1.5 * (1 + 3 * _share(handle) ** 2) * (1 + 0.1 * _share(f"{handle} {problem.id}"))


def _share(text: str) -> float:
    """A number from 0 to 1, the same for the same text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32


def _stubs(count: int) -> list[Device]:
    """`count` equal devices."""
    return [
        device_of(
            name="stub",
            uuid=f"stub-{os.getpid()}-{i}",
            capability=90,
            sm_count=132,
            l2_bytes=50 << 20,
            memory_bytes=80 << 30,
            driver="0",
        )
        for i in range(count)
    ]


class _StubSession(Session):
    """A session with simulated devices. The cache has all objects for them."""

    def use(self, devices: list[Device], costs: Costs, clock: VirtualClock) -> None:
        """Use these devices, and no others."""
        self.devices, self._costs, self._clock = devices, costs, clock

    def devices_for(self, target: Target) -> list[Device]:
        """These devices, for any GPU's target."""
        return [d for d in self.devices if d.family == target.family]

    def jobs_of(self, backend: str) -> Jobs:  # noqa: ARG002
        """Nothing is compiled."""
        return Jobs(count=2, reason="stub")

    def compile(
        self,
        entries: Iterable[Entry],
        what: str,  # noqa: ARG002
        ready: Callable[[Entry], None] | None = None,
        then: Callable[[Entry, Object], Task | None] | None = None,
    ) -> None:
        """Give each entry an object, one after the other."""
        for entry in [e for e in entries if e.object is None]:
            self._clock.sleep(self._costs.hit)
            digest = entry.rendered.digest
            symbol, target = entry.rendered.symbol, entry.candidate.target
            made = Object(key=digest, path=digest, digest=digest, symbol=symbol, source="", target=target, status="ok")
            if then is not None and (task := then(entry, made)) is not None:
                task()
            entry.has_become(made)
            if ready is not None:
                try:
                    ready(entry)
                except BaseException:
                    entry.has_become(None)
                    raise


def _stubbed(costs: Costs, clock: VirtualClock) -> ExitStack:
    """In the block, benches have no workers, and nothing is linked."""

    class _StubBench(Bench):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.context.pool = _StubPool(self, costs, clock)  # type: ignore[assignment]

    def link(files: Any, _backend: str, made: Object, *_options: object) -> Path:
        return cast(Path, files._linked.setdefault(made.digest, Path(made.digest)))

    stack = ExitStack()
    for owner, name, new in ((lazy_bench, "Bench", _StubBench), (bench_files.BenchFiles, "link", link)):
        stack.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, new)
    return stack


def tune_on_stubs(folder: Path, count: int, costs: Costs) -> str:
    """Tune the library planned in a folder on simulated devices. Returns what a build would print about it."""
    plan, paths = read_plan(folder)
    options = msgspec.structs.replace(plan.options, mode="tune", cache="off", cache_dir="")
    log, clock = io.StringIO(), VirtualClock()
    session = _StubSession(
        msgspec.structs.replace(plan, options=options), paths, Progress(log, clock.now), Budget(None)
    )
    session.use(_stubs(count), costs, clock)
    (target,) = (t for t in session.targets if t.family == "cuda")
    session.pending.begin(target.family)
    session.begin_turn(1, 0.0)
    try:
        with clock.running(), _stubbed(costs, clock):
            begun = clock.now()
            tune_on(session, target, session.devices_for(target), {name: [] for name in session.operators})
            session.progress.line(f"{target.name}: all of it took {clock.now() - begun:.1f} s")
    finally:
        session.close()
    return log.getvalue()
