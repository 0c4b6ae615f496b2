"""How long a build still takes: what is to be compiled, screened and raced, times what such things took so far."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence

from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.search import ON_CPU, ON_GPU, Budget, Durations, Task
from aot_tune.spec import Operator, Problem
from aot_tune.support.progress import Progress

__all__ = ["Outlook", "expected_seconds", "task_of"]


def task_of(operator: Operator, problem: Problem) -> Task:
    """A problem as durations know it."""
    return Task(operator.name, problem.id, operator.compulsory_bytes(problem))


def expected_seconds(operator: Operator, entry: Entry) -> float:
    """What a kernel's author says that a candidate takes to compile."""
    return operator.kernel(entry.candidate.kernel).compile_seconds


class Outlook:
    """What is left of a build; told of everything that is done, by several threads at a time.

    `budget` is the build's: never more is promised. `after` are the seconds that the files and the link take.
    """

    def __init__(self, progress: Progress, budget: Budget) -> None:
        self._on: dict[str, Durations] = {}
        self.begin("cpu")
        self.after = 0.0
        self._progress, self._budget = progress, budget
        self._lock = threading.Lock()
        self._devices, self._jobs, self._overlap = 1, 1, False
        self._compiles: dict[str, float] = {}
        self._tried, self._known = 0, False
        self._screens: dict[Task, int] = {}
        self._screened: defaultdict[Task, int] = defaultdict(int)
        self._races: set[Task] = set()
        self._start = self._compiling_since = progress.now()

    def begin(self, family: str) -> None:
        """Targets of a family of devices come now: what was learned on one says nothing of the others."""
        self.durations = self._on.setdefault(family, Durations(rates=ON_CPU if family == "cpu" else ON_GPU))

    def expect(
        self,
        evidences: Iterable[Evidence],
        entries: Sequence[Entry],
        *,
        devices: int = 1,
        jobs: int = 1,
        overlap: bool = False,
        least_race: float = 0.0,
    ) -> None:
        """What is going to be done of a target: `entries` are compiled and tried, what has its object is tried.

        `jobs` compilers run at a time, while `devices` measure with `overlap`. A race is taken for `least_race` seconds
        or more until there was one.
        """
        coming = {e.candidate.id for e in entries}
        self._devices, self._jobs, self._overlap, self._tried, self._known = devices, jobs, overlap, 0, True
        self._compiles, self._screens, self._races = {}, {}, set()
        self._screened.clear()
        self.durations.least_race = least_race
        self._start = self._compiling_since = self._progress.now()
        for evidence in evidences:
            mine = [e for e in entries if e.candidate.operator == evidence.operator.name]
            self._compiles |= {e.rendered.symbol: expected_seconds(evidence.operator, e) for e in mine}
            subjects = [e for i, e in evidence.entries.items() if e.code or (i in coming and e.object is None)]
            for problem in evidence.workload:
                left = sum(not evidence.has(e, problem) and evidence.meant_for(e, problem) for e in subjects)
                if left:
                    task = task_of(evidence.operator, problem)
                    self._screens[task] = left
                    self._races.add(task)

    @property
    def anything(self) -> bool:
        """Whether there is anything to measure."""
        return any(self._screens.values())

    def compiled(self, operator: Operator, entry: Entry) -> None:
        """One more candidate was compiled, or came from the cache."""
        with self._lock:
            now = self._progress.now()
            self.durations.compiled(expected_seconds(operator, entry), now - self._compiling_since)
            self._compiling_since = now
            self._compiles.pop(entry.rendered.symbol, None)

    def compiling(self) -> None:
        """Compilers begin."""
        self._compiling_since = self._progress.now()

    def screened(self, task: Task, seconds: float, beside: float | None, note: str) -> None:
        """A screen took `seconds`, and `beside` for what is done once, None where that cannot be told; 0 if known."""
        with self._lock:
            if beside is None:
                self.durations.was_prepared(task, None)
            if seconds + (beside or 0.0) > 0:
                self.durations.screened(task, seconds, beside)
            self._screens[task] = max(self._screens.get(task, 0) - 1, 0)
            self._screened[task] += 1
        self._tick(f"{task.operator} {task.problem}: {note}")

    def spared(self, task: Task, count: int) -> None:
        """So many candidates are not screened, though that was expected."""
        with self._lock:
            self._screens[task] = max(self._screens.get(task, 0) - count, 0)

    def raced(self, task: Task, seconds: float, beside: float | None) -> None:
        """A race took `seconds`, and `beside` for what is done once, None where that cannot be told; 0 if known."""
        with self._lock:
            if beside is None or seconds + beside > 0:
                self.durations.was_prepared(task, beside)
            if seconds > 0:
                self.durations.raced(task, seconds)
            self._races.discard(task)
        self._tick(f"{task.operator} {task.problem}: raced")

    def races(self) -> dict[Task, float]:
        """The problems on which there is something to race between, and the seconds that each race takes a device."""
        with self._lock:
            durations = self.durations
            return {t: durations.race(t) + durations.prepare(t) for t in self._races if self._screened[t] > 1}

    def left(self) -> float | None:
        """Seconds until the library is linked; without a budget None before it is known what is to be done."""
        if not self._known:
            return None if self._budget.seconds is None else self._budget.left
        with self._lock:
            durations = self.durations
            done, others = durations.compiling.count, min(self._jobs - 1, len(self._compiles))
            compiling = durations.compile(sum(self._compiles.values()))
            compiling *= done / (done + others / 2) if done else 1.0  # others are half done, in the mean
            screens = sum(n * durations.screen(t) + durations.prepare(t) for t, n in self._screens.items() if n)
            unprepared = sum(durations.prepare(t) for t in self._races if not self._screens.get(t))
            races = unprepared + sum(durations.race(t) for t in self._races)
        together = max(compiling, screens / self._devices) if self._overlap else compiling + screens / self._devices
        return min(together + races / self._devices + self.after, self._budget.left)

    def _tick(self, note: str) -> None:
        self._tried += 1
        total = self._tried + sum(self._screens.values()) + len(self._races)
        self._progress.count("tried", self._tried, total, note, since=self._start, left=self.left)
