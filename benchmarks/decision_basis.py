"""What ways to decide have in common: what they may learn from, and how expected times lead to a choice.

Ways that expect a time for each variant share three things: the times that they learn from, the weight of times near
the best, and the margin in favour of the vendor's heuristic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from surveyed import SurveyedKind

from aot_tune.select import Costs
from aot_tune.select.decide import is_held_out, times_of
from aot_tune.select.learn_times import Times
from aot_tune.select.terms import columns_of

__all__ = [
    "ByTimes",
    "Decider",
    "Expected",
    "Floats",
    "Foretold",
    "InOrder",
    "Integers",
    "Learner",
    "Lesson",
    "Sheet",
    "by_times",
    "each",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_LATENCY, _RIDGE = 2.0**22, 256
"""A roofline without a device: bytes moved in the time of a launch, and FLOPs in the time of a byte."""


class Sheet:
    """The terms of each variant on all problems of a kind, computed once."""

    def __init__(self, kind: SurveyedKind) -> None:
        self.kind = kind
        self._place = {p: i for i, p in enumerate(kind.facts)}
        by_terms = {id(t): columns_of(t, list(kind.facts.values())) for t in kind.terms.values()}
        self._columns = {v: by_terms[id(t)] for v, t in kind.terms.items()}

    def columns(self, variant: str, problems: Sequence[str]) -> Integers:
        """A variant's terms [problem, term]."""
        found: Integers = self._columns[variant][[self._place[p] for p in problems]]
        return found

    def roofline(self, problems: Sequence[str]) -> Floats:
        """log2 of a time that is about proportional to the times of any device."""
        kind = self.kind
        return np.log2([kind.moved[p] + kind.done[p] / _RIDGE + _LATENCY for p in problems])

    def places(self, problems: Sequence[str]) -> Floats:
        """The places of problems [problem, axis]: logarithms of dims, and a step for any other difference."""
        facts = [self.kind.facts[p] for p in problems]
        flags = [n for n in facts[0] if n.startswith(("present.", "attribute."))]
        rows = [
            [math.log2(max(f[d], 1)) for d in self.kind.operator.dims] + [float(f[n] != 0) for n in flags]
            for f in facts
        ]
        return np.array(rows)


@dataclass(frozen=True)
class Lesson:
    """What a way may learn from: times on some problems, and the variants to choose from."""

    sheet: Sheet
    rows: Costs
    kept: tuple[str, ...]
    caution: float
    """A variant must be expected to be faster than the vendor's by this share of that comparison's error."""

    def timed(self, variant: str, rows: Costs) -> Times:
        """The problems from which a variant's time is learned."""
        return times_of(variant, rows, self.sheet.kind.facts, self.sheet.kind.terms[variant])


class Decider(Protocol):
    """Picks variants. `operations` is about the cost of one decision, `bytes` the size of its tables."""

    operations: int
    bytes: int

    def pick(self, problems: Sequence[str], serving: Sequence[Sequence[str]]) -> list[str]:
        """For each problem, one of the variants that serve it. At least one serves."""


class Expected(Protocol):
    """Expected log2 ns of one variant."""

    operations: int
    bytes: int

    def __call__(self, sheet: Sheet, problems: Sequence[str]) -> Floats:
        """The expected values for some problems."""


Learner = Callable[[Lesson, Costs], "dict[str, Expected]"]
"""Makes expectations of the kept variants from some times."""


@dataclass(frozen=True)
class Foretold:
    """An expectation that is a function of the problems."""

    of: Callable[[Sheet, Sequence[str]], Floats]
    operations: int
    bytes: int

    def __call__(self, sheet: Sheet, problems: Sequence[str]) -> Floats:
        """The expected values for some problems."""
        return self.of(sheet, problems)


@dataclass(frozen=True)
class ByTimes:
    """Picks the variant with the least expected time."""

    sheet: Sheet
    expected: Mapping[str, Expected]
    cautions: Mapping[str, float]
    shared: int = 0

    @property
    def operations(self) -> int:
        """Operations for all kept variants."""
        return sum(e.operations for e in self.expected.values())

    @property
    def bytes(self) -> int:
        """Bytes of all tables."""
        return self.shared + sum(e.bytes for e in self.expected.values())

    def pick(self, problems: Sequence[str], serving: Sequence[Sequence[str]]) -> list[str]:
        """For each problem one of the variants that serve it."""
        place = {v: i for i, v in enumerate(self.expected)}
        times = np.array([e(self.sheet, problems) + self.cautions.get(v, 0.0) for v, e in self.expected.items()])
        found = []
        for number, variants in enumerate(serving):
            known = [v for v in variants if v in place] or [""]
            found.append(min(known, key=lambda v: (times[place[v], number], v)) if known[0] else variants[0])
        return found


@dataclass(frozen=True)
class InOrder:
    """Picks the first variant of an order that serves, or the one that a function prefers."""

    order: tuple[str, ...]
    operations: int = 0
    bytes: int = 0
    chosen: Callable[[Sequence[str]], list[Sequence[str]]] | None = None

    def pick(self, problems: Sequence[str], serving: Sequence[Sequence[str]]) -> list[str]:
        """For each problem one of the variants that serve it."""
        orders = self.chosen(problems) if self.chosen is not None else [self.order] * len(problems)
        return [
            next((v for v in (*order, *self.order) if v in variants), variants[0])
            for order, variants in zip(orders, serving, strict=True)
        ]


def by_times(learner: Learner, shared: Callable[[Lesson], int] = lambda _: 0) -> Callable[[Lesson], Decider]:
    """A way that expects a time for each variant. A fifth of the shapes is held out to measure its errors."""

    def learn(lesson: Lesson) -> Decider:
        cautions = _cautions(learner, lesson) if lesson.caution else {}
        return ByTimes(lesson.sheet, learner(lesson, lesson.rows), cautions, shared(lesson))

    return learn


def each(learn_one: Callable[[Sheet, str, Times], Expected | None]) -> Learner:
    """Expectations that are learned for each variant by itself, from at least two times."""

    def learn(lesson: Lesson, rows: Costs) -> dict[str, Expected]:
        times = {v: lesson.timed(v, rows) for v in lesson.kept}
        found = {v: learn_one(lesson.sheet, v, t) for v, t in times.items() if len(t.logs) > 1}
        return {v: e for v, e in found.items() if e is not None}

    return learn


def _cautions(learner: Learner, lesson: Lesson) -> dict[str, float]:
    """The error of each variant's expected difference from the vendor's time, multiplied by the caution."""
    learned = {p: row for p, row in lesson.rows.items() if not is_held_out(p)}
    aside = {p: row for p, row in lesson.rows.items() if is_held_out(p)}
    vendors = [v for v in lesson.kept if v in lesson.sheet.kind.vendor]
    off: dict[str, dict[str, float]] = {}
    for variant, expected in learner(lesson, learned).items():
        problems = [p for p in sorted(aside) if variant in aside[p]]
        if problems:
            logs = [math.log2(aside[p][variant]) for p in problems]
            off[variant] = dict(zip(problems, (expected(lesson.sheet, problems) - logs).tolist(), strict=True))
    vendor = off.get(vendors[0], {}) if vendors else {}
    found = {}
    for variant, own in off.items():
        beside = [own[p] - vendor[p] for p in own if p in vendor]
        if variant not in vendors and beside:
            found[variant] = lesson.caution * math.sqrt(sum(b * b for b in beside) / len(beside))
    return found
