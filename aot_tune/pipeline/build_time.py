"""The time of a build: what it was spent on, what is left of a budget, and how long things took so far."""

from __future__ import annotations

import math
import os
import resource
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from aot_tune.bench.devices.family import family
from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Evidence
from aot_tune.report.report_records import SpentOf, TimeSpent
from aot_tune.search.budget import ON_CPU, ON_GPU, Budget, Durations, Task
from aot_tune.spec import Operator, Problem
from aot_tune.support.build_log import BuildLog
from aot_tune.support.limits import usable_cores
from aot_tune.support.progress import Progress

_TELLING = 0.25
"""A batch of compiles counts only from this many CPU seconds on."""

_LEARNED = 8
"""An estimate of the time left needs so many measurements. Before, there is only a guess for any machine."""

_FADES = 0.5
"""The weight that earlier compiles keep each time new ones are added."""


class BuildTime:
    """A build's time: its `budget`, the `load` of its compilers, what it was spent on, and how long things take.

    The seconds that were spent are wall time by stage, of compilers by backend, and of devices by phase. `tuned` is
    when the last target and the survey were done, by the clock of the build's `Progress`; None at first. `log` gets the
    stages.
    """

    def __init__(self, budget: Budget, compilers: int, log: BuildLog | None = None) -> None:
        self.budget, self.load, self._log = budget, CompilerLoad(compilers), log or BuildLog()
        self.tuned: float | None = None
        self._durations: dict[str, Durations] = {}
        self._seconds: dict[tuple[SpentOf, str, str], float] = {}

    def durations(self, name: str) -> Durations:
        """How long things take on a family's devices, and compilers for it. Those of another family do not apply."""
        if name not in self._durations:
            self._durations[name] = Durations(rates=ON_CPU if family(name).on_host else ON_GPU)
        return self._durations[name]

    def turn(
        self,
        progress: Progress,
        name: str,
        targets: int = 1,
        kept: float = 0.0,
        more: float = 0.0,
        most: float = math.inf,
    ) -> TuningTurn:
        """The time to tune a target of a family, the first of `targets` that are left: at most `most` seconds.

        The steps after tuning need `kept` seconds, and what else is tuned or surveyed `more`.
        """
        return TuningTurn(progress, self.durations(name), self.budget.part(max(targets, 1), kept + more, most), kept)

    @contextmanager
    def not_after_tuning(self, now: Callable[[], float]) -> Iterator[None]:
        """What is done here is no part of the link, of which the next build's estimate is made."""
        began = now()
        yield
        self.tuned = (began if self.tuned is None else self.tuned) + now() - began

    def add(self, of: SpentOf, what: str, seconds: float, target: str = "") -> None:
        key = of, what, target
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    @contextmanager
    def stage(self, what: str) -> Iterator[None]:
        """Count the time of the block as one stage of the build."""
        began = monotonic()
        try:
            yield
        finally:
            seconds = monotonic() - began
            self.add("clock", what, seconds)
            self._log.add("build", "stage", what, seconds)

    def rows(self) -> tuple[TimeSpent, ...]:
        """The sums, if devices took part: a build that measures nothing has the same output each time."""
        if not any(of == "device" for of, _, _ in self._seconds):
            return ()
        return tuple(
            TimeSpent(of=of, what=what, target=target, seconds=round(seconds, 2))
            for (of, what, target), seconds in self._seconds.items()
            if seconds >= 0.01
        )


@dataclass
class CompilerLoad:
    """The share of the cores that C++ compilers get beside other programs, from the last ones that ran.

    `jobs` run at a time. `granted` is the share of their wall time in which they computed, except for the time in which
    they waited although cores were idle, such as for files from a disk. `each` is the CPU seconds of one of the first
    compiles, None before any.
    """

    jobs: int
    granted: float = 1.0
    each: float | None = None
    _cpu: float = 0.0
    _wall: float = 0.0

    def add(self, cpu: float, walls: Sequence[float], idle: float = 0.0) -> None:
        """Add compiles: their CPU seconds together, and the wall seconds of each. Those from a cache do not count.

        `idle` is how many seconds the cores were idle meanwhile, added up. The last compiles count most. A batch of few
        short ones is ignored, because it says little about a link.
        """
        if walls and cpu >= _TELLING:
            self._cpu = _FADES * self._cpu + cpu
            self._wall = _FADES * self._wall + cpu + max(sum(walls) - cpu - idle, 0.0)
            self.granted = min(max(self._cpu / self._wall, 0.05), 1.0)
            self.each = self.each or cpu / len(walls)


