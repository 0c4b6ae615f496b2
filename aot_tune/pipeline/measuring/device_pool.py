"""Devices of one model that measure together. Each has its bench and, if there are several, its own thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from types import TracebackType

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.compile import Variant
from aot_tune.pipeline.measuring.bench_files import BenchFiles
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.pipeline.measuring.pool_jobs import Job, More, PoolJobs
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.spec import Problem
from aot_tune.support.interrupts import end_all

__all__ = ["DevicePool"]

_SLOW, _LARGE_PART = 10.0, 1 / 3
"""References of an operator that take so many seconds, and such a part of the measuring, are worth a line."""


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
        found = {what: sum(m.spent.get(what, 0.0) for m in members) for what in whats}
        return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))

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
        found = []
        for member in (*self.members, *self._gone):
            parts = sorted(member.spent.items(), key=lambda one: (-one[1], one[0]))
            spent = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in parts if seconds >= 0.05)
            found.append(f"{member.bench.device.unit} was at work for {member.at_work:.1f} s: {spent or 'nothing'}")
        return found

    @property
    def reused(self) -> int:
        """How many measurements were known before."""
        return sum(m.reused for m in (*self.members, *self._gone))

    def knows(self, loaded: LoadedOperator, problem: Problem, candidate: str, digest: str) -> bool:
        """Whether the store has a screen of an object on a problem. All devices share it."""
        return self.members[0].knows(loaded, problem, candidate, digest)

    def knows_race(self, loaded: LoadedOperator, problem: Problem, entrants: Sequence[Variant]) -> bool:
        """Whether the store has the race of these candidates on a problem."""
        return self.members[0].knows_race(loaded, problem, entrants)

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
        turns = PoolJobs(self.members, self._homes, jobs, more, of)
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
