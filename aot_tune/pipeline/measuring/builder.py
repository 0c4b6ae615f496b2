"""One loop for all that is compiled and measured: compilers and devices get what a plan wants next.

A plan knows neither processes nor threads, and only the loop asks it. A runner does what it is given and reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Evidence
from aot_tune.search.budget import Budget
from aot_tune.spec import Problem
from aot_tune.support.errors import WorkerError
from aot_tune.support.interrupts import AGAIN

_PATIENCE = 0.2
"""Seconds between two looks at a budget while nothing is reported."""


@dataclass(frozen=True)
class CompileBatch:
    """Variants to compile together; the evidence that gets their objects; and what to show of it, if anything.

    `linked` are entrants of races. They have an object after the batch, and are linked for the devices.
    """

    variants: Sequence[Variant]
    into: Sequence[Evidence]
    what: str = ""
    linked: Sequence[Variant] = ()


@dataclass(frozen=True)
class Job:
    """What one device does next. Jobs of one `number` are never done at the same time. `do` gets the device."""

    number: int
    what: str
    do: Callable[[Any], object]
    evidence: Evidence | None = None
    problem: Problem | None = None
    variants: Sequence[Variant] = ()


@dataclass(frozen=True)
class Arrived:
    """A variant of the batch has its object, or does not compile."""

    variant: Variant


@dataclass(frozen=True)
class CompilersEnded:
    """The batch has ended, or was ended. An `error` ends the loop."""

    error: BaseException | None = None


@dataclass(frozen=True)
class Measured:
    """A device has done its job, or could not because of an error."""

    device: Hashable
    job: Job
    error: BaseException | None = None


Event = Arrived | CompilersEnded | Measured


class WantedWork(Protocol):
    """A plan. What it gives away it does not give again, unless a device is lost or compilers are ended."""

    def batch(self) -> CompileBatch | None:
        """What to compile next; None if there is nothing now."""

    def job(self, device: Hashable) -> Job | None:
        """What an idle device does next; None if there is nothing now."""

    def stops_compiling(self) -> bool:
        """Whether the compilers that run are to be ended."""

    def arrived(self, variant: Variant) -> None:
        """A variant has its object, or does not compile."""

    def compiled(self) -> None:
        """The compilers have ended. What has not arrived was not compiled."""

    def measured(self, job: Job) -> None:
        """A device has done a job."""

    def lost(self, device: Hashable, job: Job) -> None:
        """A device is gone. Its job was not done."""


class Runner(Protocol):
    """Compilers and devices."""

    @property
    def devices(self) -> Iterable[Hashable]:
        """The devices that are not lost."""

    def compile(self, batch: CompileBatch) -> None:
        """Begin to compile."""

    def measure(self, device: Any, job: Job) -> None:
        """Begin a job on a device."""

    def wait(self, seconds: float | None) -> Event | None:
        """The next report; None if there is none within so many seconds."""

    def end_compiles(self) -> None:
        """End the compilers that run."""

    def lose(self, device: Any, error: WorkerError) -> None:
        """A device does not work. The others go on."""

    def interrupt(self) -> None:
        """Kill what the devices are doing. No compilers run any more."""

    def abandon(self) -> None:
        """End everything and wait for it."""


@dataclass
class WorkBuilder:
    """Feeds compilers and devices until nothing is wanted any more, or the budget ends.

    `quiet`: compilers disturb the devices, so that never both are at work. `compiled` is called after each batch.
    `compiling` and `idle` are seconds in which compilers ran, and in which no device was at work.
    """

    plan: WantedWork
    runner: Runner
    budget: Budget
    now: Callable[[], float]
    quiet: bool = False
    compiled: Callable[[], object] = lambda: None
    compiling: float = 0.0
    idle: float = 0.0
    _compiles_since: float | None = None
    _busy: dict[Hashable, Job] = field(default_factory=dict)
    _failed: set[int] = field(default_factory=set)

    def run(self) -> None:
        """Do all that is wanted.

        Raises:
            BaseException: what ended compilers or a device, if no other device can do its job. Then all is ended.
        """
        try:
            while self._feed() or self._feed():  # what a device did not want may let compilers begin
                self._take(self._wait())
        except BaseException:
            self.runner.abandon()
            raise

    def begin_compiling(self) -> None:
        """Let compilers begin before `run`."""
        if self._compiles_since is None and not (self.quiet and self._busy):
            batch = self.plan.batch()
            if batch is not None:
                self._compiles_since = self.now()
                self.runner.compile(batch)

    def _feed(self) -> bool:
        """Give work to what is idle. Returns whether anything is at work."""
        self.begin_compiling()
        if not (self.quiet and self._compiles_since is not None):
            for device in self.runner.devices:
                if device not in self._busy and (job := self.plan.job(device)) is not None:
                    self._busy[device] = job
                    self.runner.measure(device, job)
        return bool(self._busy) or self._compiles_since is not None

    def _wait(self) -> Event | None:
        limited = self.budget.seconds is not None
        if self._compiles_since is not None and self.plan.stops_compiling():
            self.runner.end_compiles()
        if limited and self.budget.left <= 0:
            self.runner.interrupt()
        begun = self.now()
        event = self.runner.wait(min(max(self.budget.left, AGAIN), _PATIENCE) if limited else None)
        if not self._busy:
            self.idle += self.now() - begun
        return event

    def _take(self, event: Event | None) -> None:
        if isinstance(event, Arrived):
            self.plan.arrived(event.variant)
        elif isinstance(event, CompilersEnded):
            self.compiling += self.now() - (self._compiles_since or 0.0)
            self._compiles_since = None
            if event.error is not None:
                raise event.error
            self.compiled()
            self.plan.compiled()
        elif isinstance(event, Measured):
            del self._busy[event.device]
            if event.error is None:
                self.plan.measured(event.job)
            else:
                self._lose(event.device, event.job, event.error)

    def _lose(self, device: Hashable, job: Job, error: BaseException) -> None:
        """Go on without a device. If a job has failed on another device before, it is not the device's fault."""
        last = len(list(self.runner.devices)) < 2
        if not isinstance(error, WorkerError) or last or job.number in self._failed or self.budget.left <= 0:
            raise error
        self._failed.add(job.number)
        self.runner.lose(device, error)
        self.plan.lost(device, job)