def children_seconds() -> float:
    """CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def idle_seconds(root: Path = Path("/")) -> float:
    """Seconds that the cores of this process have been idle since the machine started, added up.

    It is 0 where a control group's quota limits this process, since idle cores may not be its to use, and where the
    system does not tell.

    Args:
        root: where /proc and /sys are read.
    """
    cores = os.sched_getaffinity(0)
    if usable_cores(root) < len(cores):
        return 0.0
    try:
        lines = (root / "proc/stat").read_text().splitlines()
    except OSError:
        return 0.0
    wanted = {f"cpu{core}" for core in cores}
    ticks = [line.split()[4:6] for line in lines if line.split(" ", 1)[0] in wanted]
    return sum(int(tick) for pair in ticks for tick in pair) / os.sysconf("SC_CLK_TCK")


def task_of(operator: Operator, problem: Problem) -> Task:
    """A problem in the form that `Durations` take."""
    return Task(operator.name, problem.id, operator.compulsory_bytes(problem))


def expected_seconds(operator: Operator, variant: Variant) -> float:
    """The compile time that a kernel's author states for a candidate."""
    return operator.kernel(variant.candidate.kernel).compile_seconds


class TuningTurn:
    """The time to tune one target, and what is to be done in it. Several threads report what they did.

    `durations` are those of the target's family of devices. `kept` seconds of the budget are for what comes after it.
    """

    def __init__(self, progress: Progress, durations: Durations, budget: Budget, kept: float = 0.0) -> None:
        self.durations, self._progress, self._budget, self._kept = durations, progress, budget, kept
        self._lock = threading.Lock()
        self._tried = self._spared = 0
        self.devices = 1
        self._screens: dict[Task, int] = {}
        self._races: set[Task] = set()

    @property
    def limited(self) -> bool:
        return self._budget.seconds is not None

    @property
    def left(self) -> float:
        """Seconds that remain; infinite without a budget."""
        return self._budget.left

    @property
    def over(self) -> bool:
        return self.left <= 0

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return self._budget.spent

    @property
    def budget(self) -> Budget:
        """A wait for a device lasts at most until this ends."""
        return self._budget

    def keep(self, seconds: float) -> None:
        """Update the seconds that are kept for the steps after tuning. Other programs may have started or ended."""
        self._budget.extend(self._kept - seconds)
        self._kept = seconds

    def expect(self, evidences: Iterable[Evidence], variants: Sequence[Variant], *, least_race: float = 0.0) -> None:
        """State the work on a target: compile and try `variants`, and try all that has an object.

        Until the first race, races are expected to take `least_race` seconds or more.
        """
        coming = {e.candidate.id for e in variants}
        self._tried, self._spared, self._screens, self._races = 0, 0, {}, set()
        self.durations.least_race = least_race
        for evidence in evidences:
            subjects = [e for i, e in evidence.variants.items() if e.code or (i in coming and e.object is None)]
            for problem in evidence.workload:
                left = sum(not evidence.has(e, problem) and evidence.meant_for(e, problem) for e in subjects)
                if left:
                    task = task_of(evidence.operator, problem)
                    self._screens[task] = left
                    self._races.add(task)

    @property
    def anything(self) -> bool:
        return any(self._screens.values())

    def screened(self, task: Task, seconds: float, beside: float | None, note: str) -> None:
        """A screen took `seconds`, and `beside` for work done once, None if unknown; both are 0 if it was known."""
        with self._lock:
            if beside is None:
                self.durations.was_prepared(task, None)
            if seconds + (beside or 0.0) > 0:
                self.durations.screened(task, seconds, beside)
            self._screens[task] = max(self._screens.get(task, 0) - 1, 0)
        self._show(f"{task.operator} {task.problem}: {note}")

    def spared(self, task: Task, count: int) -> None:
        """`count` candidates are not screened, although they were expected."""
        with self._lock:
            self._screens[task] = max(self._screens.get(task, 0) - count, 0)
            self._spared += count

    def raced(self, task: Task, seconds: float, beside: float | None) -> None:
        """A race took `seconds`, and `beside` for work done once, None if unknown; both are 0 if it was known."""
        with self._lock:
            if beside is None or seconds + beside > 0:
                self.durations.was_prepared(task, beside)
            if seconds > 0:
                self.durations.raced(task, seconds)
            self._races.discard(task)
        self._show(f"{task.operator} {task.problem}: raced")

    def _show(self, note: str) -> None:
        self._tried += 1
        total = self._tried + sum(self._screens.values()) + len(self._races)
        self._progress.count(
            "tried", self._tried, total, note, most=self._budget.patience + self._kept, left=self._seconds_left
        )

    def _seconds_left(self, _by_count: float | None) -> float | None:
        """The count says little: calls differ by a factor of thousands, and most screens of a problem may be spared."""
        return self.expected() if self._tried >= _LEARNED else None

    def expected(self) -> float:
        """Seconds that the rest takes on all devices, if as large a share of screens is spared as so far."""
        with self._lock:
            screens = {task: count for task, count in self._screens.items() if count}
            races, tried, spared = set(self._races), self._tried + _LEARNED, self._spared + _LEARNED
        durations, share = self.durations, tried / (tried + spared)
        seconds = sum(share * count * durations.screen(task) for task, count in screens.items())
        seconds += sum(map(durations.race, races)) + sum(map(durations.prepare, races.union(screens)))
        return seconds / self.devices
