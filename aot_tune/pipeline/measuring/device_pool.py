"""The compilers and devices of one model that do what a plan wants, each in a thread; and whether devices agree."""

from __future__ import annotations

import contextlib
import math
import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from types import TracebackType

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Device, Measurement
from aot_tune.bench.times import median_error
from aot_tune.compile import Object, Variant
from aot_tune.compile.batches import Task
from aot_tune.pipeline.build_time import TuningTurn
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.measuring.builder import Arrived, CompileBatch, CompilersEnded, Event, Job, Measured
from aot_tune.pipeline.measuring.lazy_bench import BenchFiles, LazyBench
from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.pipeline.session import Session
from aot_tune.spec import Operator, Problem
from aot_tune.support.errors import AotTuneError, ToolchainError, WorkerError
from aot_tune.support.interrupts import AGAIN, end_all
from aot_tune.support.run_program import kill_running

_FLOOR = 0.03
"""Relative difference that equal devices may have, because each has its own clock."""

_BYTES = 1 << 26
"""A probe should move about this many bytes: more than caches hold, but little enough to be quick."""

_FLOPS_PER_BYTE = 16.0
"""More FLOPs per byte would make a generic kernel slow."""
_SCREENS = 3
_Probe = tuple[Operator, Problem, Variant]

_SLOW, _LARGE_PART = 10.0, 1 / 3
"""References of an operator that take so many seconds, and such a part of the measuring, are worth a line."""


