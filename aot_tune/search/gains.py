"""Under a budget: which problem is worth the next seconds, from what tries have brought and taken so far."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ON_CPU", "ON_GPU", "Durations", "Gains", "Rates", "Task", "most_promising"]

_WEIGHT = 1e8
"""What is expected to begin with weighs as much as so many bytes of measurements."""
_LEAST = 0.02
"""Seconds that each screen takes beside."""
_SHORTEST = 1e-3
"""Seconds that a screen counts as at least: of one that a killed worker ended, all was waiting."""
_RACE = 8.0
"""A race takes so many times as long as a screen, to begin with; that weighs as much as one race."""

_FIRST, _LATER = 2.0, 0.5
"""Natural logarithms by which a time is expected to fall: by the first candidate that an operator's calls have beside
the generic one, and by the first on a problem, which the winners elsewhere serve until then; the n-th try there after
brings this over n squared until the operator's tries say more."""
_RACED = 0.1
"""The same of a race, which corrects what the few samples of screens pick."""
_TRIES = 2.0
"""What is expected to begin with weighs as much as so many tries."""


@dataclass(frozen=True)
class Rates:
    """Seconds per byte that a screen, and what is done once for a problem, are expected to take to begin with."""

    screen: float
    prepare: float


ON_CPU = Rates(screen=5e-9, prepare=2e-8)
"""As measured on one CPU."""
ON_GPU = Rates(screen=8e-11, prepare=2.6e-9)
"""What an H100's tune of 2026-11-25 took (`benchmarks/results/h100-workload.md`) beyond `_LEAST` for each
screen, over the bytes of its record."""


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
    """What things take, in seconds: learned from what was done, a problem's own times before those of others.

    `compiling` is on the wall, with as many compilers at a time as there are; its sizes are what the kernels' authors
    say of one candidate. A race takes at least `least_race` seconds until one is known. Of an operator that nothing is
    known of, a screen takes no longer per byte than those of all others did: the device may be a fast one.
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
        """Compiling a candidate took that long, of which its author expected `size` seconds of one compiler."""
        self.compiling.add(seconds, size)

    def was_prepared(self, task: Task, seconds: float | None) -> None:
        """What is done but once for a problem took `seconds`: references, odd problems, buffers; None: nobody knows."""
        if task not in self.prepared:
            self.prepared.add(task)
            if seconds is not None:
                self.preparing.add(seconds, task.size)

    def screened(self, task: Task, seconds: float, beside: float | None) -> None:
        """A screen took `seconds`, and `beside` what `was_prepared` is told."""
        self.was_prepared(task, beside)
        self.screening[task.operator].add(seconds, task.size)
        self.own[task].add(seconds, task.size)

    def raced(self, task: Task, seconds: float) -> None:
        """A race took `seconds`."""
        self.racing.add(seconds, self.screen(task))

    def compile(self, size: float = 1.0) -> float:
        """More candidates compiled, of which their authors expect `size` seconds."""
        return size * (self.compiling.seconds / self.compiling.size if self.compiling.size else 1.0)

    def screen(self, task: Task) -> float:
        """One more screen on a problem that is prepared."""
        if (own := self.own.get(task)) is not None:
            return max(own.seconds / own.count, _SHORTEST)
        known, rate = self.screening[task.operator], self.rates.screen
        size = sum(one.size for one in self.screening.values())
        if size > _WEIGHT:
            rate = min(rate, sum(one.seconds for one in self.screening.values()) / size)
        return _LEAST + task.size * (known.seconds + rate * _WEIGHT) / (known.size + _WEIGHT)

    def prepare(self, task: Task) -> float:
        """What a problem's first screen, or its race where screens are known, takes beside; 0 where that was."""
        if task in self.prepared:
            return 0.0
        return task.size * (self.preparing.seconds + self.rates.prepare * _WEIGHT) / (self.preparing.size + _WEIGHT)

    def race(self, task: Task) -> float:
        """A race on a problem that is prepared; its times grow with those of screens."""
        known, screen = self.racing, self.screen(task)
        seconds = screen * (known.seconds + _RACE * screen) / (known.size + screen)
        return seconds if known.count else max(seconds, self.least_race)


class Gains:
    """How much a problem's time may fall by the next try on it, per second that the try takes.

    The fall is a natural logarithm, so that 10 % count the same on every problem. What is expected is the mean of what
    the operator's tries of that number brought (the second on a problem, the third, ...), and falls off where nothing
    is known: problems without any measurement come first, then those where the last tries still brought something.
    """

    def __init__(self, durations: Durations) -> None:
        self._durations = durations
        self._falls: defaultdict[tuple[str, int], _Sum] = defaultdict(_Sum)
        self._tries: defaultdict[Task, int] = defaultdict(int)
        self._touched: set[str] = set()
        self._races = _Sum()

    def tried(self, task: Task, before: float | None, after: float | None) -> None:
        """A screen was made; the best time was `before` and is `after`, None where there is none."""
        number = self._tries[task]
        self._tries[task] += 1
        if after is not None:
            self._touched.add(task.operator)
            if before is not None:
                self._falls[task.operator, number].add(math.log(before / after), 1)

    def raced(self, before: float, after: float) -> None:
        """A race's time of what the screens had picked was `before`, that of its winner `after`."""
        self._races.add(math.log(before / after), 1)

    def of_screen(self, task: Task) -> float:
        """Of the next screen on a problem."""
        if task.operator not in self._touched:
            fall = _FIRST
        else:
            number = self._tries[task]
            fall = _expected(self._falls[task.operator, number], _LATER / max(number, 1) ** 2)
        return fall / (self._durations.screen(task) + self._durations.prepare(task))

    def of_race(self, task: Task, earlier: int = 0) -> float:
        """Of a race on a problem between candidates that screens could not tell apart, after so many others there."""
        seconds = self._durations.race(task) + self._durations.prepare(task)
        return _expected(self._races, _RACED) / (earlier + 1) ** 2 / seconds


def _expected(known: _Sum, prior: float) -> float:
    return (known.seconds + _TRIES * prior) / (known.count + _TRIES)


def most_promising(costs: Mapping[str, float], waiting: list[str]) -> str:
    """The candidate to try next on a problem: one that was within 5 % of the best elsewhere, else one that was not
    tried anywhere yet, in the order given; then the others.

    Args:
        costs: natural logarithm of a candidate's time over the best, in the mean over the operator's problems.
    """
    return min(waiting, key=lambda c: costs.get(c, 0.05))
