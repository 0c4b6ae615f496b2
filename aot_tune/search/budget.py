"""A build's budget, and which problem is worth the next seconds, judged by what earlier tries gained and took."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

_WEIGHT = 1e8
"""The prior rates weigh as much as measurements of this many bytes."""
_LEAST = 0.02
"""Seconds that each screen takes in addition."""
_SHORTEST = 1e-3
"""The least seconds of a screen. If a killed worker ended it, all of its time was waiting."""
_RACE = 8.0
"""A race takes this many times as long as a screen, at first. This prior weighs as much as one race."""

_FIRST, _LATER = 2.0, 0.5
"""Expected falls of a time, as natural logarithms, at first.

The first value is for an operator's first candidate beside the generic one. The second is for the first candidate on a
problem, which winners on other problems serve until then. Its n-th try brings this over n squared, until the operator's
tries say more."""
_RACED = 0.1
"""The same for a race, which corrects choices by the few samples of screens."""
_TRIES = 2.0
"""Priors weigh as much as this many tries."""


class Budget:
    """Seconds for a whole build; None is no limit. `spent` seconds went by before this object was made.

    `clock` is monotonic, in seconds. `patience` is how long a wait for a device may last: as long as the `whole` budget
    that this one is a part of.
    """

    def __init__(
        self,
        seconds: float | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        spent: float = 0.0,
        whole: Budget | None = None,
        kept: float = 0.0,
    ) -> None:
        self._clock, self._start, self.seconds = clock, clock() - spent, seconds
        self._whole, self._kept = whole, kept
        self._lock, self._waiting, self._waits_since = threading.Lock(), 0, 0.0

    @property
    def spent(self) -> float:
        """Seconds since the start, without those in which a part waited for a device."""
        return (self._waits_since if self._waiting else self._clock()) - self._start

    @property
    def patience(self) -> float:
        """Seconds that a wait for a device may last; infinite without a limit."""
        return self.left if self._whole is None else max(self._whole.left - self._kept, 0.0)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """In the block another build has the device. That does not count against a part, only against the whole."""
        if self._whole is None:
            yield
            return
        self._count_waits(1)
        try:
            yield
        finally:
            self._count_waits(-1)

    def _count_waits(self, more: int) -> None:
        with self._lock:
            now = self._clock()
            if self._waiting:
                self._start += now - self._waits_since
            self._waiting, self._waits_since = self._waiting + more, now

    @property
    def left(self) -> float:
        """Seconds that remain; infinite without a limit. A part never outlasts the whole."""
        left = float("inf") if self.seconds is None else max(self.seconds - self.spent, 0.0)
        return left if self._whole is None else min(left, self.patience)

    def part(self, parts: int, kept: float = 0.0, most: float = float("inf")) -> Budget:
        """A new budget from now on: an equal share of what is left, less the `kept` seconds, and at most `most`."""
        seconds = min(max(self.left - kept, 0.0) / parts, most)
        limit = None if seconds == float("inf") else seconds
        return Budget(limit, self._clock, whole=self, kept=kept)

    def extend(self, seconds: float) -> None:
        """Let it end later, or earlier if `seconds` is negative."""
        if self.seconds is not None:
            self.seconds += seconds
            self._kept -= seconds


@dataclass(frozen=True)
class Rates:
    """Expected seconds per byte, at first: of a screen, and of the work that is done once for a problem."""

    screen: float
    prepare: float


ON_CPU = Rates(screen=5e-9, prepare=2e-8)
"""As measured on one CPU."""
ON_GPU = Rates(screen=8e-11, prepare=2.6e-9)
"""From an H100's tune of 2026-11-25 (`benchmarks/results/h100-workload.md`).

