"""Devices of one model that measure together: each has its bench and, when there are several, a thread of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from types import TracebackType

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.pipeline.evidence import Entry
from aot_tune.pipeline.measuring.bench_files import BenchFiles
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.spec import Problem
from aot_tune.support.errors import WorkerError
from aot_tune.support.threads import end_all

__all__ = ["DevicePool", "Job", "PoolJobs"]

Job = Callable[[Measurer], object]
"""What a device is to do; False says that it did nothing."""


class DevicePool:
    """A context manager; `devices` share their digest, so that it does not matter which of them measured what.

    Those that a probe finds off are left out, and those on which no worker can be had any more.
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
        """Start the workers without waiting for them: they import frameworks for seconds.

        Those of a device that is not free, or cannot be measured on, start at first use, which tells of it.
        """
        self.each_member(Measurer.start)

    @property
    def measured(self) -> int:
        """Measurements made."""
        return sum(m.measured for m in (*self.members, *self._gone))

    @property
    def spent(self) -> dict[str, float]:
        """The devices' seconds by what they went into, the most first."""
        members = (*self.members, *self._gone)
        whats = {what for m in members for what in m.spent}
        found = {what: sum(m.spent.get(what, 0.0) for m in members) for what in whats}
        return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))

    @property
    def reused(self) -> int:
        """Measurements known from before."""
        return sum(m.reused for m in (*self.members, *self._gone))

    def knows(self, loaded: LoadedOperator, problem: Problem, candidate: str, digest: str) -> bool:
        """Whether the store has a screen of an object on a problem: on one device it is as on the others."""
        return self.members[0].knows(loaded, problem, candidate, digest)

    def knows_race(self, loaded: LoadedOperator, problem: Problem, entrants: Sequence[Entry]) -> bool:
        """Whether the store has the race of these candidates on a problem."""
        return self.members[0].knows_race(loaded, problem, entrants)

    def each(self, jobs: Iterable[tuple[int, Job]]) -> None:
        """Do all jobs; those of one number on one device, in their order.

        It is the device that had the number before, or else the first that has nothing to do. One that has nothing left
        takes a number from the device that has most: to prepare its problem again takes less than most jobs. The first
        job that fails ends the others.

        But where it is the workers that fail, and there are other devices, these do what is left; a line says so. A job
        that failed so is done again from its beginning.
        """
        if not self._threads:
            for _, job in jobs:
                job(self.members[0])
            return
        turns = PoolJobs(self.members, self._homes, jobs)
        self.each_member(turns.work)
        while turns.lost:
            for member, error in turns.lost:
                device = self.leave_out(self.members.index(member))
                told = "; ".join(filter(None, (error.what, error.why, error.fix, "the others measure what it has not")))
                self._session.progress.line(f"LOST {device.name} {device.unit}: {told}")
            turns.lost.clear()
            self.each_member(turns.work)

    def each_member(self, job: Job) -> None:
        """Have every device do a job."""
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
        """Let one of several devices go, for the whole build; the others do what comes next."""
        bench, thread = self.benches.pop(position), self._threads.pop(position)
        gone = self.members.pop(position)
        self._gone.append(gone)
        self._homes = {number: member for number, member in self._homes.items() if member is not gone}
        thread.submit(bench.__exit__, None, None, None).result()
        thread.shutdown()
        self._session.leave_out(bench.device)
        return bench.device

    def interrupt(self) -> None:
        """Kill what the devices are busy with; to be called from another thread, again and again."""
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
            if error is not None:  # a second Ctrl-C may have left a thread busy
                end_all(ends, self.interrupt)
            for end, thread in zip(ends, self._threads, strict=True):
                end.result()
                thread.shutdown()


class PoolJobs:
    """Jobs that devices take one after the other: their own, then those that belong to none yet, then another's.

    `homes` has the device of a number, on which its problem is prepared. `lost` are devices that gave up what they had,
    and why; never the last one.
    """

    def __init__(
        self, members: Sequence[Measurer], homes: dict[int, Measurer], jobs: Iterable[tuple[int, Job]]
    ) -> None:
        self._lock, self._homes = threading.Lock(), homes
        self._left, self._failed = len(members), set[int]()
        self.lost: list[tuple[Measurer, WorkerError]] = []
        self._own: dict[int, deque[tuple[int, list[Job]]]] = {id(m): deque() for m in members}
        self._free: deque[tuple[int, list[Job]]] = deque()
        together: dict[int, list[Job]] = {}
        for number, job in jobs:
            together.setdefault(number, []).append(job)
        for number, mine in together.items():
            home = homes.get(number)
            (self._free if home is None else self._own[id(home)]).append((number, mine))

    def work(self, member: Measurer) -> None:
        """Do what there is for a device, until nothing is left, or it or another one has failed."""
        while not member.ended and (turn := self._next(member)):
            number, jobs, before = turn
            done: list[object] = []
            try:
                for job in jobs:
                    if not member.ended:
                        done.append(job(member))
            except WorkerError as error:
                if member.over or not self._gives_up(member, number, jobs[len(done) :], error):
                    raise
                return
            if all(one is False for one in done):  # nothing was prepared
                with self._lock:
                    if before is None:
                        del self._homes[number]
                    else:
                        self._homes[number] = before

    def _gives_up(self, member: Measurer, number: int, jobs: list[Job], error: WorkerError) -> bool:
        """Leave the rest of a number's jobs, and all else that is a device's, to others; whether they can do it.

        Where a number's jobs have failed before, on another device, it is not the device's fault.
        """
        with self._lock:
            if self._left == 1 or number in self._failed:
                return False
            self._left -= 1
            self._failed.add(number)
            self.lost.append((member, error))
            self._free.append((number, jobs))
            self._free.extend(self._own[id(member)])
            self._own[id(member)].clear()
            for mine in [n for n, home in self._homes.items() if home is member]:
                del self._homes[mine]
            return True

    def _next(self, member: Measurer) -> tuple[int, list[Job], Measurer | None] | None:
        """The next number, which is this device's from now on, its jobs, and whose it was."""
        with self._lock:
            if own := self._own[id(member)]:
                number, jobs = own.popleft()
            elif self._free:
                number, jobs = self._free.popleft()
            elif most := max(self._own.values(), key=len):
                number, jobs = most.pop()
            else:
                return None
            before = self._homes.get(number)
            self._homes[number] = member
            return number, jobs, before
