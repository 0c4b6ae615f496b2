"""The shapes of a survey: what is drawn, what fits into a time, and what of it the workload says nothing about."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aot_tune.database.checks import tuned_kernels
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.shipping.story import kind_text
from aot_tune.spec import Kernel, Operator, Problem
from aot_tune.spec.calls import is_taken
from aot_tune.spec.survey_shapes import Kind, kind_of, survey_shapes, without_shapes

ADD_PROBLEMS = "Add a problem like that to the workload"

HANDFUL = 2
"""No shape takes more than its part's share of the time over this. So each regime of a kind gets at least so many."""

_ALIKE = 0.7
"""A shape that is this near to being the farthest from what is known teaches the same. The cheapest is taken."""


def drawn_shapes(session: Session, evidence: Evidence, count: int) -> dict[Kind, tuple[Problem, ...]]:
    """The shapes to survey of an operator. If a declared regime has none, or nothing has any, a line says so."""
    operator, target = evidence.operator, evidence.target
    kernels = tuned_kernels(operator, target)
    drawn = survey_shapes(operator, target.family, count, kernels)
    within = "within its ranges and values that a tuned kernel takes"
    if kernels and not any(drawn.values()):
        session.progress.line(
            f"NOTE {operator.name} on {target.name}: there is no shape {within}, so none is surveyed, and calls that "
            "are not of the workload go by the nearest problem. Compare ranges and values with what kernels require"
        )
        return drawn
    for regime in without_shapes(operator, drawn) if kernels else ():
        session.progress.line(
            f"NOTE {operator.name} on {target.name}: regime {regime!r} has no shape {within}, so none is surveyed. "
            "Compare its conditions with ranges, values and what kernels require"
        )
    return drawn


def told_gaps(evidence: Evidence, drawn: Mapping[Kind, Sequence[Problem]]) -> list[str]:
    """In words, calls of the drawn shapes about which the workload says nothing, so that tuning tells nothing of them.

    Either a kernel takes such calls of a kind and no problem of it, or nothing that was tuned serves them.
    """
    operator, lines = evidence.operator, []
    timed = {c for row in evidence.costs().values() for c in row}
    tuned = [e for c, e in evidence.variants.items() if c in timed and not e.candidate.generic]
    kernels = tuned_kernels(operator, evidence.target)
    for kind, shapes in drawn.items():
        where = kind_text(operator, kind)
        problems = [p for p in evidence.workload if kind_of(operator, operator.facts(p)) == kind]
        only_there = {k.name: _only_there(operator, k, problems, shapes) for k in kernels}
        untried = {name: p.id for name, p in only_there.items() if p is not None}
        if untried:
            lines.append(
                f"{where}: the workload has no problem for {', '.join(untried)}, but calls such as "
                f"'{next(iter(untried.values()))}' may come; these kernels are not tried there"
            )
        bare = [p.id for p in shapes if not any(evidence.worth_a_try(e, p) for e in tuned)]
        if tuned and bare:
            of = f"{len(bare)} of {len(shapes)} drawn shapes"
            lines.append(f"{where}: only the generic variant serves {of}, such as '{bare[0]}'")
    return lines


def _only_there(
    operator: Operator, kernel: Kernel, problems: Sequence[Problem], shapes: Sequence[Problem]
) -> Problem | None:
    """A shape that a kernel is meant for, if it is meant for none of the problems."""
    if any(is_taken(operator, p, [kernel], worthwhile=True) for p in problems):
        return None
    return next((p for p in shapes if is_taken(operator, p, [kernel], worthwhile=True)), None)


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
            number = (max if self.chosen else min)(able, key=lambda n: (self.seconds[n], n))
        else:
            least = _ALIKE * max(self._far[n] for n in able)
            number = min((n for n in able if self._far[n] >= least), key=lambda n: (self.seconds[n], n))
        self.chosen.append(number)
        self._far = [min(d, math.dist(p, self.points[number])) for d, p in zip(self._far, self.points, strict=True)]
        return self.seconds[number]


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