The rate of a screen is its time beyond `_LEAST`, over the bytes of its record."""


@dataclass(frozen=True)
class Task:
    """A problem of an operator, and the bytes that a call must move."""

    operator: str
    problem: str
    size: int


@dataclass
class _Sum:
    seconds: float = 0.0
    size: float = 0.0
    count: int = 0

    def add(self, seconds: float, size: float) -> None:
        self.seconds, self.size, self.count = self.seconds + seconds, self.size + size, self.count + 1


@dataclass
class Durations:
    """How long things take, in seconds, learned from what was done. A problem's own times come before those of others.

    `compiling` is wall time with all compilers at work; its sizes are the authors' estimates for one candidate. A race
    takes at least `least_race` seconds until one is known. For an operator without known times, a screen is expected to
    take at most as long per byte as all others did, because the device may be a fast one.
    """

    rates: Rates = ON_CPU
    compiling: _Sum = field(default_factory=_Sum)
    preparing: _Sum = field(default_factory=_Sum)
    screening: defaultdict[str, _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    own: defaultdict[Task, _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    prepared: set[Task] = field(default_factory=set)
    racing: _Sum = field(default_factory=_Sum)
    least_race: float = 0.0

    def compiled(self, size: float, seconds: float) -> None:
        """Compiling a candidate took `seconds`. Its author expected `size` seconds of one compiler."""
        self.compiling.add(seconds, size)

    def was_prepared(self, task: Task, seconds: float | None) -> None:
        """The work done once for a problem took `seconds`, None if unknown: references, odd problems, buffers."""
        if task not in self.prepared:
            self.prepared.add(task)
            if seconds is not None:
                self.preparing.add(seconds, task.size)

    def screened(self, task: Task, seconds: float, beside: float | None) -> None:
        """A screen took `seconds`. `beside` is passed to `was_prepared`."""
        self.was_prepared(task, beside)
        self.screening[task.operator].add(seconds, task.size)
        self.own[task].add(seconds, task.size)

    def raced(self, task: Task, seconds: float) -> None:
        """A race took `seconds`."""
        self.racing.add(seconds, self.screen(task))

    def compile(self, size: float = 1.0) -> float:
        """Expected seconds to compile candidates for which their authors expect `size` seconds."""
        return size * (self.compiling.seconds / self.compiling.size if self.compiling.size else 1.0)

    def screen(self, task: Task) -> float:
        """Expected seconds of one more screen on a prepared problem."""
        if (own := self.own.get(task)) is not None:
            return max(own.seconds / own.count, _SHORTEST)
        screens, rate = self.screening[task.operator], self.rates.screen
        size = sum(cost.size for cost in self.screening.values())
        if size > _WEIGHT:
            rate = min(rate, sum(cost.seconds for cost in self.screening.values()) / size)
        return _LEAST + task.size * (screens.seconds + rate * _WEIGHT) / (screens.size + _WEIGHT)

    def prepare(self, task: Task) -> float:
        """Expected seconds of the work that is done once for a problem; 0 if it is prepared."""
        if task in self.prepared:
            return 0.0
        return task.size * (self.preparing.seconds + self.rates.prepare * _WEIGHT) / (self.preparing.size + _WEIGHT)

    def race(self, task: Task) -> float:
        """Expected seconds of a race on a prepared problem. It grows with the time of screens."""
        races, screen = self.racing, self.screen(task)
        seconds = screen * (races.seconds + _RACE * screen) / (races.size + screen)
        return seconds if races.count else max(seconds, self.least_race)


class Gains:
    """How much the next try on a problem may lower its time, per second that the try takes.

    The fall is a natural logarithm, so that 10 % count the same on every problem. The expectation is the mean gain of
    the operator's tries with the same number (the second on a problem, the third, ...). Where nothing is known, it
    decreases with the number. So problems without any measurement come first, then those on which the last tries still
    gained.
    """

    def __init__(self, durations: Durations) -> None:
        self._durations = durations
        self._falls: defaultdict[tuple[str, int], _Sum] = defaultdict(_Sum)
        self._tries: defaultdict[Task, int] = defaultdict(int)
        self._touched: set[str] = set()
        self._races = _Sum()

    def tried(self, task: Task, before: float | None, after: float | None) -> None:
        """A screen was made. The best time was `before` and is `after`; None if there is none."""
        number = self._tries[task]
        self._tries[task] += 1
        if after is not None:
            self._touched.add(task.operator)
            if before is not None:
                self._falls[task.operator, number].add(math.log(before / after), 1)

    def raced(self, before: float, after: float) -> None:
        """A race was run. The screens' choice took `before` in it, and its winner took `after`."""
        self._races.add(math.log(before / after), 1)

    def of_screen(self, task: Task) -> float:
        """The expected gain per second of the next screen on a problem."""
        if task.operator not in self._touched:
            fall = _FIRST
        else:
            number = self._tries[task]
            fall = _expected(self._falls[task.operator, number], _LATER / max(number, 1) ** 2)
        return fall / (self._durations.screen(task) + self._durations.prepare(task))

    def of_race(self, task: Task, earlier: int = 0) -> float:
        """The expected gain per second of a race on a problem, after `earlier` races there."""
        seconds = self._durations.race(task) + self._durations.prepare(task)
        return _expected(self._races, _RACED) / (earlier + 1) ** 2 / seconds


def _expected(total: _Sum, prior: float) -> float:
    return (total.seconds + _TRIES * prior) / (total.count + _TRIES)


def most_promising(costs: Mapping[str, float], waiting: list[str]) -> str:
    """The candidate to try next on a problem.

    First come those within 5 % of the best elsewhere. Then come those not tried anywhere yet, in the given order, then
    the others.

    Args:
        costs: natural logarithm of a candidate's time over the best, as a mean over the operator's problems.
    """
    return min(waiting, key=lambda c: costs.get(c, 0.05))
