"""What a survey with little time does: it is planned before it begins, so that all of it fits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from aot_tune.pipeline.shipping.surveyed_parts import Part
from aot_tune.spec import Problem

__all__ = ["Shapes", "plan", "planned"]

LEADERS = 6
"""How many candidates are timed on each shape of a plan, at most: those that lead on the tuned problems."""
HANDFUL = 4
"""No shape takes more than its kind's share of the time over this. So each kind gets at least so many."""
_ALIKE = 0.7
"""A shape that is this near to being the farthest from what is known teaches the same. The cheapest is taken."""
_ENOUGH = 8
"""A kind of calls of which a record has so many shapes gets no more."""
_TURN, _CALLS, _INPUTS = 0.016, 3.6, 1.3e-8
"""Seconds of a candidate's turn beside its calls, calls of a turn, and seconds for a byte of inputs.

Fitted to 140 shapes on two cores of a Zen 3 EPYC."""


@dataclass
class Shapes:
    """The shapes that a kind of calls may have surveyed.

    Args:
        points: log2 of each shape's extents.
        seconds: what each shape takes with all its candidates.
        known: log2 of extents for which times are known.
    """

    points: Sequence[Sequence[float]]
    seconds: Sequence[float]
    known: Sequence[Sequence[float]] = ()
    chosen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._far = [min((math.dist(p, k) for k in self.known), default=math.inf) for p in self.points]

    def choose(self, most: float) -> float:
        """Choose a shape that takes at most so many seconds, and return these; 0 if there is none.

        First come the least and the largest, by the time that they take, then those farthest from what is known.
        """
        able = [n for n, s in enumerate(self.seconds) if s <= most and n not in self.chosen]
        if not able:
            return 0.0
        if len(self.chosen) < 2:
            place = (max if self.chosen else min)(able, key=lambda n: (self.seconds[n], n))
        else:
            least = _ALIKE * max(self._far[n] for n in able)
            place = min((n for n in able if self._far[n] >= least), key=lambda n: (self.seconds[n], n))
        self.chosen.append(place)
        self._far = [min(d, math.dist(p, self.points[place])) for d, p in zip(self._far, self.points, strict=True)]
        return self.seconds[place]


def plan(kinds: Sequence[Shapes], seconds: float) -> None:
    """Choose shapes of each kind in turn, the same number of each, as many as fit into so many seconds together."""
    share = seconds / max(len(kinds), 1) / HANDFUL
    going, left = list(kinds), seconds
    while going:
        for kind in tuple(going):
            took = kind.choose(min(share, left))
            left -= took
            if not took:
                going.remove(kind)


def planned(parts: Sequence[Part], seconds: float) -> list[Part]:
    """The parts, each with its leading candidates and the shapes that fit into so many seconds together."""
    parts = [p for p in parts if len(p.known) < _ENOUGH]
    kinds, drawn = list[Shapes](), list[list[Problem]]()
    for part in parts:
        part.settle(LEADERS)
        tuned = [p for p in part.problems if p.id in part.tuned]
        drawn.append([p for p in part.problems if p.id not in part.tuned and p.id not in part.known and part.tried(p)])
        times = [seconds_of(part, p) for p in drawn[-1]]
        kinds.append(Shapes([_point(p) for p in drawn[-1]], times, [_point(p) for p in tuned]))
    plan(kinds, seconds)
    for part, kind, shapes in zip(parts, kinds, drawn, strict=True):
        part.only([shapes[n] for n in kind.chosen])
    return [p for p in parts if p.problems]


def seconds_of(part: Part, problem: Problem) -> float:
    """The seconds that a shape is expected to take with all its candidates, by their times on tuned problems."""
    operator, tried = part.evidence.operator, part.tried(problem)
    paces = [part.paces[e.candidate.id] for e in tried if e.candidate.id in part.paces]
    usual = statistics.fmean(paces) if paces else 0.0  # of those without a time
    calls = sum(part.paces.get(e.candidate.id, usual) for e in tried) * operator.amount(problem) * 1e-9
    return _TURN * len(tried) + _CALLS * calls + _INPUTS * operator.tensor_bytes(problem)


def _point(problem: Problem) -> list[float]:
    return [math.log2(max(n, 1)) for _, n in sorted(problem.dims.items())]