def check_agreement(
    session: Session, pool: DevicePool, evidences: Sequence[Evidence], meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Leave out the devices of a pool whose time for a generic variant differs from the others', and say so.

    One device needs no check. If no probe runs on any device, all stay, and a line says that they were not compared. A
    probe that the end of the budget broke off says nothing, and nothing is measured after it. `meanwhile` is called
    when the probe is compiled, before the devices run it, because the compilers then have nothing to do.
    """
    if len(pool.devices) < 2:
        return
    probe = _probe(evidences)
    if probe is not None:
        operator, problem, generic = probe
        (generic,) = session.compile([generic], "probe", evidences)
        probe = operator, problem, generic
    meanwhile()
    probed: dict[int, Measurement | str] = {}
    if probe is not None and probe[2].compiled:
        pool.each_member(partial(_time, probed, pool.devices.index, probe))
    if pool.turn.over:
        return
    times = {i: m for i, m in probed.items() if isinstance(m, Measurement)}
    if not times:
        session.progress.line(f"NOTE no probe ran on any of the {len(pool.devices)} devices: they count as equal")
        return
    ratios = _deviations(times)
    for i, member in reversed(list(enumerate(pool.devices))):
        told = probed.get(i, "it gave no time")
        if i in times and abs(ratios[i][0] - 1.0) <= ratios[i][1]:
            continue
        why = told if isinstance(told, str) else f"it takes {ratios[i][0]:.3f} x the others' time for the same probe"
        session.progress.line(
            f"LEFT OUT {member.bench.device.name} {member.bench.device.unit}: {why}; nothing is measured on it"
        )
        pool.leave_out(member)
    if len(pool.devices) > 1:
        kept = ", ".join(f"{ratios[i][0]:.3f}" for i in sorted(times) if abs(ratios[i][0] - 1.0) <= ratios[i][1])
        session.progress.line(f"{len(pool.devices)} devices agree on a probe: {kept} x its median time")


def _deviations(times: Mapping[int, Measurement]) -> dict[int, tuple[float, float]]:
    """For each device: its time divided by the median device's time, and the relative difference that is noise.

    Of two devices, the faster one is the median. Noise is 3 %, or three standard errors of the two medians.
    """
    middle = statistics.median_low(_ns(m) for m in times.values())
    base = next(m for m in times.values() if _ns(m) == middle)
    return {
        i: (
            _ns(m) / middle,
            max(_FLOOR, 3.0 * math.hypot(*map(median_error, (m.screen, base.screen))) * _ns(m) / middle),
        )
        for i, m in times.items()
    }


def _ns(measurement: Measurement) -> float:
    return statistics.median(measurement.screen)


def _probe(evidences: Sequence[Evidence]) -> _Probe | None:
    """The generic variant and problem that come closest to a short read of memory; None if there are none."""
    candidates: list[tuple[bool, float, str, _Probe]] = []
    for evidence in evidences:
        operator = evidence.operator
        generics = [e for e in evidence.variants.values() if e.candidate.generic]
        for problem in evidence.workload:
            for variant in generics:
                if evidence.meant_for(variant, problem):
                    size = max(operator.compulsory_bytes(problem), 1)
                    dense = operator.flops.evaluate(operator.facts(problem)) > _FLOPS_PER_BYTE * size
                    far = abs(math.log(size / _BYTES))
                    candidates.append((dense, far, f"{operator.name} {problem.id}", (operator, problem, variant)))
    return min(candidates, key=lambda f: f[:3])[3] if candidates else None


def _time(
    results: dict[int, Measurement | str], position: Callable[[Measurer], int], probe: _Probe, measurer: Measurer
) -> None:
    """Screen the probe on a member's device a few times. `results` gets the time, or what went wrong."""
    i = position(measurer)
    try:
        screens = [measurer.probe(*probe) for _ in range(_SCREENS)]
    except AotTuneError as error:
        results[i] = f"the probe failed on it: {error.what}"
        return
    samples = tuple(s for m in screens for s in m.screen if m.status == "ok")
    bad = next((m for m in screens if m.status != "ok"), None)
    if bad is not None or not samples:
        results[i] = f"the probe failed on it: {bad.status}: {bad.reason}" if bad is not None else "it gave no time"
    else:
        results[i] = msgspec.structs.replace(screens[0], screen=samples)


class _BenchLinker:
    """Links for all devices before anything is timed, for that could disturb timing. Errors come when measured."""

    def __init__(self, session: Session, pool: DevicePool, evidences: Sequence[Evidence]) -> None:
        self._session, self._pool = session, pool
        self._of = {evidence.operator.name: evidence for evidence in evidences}

    def after(self, variant: Variant, compiled: Object) -> Task | None:
        """What links a new object; None if all its screens are known or if there is no object."""
        wanted = compiled.status == "ok" and self._lacks(variant, compiled.code)
        return partial(self._link, variant, compiled) if wanted else None

    def all(self, variants: Iterable[Variant]) -> None:
        objects = [(e, e.made) for e in variants if e.compiled]
        with ThreadPoolExecutor(self._session.jobs_of("cxx").count) as pool:
            for done in [pool.submit(self._link, *pair) for pair in objects]:
                done.result()

    def _lacks(self, variant: Variant, digest: str) -> bool:
        evidence = self._of[variant.candidate.operator]
        wanted = (p for p in evidence.workload if evidence.meant_for(variant, p) and not evidence.has(variant, p))
        return not all(self._pool.knows(evidence.operator, p, variant.candidate.id, digest) for p in wanted)

    def _link(self, variant: Variant, compiled: Object) -> None:
        with contextlib.suppress(ToolchainError):
            self._pool.shared.link(variant.rendered, compiled)


class DevicePool:
    """A context manager, and a `Runner`. All `devices` have the same digest, so it does not matter which measured what.

    A device is left out if a probe finds that it differs, or if it can have no worker any more. `devices` has what
    measures on each of the others.
    """

    def __init__(self, session: Session, devices: Sequence[Device], turn: TuningTurn) -> None:
        self._session, self.turn = session, turn
        self.shared = BenchFiles(session, len(devices), lambda: any(m.over for m in self.devices))
        self.devices = [Measurer(LazyBench(session, d, turn.budget, shared=self.shared), turn) for d in devices]
        # A worker dies with the thread that started it, so each bench keeps one thread for its whole life.
        self._threads = {m: ThreadPoolExecutor(1) for m in self.devices}
        self._gone: list[Measurer] = []
        self._working: dict[Measurer, Future[object]] = {}
        self._compiling: threading.Thread | None = None
        self._events: queue.Queue[Event] = queue.Queue()
        self._stopping = threading.Event()
        self._measuring: set[int] = set()

    def begin(self, turn: TuningTurn) -> None:
        """From now on, measure within another turn."""
        self.turn = turn
        for member in self.devices:
            member.turn, member.bench.budget = turn, turn.budget

    @property
    def device(self) -> Device:
        """The first of the devices."""
        return self.devices[0].bench.device

    def start(self) -> None:
        """Start the workers without waiting for them, because importing frameworks takes seconds.

        If a device is not free or cannot be measured on, its workers start at first use, which reports the error.
        """
        self.each_member(Measurer.start)

    @property
    def measured(self) -> int:
        return sum(m.measured for m in (*self.devices, *self._gone))

    @property
    def spent(self) -> dict[str, float]:
        """The devices' seconds by activity, the largest first."""
        members = (*self.devices, *self._gone)
        whats = {what for m in members for what in m.spent}
        seconds = {what: sum(m.spent.get(what, 0.0) for m in members) for what in whats}
        return dict(sorted(seconds.items(), key=lambda entry: (-entry[1], entry[0])))

    @property
    def slow_reference(self) -> str:
        """What to tell of the operator whose references took longest; empty if they took no large part of the time."""
        members = (*self.devices, *self._gone)
        names = {name for m in members for name in m.referred}
        seconds, name = max(((sum(m.referred.get(n, 0.0) for m in members), n) for n in names), default=(0.0, ""))
        if seconds < _SLOW or seconds < _LARGE_PART * sum(self.spent.values()):
            return ""
        return (
            f"operator {name}: its reference took {seconds:.0f} s of that. It is computed on each problem and each "
            "check; a reference of fewer and larger steps takes less"
        )

    def told(self) -> list[str]:
        """A line for each device: how long it worked, and on what."""
        lines = []
        for member in (*self.devices, *self._gone):
            parts = sorted(member.spent.items(), key=lambda entry: (-entry[1], entry[0]))
            spent = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in parts if seconds >= 0.05)
            lines.append(f"{member.bench.device.unit} was at work for {member.at_work:.1f} s: {spent or 'nothing'}")
        return lines

    @property
    def reused(self) -> int:
        return sum(m.reused for m in (*self.devices, *self._gone))

    def knows(self, operator: Operator, problem: Problem, candidate: str, digest: str) -> bool:
        """Whether the store has a screen of an object on a problem. All devices share it."""
        return self.devices[0].knows(operator, problem, candidate, digest)

    def knows_race(self, operator: Operator, problem: Problem, entrants: Sequence[Variant]) -> bool:
        """Whether the store has the race of these candidates on a problem."""
        return self.devices[0].knows_race(operator, problem, entrants)

    def measure(self, device: Measurer, job: Job) -> None:
        self._working[device] = self._threads[device].submit(self._work, device, job)

    def _work(self, member: Measurer, job: Job) -> None:
        begun, error = time.monotonic(), None
        self._measuring.add(threading.get_ident())
        try:
            if not member.ended:
                job.do(member)
        except BaseException as failure:  # the loop raises it
            error = failure
        finally:
            member.worked(time.monotonic() - begun)
        self._events.put(Measured(member, job, error))

    def compile(self, batch: CompileBatch) -> None:
        """See `Runner`. Objects are linked beside, if compilers do not disturb the devices."""
        self._stopping.clear()
        self._compiling = threading.Thread(target=self._compile, args=(batch,), daemon=True)
        self._compiling.start()

    def _compile(self, batch: CompileBatch) -> None:
        error, linker = None, _BenchLinker(self._session, self, batch.into)
        try:
            on_host = family(self.device.family).on_host
            then = None if on_host else linker.after
            self._session.compile(batch.variants, batch.what, batch.into, self._arrived, then, self._left)
            for evidence in batch.into:
                linker.all(evidence.now(e for e in batch.linked if e.id in evidence.variants))
        except BaseException as failure:  # the loop raises it
            error = failure
        self._events.put(CompilersEnded(None if self._stopping.is_set() else error))

    def _left(self, compiling: float) -> float:
        """Seconds of the turn. On a CPU nothing is timed while compilers run."""
        measuring = self.turn.expected()
        return compiling + measuring if family(self.device.family).on_host else max(compiling, measuring)

    def _arrived(self, variant: Variant) -> None:
        if self._stopping.is_set():
            raise InterruptedError("the budget has ended, or the build")  # this ends all compiles that wait
        if variant.does_not_compile:
            operator = self._session.operators[variant.candidate.operator]
            self._session.failures.of_candidate(operator, variant, variant.made.status, variant.error)
        self._events.put(Arrived(variant))

    def end_compiles(self) -> None:
        self._stopping.set()
        executor = self._session.executor
        while self._compiling is not None and self._compiling.is_alive():
            kill_running(spared=self._measuring)  # else it would seem that what a device links does not link
            if executor is not None:
                executor.end_compiles()
            self._compiling.join(AGAIN)

    def wait(self, seconds: float | None) -> Event | None:
        with contextlib.suppress(queue.Empty):
            return self._events.get(timeout=seconds)
        return None

    def abandon(self) -> None:
        for member in self.devices:
            member.end()
        self.end_compiles()
        end_all(self._working.values(), self.interrupt)

    def recall(self, evidence: Evidence, problem: Problem, variant: Variant) -> bool:
        """Take over what the store knows of a candidate on a problem. Returns whether it knew anything."""
        return self.devices[0].recall(evidence, problem, variant)

    def is_linked(self, variant: Variant) -> bool:
        """Whether an object has been linked for the devices."""
        return variant.object is not None and self.shared.is_linked(variant.object)

    def each_member(self, job: Callable[[Measurer], object]) -> None:
        """Have every device do the job at the same time, until the turn ends."""
        waiting: list[Future[object]] = [self._threads[m].submit(job, m) for m in self.devices]
        try:
            done = set[Future[object]]()
            while len(done) < len(waiting) and not any(future.exception() for future in done):
                done = wait(waiting, AGAIN if self.turn.limited else None, FIRST_EXCEPTION).done
                if self.turn.over:
                    self.end_compiles()
                    self.interrupt()
            for future in done:
                future.result()
        except BaseException:
            self._working |= dict(zip(self.devices, waiting, strict=True))
            self.abandon()
            raise

    def lose(self, device: Measurer, error: WorkerError) -> None:
        lost = self.leave_out(device)
        told = "; ".join(filter(None, (error.what, error.why, error.fix, "the other devices measure the rest")))
        self._session.progress.line(f"LOST {lost.name} {lost.unit}: {told}")

    def leave_out(self, member: Measurer) -> Device:
        """Leave out one of several devices for the whole build. The others do its work."""
        self.devices.remove(member)
        self._gone.append(member)
        thread = self._threads.pop(member)
        thread.submit(member.bench.__exit__, None, None, None).result()
        thread.shutdown()
        self._session.leave_out(member.bench.device)
        return member.bench.device

    def interrupt(self) -> None:
        """Kill what the devices are doing, with compilers and linkers. Call this repeatedly, after `end_compiles`."""
        kill_running()
        for member in self.devices:
            member.bench.interrupt()

    def __enter__(self) -> DevicePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.shared:
            if error is not None:
                self.abandon()
            ends = [thread.submit(m.bench.__exit__, kind, error, trace) for m, thread in self._threads.items()]
            if error is not None:  # a second Ctrl-C may leave a thread busy
                end_all(ends, self.interrupt)
            for end, thread in zip(ends, self._threads.values(), strict=True):
                end.result()
                thread.shutdown()
