"""Devices of one model that measure together: whether they agree, what is linked for them, and who does which job."""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from types import TracebackType

import msgspec

from aot_tune.bench.protocol.measurement_records import Device, Measurement
from aot_tune.bench.times import median_error
from aot_tune.compile import Object, Variant
from aot_tune.compile.batches import Task
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.measuring.lazy_bench import BenchFiles, LazyBench
from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.pipeline.session import Session
from aot_tune.spec import Operator, Problem
from aot_tune.support.errors import AotTuneError, ToolchainError, WorkerError
from aot_tune.support.interrupts import end_all

__all__ = ["BenchLinker", "DevicePool", "Job", "More", "check_agreement"]

_FLOOR = 0.03
"""Relative difference that equal devices may have, because each has its own clock."""

_BYTES = 1 << 26
"""A probe should move about this many bytes: more than caches hold, but little enough to be quick."""

_FLOPS_PER_BYTE = 16.0
"""More FLOPs per byte would make a generic kernel slow."""
_SCREENS = 3
_Probe = tuple[Operator, Problem, Variant]

Job = Callable[[Measurer], object]
"""A device's job. If it returns False, it did nothing."""

More = Callable[[], Sequence[tuple[int, Job]]]
"""Gives jobs to an idle device. Any device's thread may ask, one at a time."""

_LOOK = 0.1
"""Seconds after which an idle device looks again: compilers may have finished something."""
_Given = tuple[int, list[Job]]

_SLOW, _LARGE_PART = 10.0, 1 / 3
"""References of an operator that take so many seconds, and such a part of the measuring, are worth a line."""


