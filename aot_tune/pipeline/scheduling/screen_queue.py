"""Screens that wait for a device, by priority. First come those that decide whether others are compiled."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.measuring.device_pool import DevicePool, Job, More
from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.pipeline.pruning import Resemblances, competes, rank_of
from aot_tune.spec import Problem
from aot_tune.support.errors import WorkerError

__all__ = ["Priority", "QueuedProblem", "ScreenQueue", "queued_problems", "screen_queued"]


class Priority(IntEnum):
    """The order of screens. `DECIDING` ones decide whether candidates that follow others are compiled."""

    NOTHING = 0
    OTHERS = 1
    DECIDING = 2


@dataclass
class QueuedProblem:
    """A problem in the queue. All measurements with its number are made on one device.

    `rivals` wait for screens that decide which followers are compiled. `others` are the other candidates that wait.
    `awaited` is the compile time of such followers in seconds, 0 if there are none. Problems of a lower `rank` tell
    what need not be tried on this one. Problems of more `weight` come first; without a budget all have the same weight.
    """

    number: int
    evidence: Evidence
    problem: Problem
    rank: int = 0
    weight: float = 1.0
    awaited: float = 0.0
    rivals: list[Variant] = field(default_factory=list)
    others: list[Variant] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def priority_of_rivals(self) -> Priority:
        """The priority of a rival's screen."""
        return Priority.DECIDING if self.awaited > 0.0 else Priority.OTHERS

    @property
    def priority(self) -> Priority:
        """The highest priority of what waits."""
        if self.rivals:
            return self.priority_of_rivals
        return Priority.OTHERS if self.others else Priority.NOTHING

    def take(self, priority: Priority) -> list[Variant]:
        """Take out what waits with a priority."""
        taken: list[Variant] = []
        with self._lock:
            if self.priority_of_rivals == priority:
                taken, self.rivals = self.rivals, []
            if priority == Priority.OTHERS:
                taken, self.others = [*taken, *self.others], []
        return taken

    def add(self, variants: Iterable[Variant]) -> None:
        """Queue those of the variants that were not screened."""
        for variant in variants:
            if not self.evidence.has(variant, self.problem):
                with self._lock:
                    (self.rivals if competes(self.evidence, variant) else self.others).append(variant)


def queued_problems(evidences: Sequence[Evidence], *, weighed: bool = False) -> list[QueuedProblem]:
    """All problems of the operators' workloads. They are `weighed` if a budget may end before the last of them."""
    each = ((evidence, problem) for evidence in evidences for problem in evidence.workload)
    return [
        QueuedProblem(
            number,
            evidence,
            problem,
            rank=rank_of(evidence.operator, problem),
            weight=evidence.operator.weight(problem) if weighed else 1.0,
        )
        for number, (evidence, problem) in enumerate(each)
    ]


