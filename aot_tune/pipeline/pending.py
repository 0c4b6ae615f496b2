"""What is still to be screened and raced on a target, and how long such things took so far."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence

from aot_tune.bench.devices.family import family
from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Evidence
from aot_tune.search.budget import ON_CPU, ON_GPU, Budget, Durations, Task
from aot_tune.spec import Operator, Problem
from aot_tune.support.progress import Progress

__all__ = ["PendingWork", "expected_seconds", "task_of"]


def task_of(operator: Operator, problem: Problem) -> Task:
    """A problem in the form that `Durations` take."""
    return Task(operator.name, problem.id, operator.compulsory_bytes(problem))


def expected_seconds(operator: Operator, variant: Variant) -> float:
    """The compile time that a kernel's author states for a candidate."""
    return operator.kernel(variant.candidate.kernel).compile_seconds


class PendingWork:
    """Counts and shows the work that is left on the current target. Several threads report what they did.

    `budget` is the build's. `durations` are those of the target's family of devices.
    """

    def __init__(self, progress: Progress, budget: Budget) -> None:
        self._on: dict[str, Durations] = {}
        self.begin("cpu")
        self._progress, self._budget = progress, budget
        self._lock = threading.Lock()
        self._tried = 0
        self._screens: dict[Task, int] = {}
        self._screened: defaultdict[Task, int] = defaultdict(int)
        self._races: set[Task] = set()
        self._start = self._compiling_since = progress.now()

    def begin(self, name: str) -> None:
        """Start with the targets of a family of devices. Durations of another family do not apply."""
        if name not in self._on:
            self._on[name] = Durations(rates=ON_CPU if family(name).on_host else ON_GPU)
        self.durations = self._on[name]

    def within(self, budget: Budget) -> None:
        """From now on no estimate is above what this budget has left: that of a target, say."""
        self._budget = budget

    def expect(self, evidences: Iterable[Evidence], variants: Sequence[Variant], *, least_race: float = 0.0) -> None:
        """State the work on a target: compile and try `variants`, and try all that has an object.

        Until the first race, races are expected to take `least_race` seconds or more.
        """
        coming = {e.candidate.id for e in variants}
        self._tried, self._screens, self._races = 0, {}, set()
        self._screened.clear()
        self.durations.least_race = least_race
        self._start = self._progress.now()
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
        """Whether there is anything to measure."""
        return any(self._screens.values())

    def compiling(self) -> None:
        """Compilers start."""
        self._compiling_since = self._progress.now()

    def compiled(self, operator: Operator, variant: Variant) -> None:
        """A candidate was compiled or came from the cache."""
        with self._lock:
            now = self._progress.now()
            self.durations.compiled(expected_seconds(operator, variant), now - self._compiling_since)
            self._compiling_since = now

    def screened(self, task: Task, seconds: float, beside: float | None, note: str) -> None:
        """A screen took `seconds`, and `beside` for work done once, None if unknown; both are 0 if it was known."""
        with self._lock:
            if beside is None:
                self.durations.was_prepared(task, None)
            if seconds + (beside or 0.0) > 0:
                self.durations.screened(task, seconds, beside)
            self._screens[task] = max(self._screens.get(task, 0) - 1, 0)
            self._screened[task] += 1
        self._show(f"{task.operator} {task.problem}: {note}")

    def spared(self, task: Task, count: int) -> None:
        """`count` candidates are not screened, although they were expected."""
        with self._lock:
            self._screens[task] = max(self._screens.get(task, 0) - count, 0)

    def raced(self, task: Task, seconds: float, beside: float | None) -> None:
        """A race took `seconds`, and `beside` for work done once, None if unknown; both are 0 if it was known."""
        with self._lock:
            if beside is None or seconds + beside > 0:
                self.durations.was_prepared(task, beside)
            if seconds > 0:
                self.durations.raced(task, seconds)
            self._races.discard(task)
        self._show(f"{task.operator} {task.problem}: raced")

    def races(self) -> dict[Task, float]:
        """Problems with more than one screened candidate and no race yet, and the seconds that each race takes."""
        with self._lock:
            durations = self.durations
            return {t: durations.race(t) + durations.prepare(t) for t in self._races if self._screened[t] > 1}

    def _show(self, note: str) -> None:
        self._tried += 1
        total = self._tried + sum(self._screens.values()) + len(self._races)
        self._progress.count("tried", self._tried, total, note, since=self._start, most=self._budget.left)