def check_agreement(
    session: Session,
    pool: DevicePool,
    evidences: Sequence[Evidence],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Leave out the devices of a pool whose time for a generic variant differs from the others', and say so.

    One device needs no check. If no probe runs on any device, all stay, and a line says that they were not compared. A
    probe that the end of the budget broke off says nothing, and nothing is measured after it. `meanwhile` is called
    when the probe is compiled, before the devices run it, because the compilers then have nothing to do.
    """
    if len(pool.members) < 2:
        return
    probe = _probe(evidences)
    if probe is not None:
        operator, problem, generic = probe
        (generic,) = session.compile([generic], "probe", evidences)
        probe = operator, problem, generic
    meanwhile()
    probed: dict[int, Measurement | str] = {}
    if probe is not None and probe[2].compiled:
        pool.each_member(partial(_time, probed, pool.members.index, probe))
    if not session.turn.allows(1e-9):
        return
    times = {i: m for i, m in probed.items() if isinstance(m, Measurement)}
    if not times:
        session.progress.line(f"NOTE no probe ran on any of the {len(pool.members)} devices: they count as equal")
        return
    ratios = _deviations(times)
    for i, bench in reversed(list(enumerate(pool.benches))):
        told = probed.get(i, "it gave no time")
        if i in times and abs(ratios[i][0] - 1.0) <= ratios[i][1]:
            continue
        why = told if isinstance(told, str) else f"it takes {ratios[i][0]:.3f} x the others' time for the same probe"
        session.progress.line(f"LEFT OUT {bench.device.name} {bench.device.unit}: {why}; nothing is measured on it")
        pool.leave_out(i)
    if len(pool.members) > 1:
        kept = ", ".join(f"{ratios[i][0]:.3f}" for i in sorted(times) if abs(ratios[i][0] - 1.0) <= ratios[i][1])
        session.progress.line(f"{len(pool.members)} devices agree on a probe: {kept} x its median time")


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
    """Screen the probe on a member's device a few times. `found` gets the result, or what went wrong."""
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


class BenchLinker:
    """Links for all devices of a pool before anything is timed, because a linker could disturb timing.

    If a candidate does not link, the error is reported when it is measured.
    """

    def __init__(self, session: Session, pool: DevicePool, evidences: Sequence[Evidence]) -> None:
        self._session, self._pool = session, pool
        self._of = {evidence.operator.name: evidence for evidence in evidences}

    @property
    def evidence(self) -> list[Evidence]:
        """What is known of the operators."""
        return list(self._of.values())

    def after(self, variant: Variant, compiled: Object) -> Task | None:
        """What links a new object; None if all its screens are known or if there is no object."""
        wanted = compiled.status == "ok" and self._lacks(variant, compiled.code)
        return partial(self._link, variant, compiled) if wanted else None

    def all(self, variants: Iterable[Variant]) -> None:
        """Link compiled candidates."""
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
            self._pool.shared.link(variant.candidate.backend, compiled, variant.rendered.compile)


def _nothing() -> Sequence[tuple[int, Job]]:
    return ()


def _alike(_number: int) -> str:
    return ""


class _PoolJobs:
    """Jobs that devices take one after the other: first their own, then free ones, then those of another device.

    Idle devices ask for `more` while another device is at work, because its work may lead to new jobs. A number is on
    one device at a time. `homes` maps a number to the device that has prepared its problem. Among free numbers, a
    device prefers one whose `of` it works on already, because its workers have loaded what it needs; then one whose
    `of` has the fewest devices. `lost` are devices that gave up, and why. The last device never gives up.
    """

    def __init__(
        self,
        members: Sequence[Measurer],
        homes: dict[int, Measurer],
        jobs: Iterable[tuple[int, Job]],
        more: More = _nothing,
        of: Callable[[int], str] = _alike,
    ) -> None:
        self._homes, self._more, self._of = homes, more, of
        self._changed, self._asking = threading.Condition(), threading.Lock()
        self._left, self._failed = len(members), set[int]()
        self.lost: list[tuple[Measurer, WorkerError]] = []
        self._own: dict[int, deque[_Given]] = {id(m): deque() for m in members}
        self._free: deque[_Given] = deque()
        self._busy: set[int] = set()
        self._turns = 0
        self._ended = self._done = False
        self._add(jobs)

    def _add(self, jobs: Iterable[tuple[int, Job]]) -> bool:
        """Add jobs. Returns whether there were any."""
        together: dict[int, list[Job]] = {}
        for number, job in jobs:
            together.setdefault(number, []).append(job)
        for number, given in together.items():
            home = self._homes.get(number)
            (self._free if home is None else self._own[id(home)]).append((number, given))
        return bool(together)

    def work(self, member: Measurer) -> None:
        """Do jobs on a device until nothing is left, or until this or another device fails."""
        while not member.ended and (turn := self._next(member)):
            number, jobs, before = turn
            done: list[object] = []
            with self._at_work(member, number):
                try:
                    for job in jobs:
                        if not member.ended:
                            done.append(job(member))
                except WorkerError as error:
                    if member.over or not self._gives_up(member, number, jobs[len(done) :], error):
                        raise
                    return
                if all(result is False for result in done):  # nothing was prepared
                    with self._changed:
                        if before is None:
                            del self._homes[number]
                        else:
                            self._homes[number] = before

    @contextmanager
    def _at_work(self, member: Measurer, number: int) -> Iterator[None]:
        """A device works on a number. If that fails, the others do not wait for more."""
        begun = time.monotonic()
        try:
            yield
        except BaseException:
            self._ended = True
            raise
        finally:
            member.worked(time.monotonic() - begun)
            with self._changed:
                self._busy.discard(number)
                self._turns += 1
                self._changed.notify_all()

    def _gives_up(self, member: Measurer, number: int, jobs: list[Job], error: WorkerError) -> bool:
        """Give the rest of a number's jobs, and all the device's other jobs, to others. Returns whether they can.

        If a number's jobs have failed on another device before, it is not the device's fault.
        """
        with self._changed:
            if self._left == 1 or number in self._failed:
                return False
            self._left -= 1
            self._failed.add(number)
            self.lost.append((member, error))
            self._free.append((number, jobs))
            self._free.extend(self._own[id(member)])
            self._own[id(member)].clear()
            for theirs in [n for n, home in self._homes.items() if home is member]:
                del self._homes[theirs]
            return True

    def _next(self, member: Measurer) -> tuple[int, list[Job], Measurer | None] | None:
        """The next number, which now belongs to this device, its jobs, and its earlier device. Waits if necessary."""
        while not (self._ended or member.ended):
            with self._changed:
                if turn := self._taken(member):
                    return turn
                if self._done and not self._waits():
                    return None
                turns = self._turns
            if self._asking.acquire(blocking=False):  # otherwise another device is asking
                try:
                    jobs = self._more()
                except BaseException:
                    self._ended = True
                    raise
                finally:
                    self._asking.release()
                with self._changed:
                    if self._add(jobs):
                        self._changed.notify_all()
                        continue
                    if turns != self._turns:  # a job that ended meanwhile may have led to new ones
                        continue
                    if not self._busy and not self._waits():
                        self._done = True
                        self._changed.notify_all()
                        return None
            with self._changed:
                self._changed.wait(_LOOK)
        return None

    def _waits(self) -> bool:
        return bool(self._free) or any(self._own.values())

    def _taken(self, member: Measurer) -> tuple[int, list[Job], Measurer | None] | None:
        mine = {self._of(n) for n, home in self._homes.items() if home is member}
        turn = self._first(self._own[id(member)]) or self._picked(mine) or self._from_another(mine)
        if turn is None:
            return None
        number, jobs = turn
        before = self._homes.get(number)
        self._homes[number] = member
        self._busy.add(number)
        return number, jobs, before

    def _first(self, waiting: deque[_Given]) -> _Given | None:
        """Take the first number on which no device is at work."""
        turn = next((given for given in waiting if given[0] not in self._busy), None)
        if turn is not None:
            waiting.remove(turn)
        return turn

    def _from_another(self, mine: set[str]) -> _Given | None:
        """Take what another device would do last. Prefer an `of` that this device works on, then the busiest device."""
        choices = [
            (self._of(given[0]) not in mine, -len(queue), -position, queue, given)
            for queue in self._own.values()
            for position, given in enumerate(queue)
            if given[0] not in self._busy
        ]
        if not choices:
            return None
        *_, queue, turn = min(choices, key=lambda f: f[:3])
        queue.remove(turn)
        return turn

    def _picked(self, mine: set[str]) -> _Given | None:
        """Take a free number."""
        free = [given for given in self._free if given[0] not in self._busy]
        if not free:
            return None
        at = Counter(of for of, _ in {(self._of(n), id(home)) for n, home in self._homes.items()})
        left = Counter(self._of(n) for n, _ in free)

        def rank(given: _Given) -> tuple[bool, int, int]:
            of = self._of(given[0])
            return of not in mine, at[of], -left[of]

        turn = min(free, key=rank)
        self._free.remove(turn)
        return turn


class DevicePool:
    """A context manager. All `devices` have the same digest, so it does not matter which of them measured what.

    A device is left out if a probe finds that it differs, or if it can have no worker any more.
    """

    def __init__(self, session: Session, devices: list[Device]) -> None:
        self._session = session
        self.shared = BenchFiles(session, len(devices), lambda: any(m.over for m in self.members))
        self.benches = [LazyBench(session, d, session.turn, shared=self.shared) for d in devices]
        self.members = [Measurer(b) for b in self.benches]
        # A worker dies with the thread that started it, so each bench keeps one thread for its whole life.
        self._threads = [ThreadPoolExecutor(1) for _ in devices] if len(devices) > 1 else []
        self._gone: list[Measurer] = []
        self._homes: dict[int, Measurer] = {}

    @property
    def device(self) -> Device:
        """The first of the devices."""
        return self.benches[0].device

    def start(self) -> None:
        """Start the workers without waiting for them, because importing frameworks takes seconds.

        If a device is not free or cannot be measured on, its workers start at first use, which reports the error.
        """
        self.each_member(Measurer.start)

    @property
    def measured(self) -> int:
        """How many measurements were made."""
        return sum(m.measured for m in (*self.members, *self._gone))

    @property
    def spent(self) -> dict[str, float]:
        """The devices' seconds by activity, the largest first."""
        members = (*self.members, *self._gone)
        whats = {what for m in members for what in m.spent}
        seconds = {what: sum(m.spent.get(what, 0.0) for m in members) for what in whats}
        return dict(sorted(seconds.items(), key=lambda entry: (-entry[1], entry[0])))

    @property
    def slow_reference(self) -> str:
        """What to tell of the operator whose references took longest; empty if they took no large part of the time."""
        members = (*self.members, *self._gone)
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
        for member in (*self.members, *self._gone):
            parts = sorted(member.spent.items(), key=lambda entry: (-entry[1], entry[0]))
            spent = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in parts if seconds >= 0.05)
            lines.append(f"{member.bench.device.unit} was at work for {member.at_work:.1f} s: {spent or 'nothing'}")
        return lines

    @property
    def reused(self) -> int:
        """How many measurements were known before."""
        return sum(m.reused for m in (*self.members, *self._gone))

    def knows(self, operator: Operator, problem: Problem, candidate: str, digest: str) -> bool:
        """Whether the store has a screen of an object on a problem. All devices share it."""
        return self.members[0].knows(operator, problem, candidate, digest)

    def knows_race(self, operator: Operator, problem: Problem, entrants: Sequence[Variant]) -> bool:
        """Whether the store has the race of these candidates on a problem."""
        return self.members[0].knows_race(operator, problem, entrants)

    def each(
        self,
        jobs: Iterable[tuple[int, Job]],
        more: More = lambda: (),
        of: Callable[[int], str] = lambda _number: "",
    ) -> None:
        """Do all jobs. Those with the same number run on one device, in their order.

        A number stays with the device that had it before; a new one goes to the first device that is idle. An idle
        device may also take a number from the device that has most: preparing its problem again is shorter than most
        jobs. The first job that fails ends the others. When no job is left, a device asks for `more`, until there is
        none and no other device is busy. Numbers with the same `of`, such as an operator, go to the same devices where
        possible.

        If the workers of one device fail and there are others, these do the rest, and a line says so. The failed job
        starts again from its beginning.
        """
        if not self._threads:
            waiting: Sequence[tuple[int, Job]] = list(jobs)
            while waiting or (waiting := more()):
                for _, job in waiting:
                    job(self.members[0])
                waiting = ()
            return
        turns = _PoolJobs(self.members, self._homes, jobs, more, of)
        self.each_member(turns.work)
        while turns.lost:
            for member, error in turns.lost:
                device = self.leave_out(self.members.index(member))
                told = "; ".join(filter(None, (error.what, error.why, error.fix, "the other devices measure the rest")))
                self._session.progress.line(f"LOST {device.name} {device.unit}: {told}")
            turns.lost.clear()
            self.each_member(turns.work)

    def each_member(self, job: Job) -> None:
        """Have every device do the job."""
        if self._threads:
            self._together([(t, partial(job, m)) for t, m in zip(self._threads, self.members, strict=True)])
        else:
            job(self.members[0])

    def _together(self, calls: Iterable[tuple[ThreadPoolExecutor, Callable[[], object]]]) -> None:
        waiting: list[Future[object]] = [thread.submit(call) for thread, call in calls]
        try:
            for future in as_completed(waiting):
                future.result()
        except BaseException:
            for member in self.members:
                member.end()
            end_all(waiting, self.interrupt)
            raise

    def leave_out(self, position: int) -> Device:
        """Leave out one of several devices for the whole build. The others do its work."""
        bench, thread = self.benches.pop(position), self._threads.pop(position)
        gone = self.members.pop(position)
        self._gone.append(gone)
        self._homes = {number: member for number, member in self._homes.items() if member is not gone}
        thread.submit(bench.__exit__, None, None, None).result()
        thread.shutdown()
        self._session.leave_out(bench.device)
        return bench.device

    def interrupt(self) -> None:
        """Kill what the devices are doing. Another thread calls this, repeatedly."""
        for bench in self.benches:
            bench.interrupt()

    def __enter__(self) -> DevicePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.shared:
            if not self._threads:
                self.benches[0].__exit__(kind, error, trace)
                return
            for member in self.members if error is not None else ():
                member.end()
            both = zip(self.benches, self._threads, strict=True)
            ends = [thread.submit(bench.__exit__, kind, error, trace) for bench, thread in both]
            if error is not None:  # a second Ctrl-C may leave a thread busy
                end_all(ends, self.interrupt)
            for end, thread in zip(ends, self._threads, strict=True):
                end.result()
                thread.shutdown()