class ScreenQueue:
    """Candidates that are compiled and not screened yet. `weighed` is as in `queued_problems`.

    `screened` counts how often a device screened a problem, `decided` how often these screens were deciding ones.
    """

    def __init__(self, evidences: Sequence[Evidence], *, weighed: bool = False) -> None:
        self._places = queued_problems(evidences, weighed=weighed)
        self._weighs = len({p.weight for p in self._places}) > 1
        self._resemblances: dict[int, tuple[int, Resemblances]] = {}
        self._fallen = {id(evidence): _fallen(evidence) for evidence in evidences}
        self._begun, self._lock = set[int](), threading.Lock()
        self.screened = self.decided = 0

    def __bool__(self) -> bool:
        return any(place.rivals or place.others for place in self._places)

    def add(self, variants: Iterable[Variant]) -> None:
        """Queue variants with an object for the problems that they are meant for."""
        by_operator: dict[str, list[Variant]] = {}
        for variant in variants:
            by_operator.setdefault(variant.candidate.operator, []).append(variant)
        for place in self._places if by_operator else ():
            evidence, mine = place.evidence, by_operator.get(place.evidence.operator.name, [])
            place.add(evidence.tried(place.problem, mine) if mine else ())

    def rank(self, awaited: Mapping[tuple[str, str], float]) -> None:
        """Set, by operator and problem id, the seconds of what awaits the screens of rivals; see `QueuedProblem`."""
        for place in self._places:
            place.awaited = awaited.get((place.evidence.operator.name, place.problem.id), 0.0)

    def priority_of(self, variant: Variant) -> Priority:
        """The highest priority that a screen of a variant would have."""
        own = [p for p in self._places if p.evidence.operator.name == variant.candidate.operator]
        decides = bool(own) and competes(own[0].evidence, variant)
        awaited = decides and any(p.awaited > 0.0 and p.evidence.meant_for(variant, p.problem) for p in own)
        return Priority.DECIDING if awaited else Priority.OTHERS

    def weight_of(self, variant: Variant) -> float:
        """The weight of all problems that a variant is meant for; 0 if all problems weigh the same."""
        mine = (p for p in self._places if p.evidence.operator.name == variant.candidate.operator)
        return math.fsum(p.weight for p in mine if p.evidence.meant_for(variant, p.problem)) if self._weighs else 0.0

    def unsettled(self, evidence: Evidence) -> set[str]:
        """Ids of an operator's problems on which rivals wait or a device is at work."""
        own = (place for place in self._places if place.evidence is evidence)
        return {place.problem.id for place in own if place.rivals or place.number in self._begun}

    def screen(self, pool: DevicePool, stop: Callable[[Priority], bool], more: More = lambda: ()) -> None:
        """Screen what waits with the highest priority. `stop`, asked with that priority, keeps problems from starting.

        Problems of more weight come first. Among deciding screens, those with the longest awaited compiles come next.
        If all weigh the same, each operator goes to few devices. Idle devices ask for `more`.
        """
        pool.each(self.jobs(stop), more, _any if self._weighs else self.operator_of)
        self._reconsider()

    def jobs(self, stop: Callable[[Priority], bool]) -> list[tuple[int, Job]]:
        """The next screens: those of the highest priority, on problems on which no device is at work."""
        waiting = [place for place in self._places if place.priority and place.number not in self._begun]
        top = max((place.priority for place in waiting), default=Priority.NOTHING)
        chosen = [place for place in waiting if place.priority == top]
        if top == Priority.DECIDING:
            chosen.sort(key=lambda place: (-place.weight, -place.awaited, place.rank, place.number))
        else:
            chosen.sort(key=lambda place: (-place.weight, place.rank, place.number))
        known = [(place, self._resemblances_of(place.evidence)) for place in chosen]
        return [(place.number, partial(self._screen, place, found, top, stop)) for place, found in known]

    def _screen(
        self,
        place: QueuedProblem,
        resemblances: Resemblances,
        priority: Priority,
        stop: Callable[[Priority], bool],
        measurer: Measurer,
    ) -> bool:
        self._begun.add(place.number)
        try:
            return screen_queued(place, resemblances, priority, stop, measurer)
        finally:
            with self._lock:
                self.screened += 1
                self.decided += priority == Priority.DECIDING
            self._begun.discard(place.number)

    def settled(self) -> list[QueuedProblem]:
        """Problems on which nothing waits and no device is at work."""
        return [p for p in self._places if not p.priority and p.number not in self._begun]

    def problems_of(self, evidence: Evidence) -> list[tuple[int, Problem]]:
        """An operator's problems with their numbers."""
        return [(p.number, p.problem) for p in self._places if p.evidence is evidence]

    def operator_of(self, number: int) -> str:
        """The operator's name for a problem's number; empty for a number that belongs to no problem."""
        return self._places[number].evidence.operator.name if number >= 0 else ""

    def _resemblances_of(self, evidence: Evidence) -> Resemblances:
        count, found = self._resemblances.get(id(evidence), (0, None))
        if found is None or count != len(evidence.variants):
            count, found = len(evidence.variants), Resemblances(evidence)
            self._resemblances[id(evidence)] = count, found
        return found

    def _reconsider(self) -> None:
        """If candidates have failed since the last call, queue again what was passed over."""
        for evidence in {id(place.evidence): place.evidence for place in self._places}.values():
            before, self._fallen[id(evidence)] = self._fallen[id(evidence)], _fallen(evidence)
            if before == self._fallen[id(evidence)]:
                continue
            passed = evidence.reconsider()
            for place in (p for p in self._places if p.evidence is evidence):
                mine = (evidence.variants[c] for c, problem in passed if problem == place.problem.id)
                place.add(evidence.tried(place.problem, mine))


def _any(_number: int) -> str:
    return ""


def _fallen(evidence: Evidence) -> int:
    """How many candidates failed or did not compile."""
    return len(evidence.broken) + sum(e.does_not_compile for e in evidence.variants.values())


def screen_queued(
    place: QueuedProblem,
    resemblances: Resemblances,
    priority: Priority,
    stop: Callable[[Priority], bool],
    measurer: Measurer,
) -> bool:
    """Screen what waits on a problem with a priority. Returns whether anything was started."""
    taken = [] if stop(priority) else place.take(priority)
    if not taken:
        return False
    passed = resemblances.pass_over(place.problem, taken)
    if passed:
        measurer.spare(place.evidence.operator, place.problem, len(passed))
        taken = [e for e in taken if e.candidate.id not in passed]
    try:
        measurer.screen(place.evidence, place.problem, taken)
    except WorkerError:  # another device may screen them
        place.add(taken)
        raise
    return True
