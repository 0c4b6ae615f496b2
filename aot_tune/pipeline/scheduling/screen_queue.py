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
        self._queued = queued_problems(evidences, weighed=weighed)
        self._weighs = len({p.weight for p in self._queued}) > 1
        self._resemblances: dict[int, tuple[int, Resemblances]] = {}
        self._fallen = {id(evidence): _fallen(evidence) for evidence in evidences}
        self._begun, self._lock = set[int](), threading.Lock()
        self.screened = self.decided = 0

    def __bool__(self) -> bool:
        return any(p.rivals or p.others for p in self._queued)

    def add(self, variants: Iterable[Variant]) -> None:
        """Queue variants with an object for the problems that they are meant for."""
        by_operator: dict[str, list[Variant]] = {}
        for variant in variants:
            by_operator.setdefault(variant.candidate.operator, []).append(variant)
        for queued in self._queued if by_operator else ():
            evidence, mine = queued.evidence, by_operator.get(queued.evidence.operator.name, [])
            queued.add(evidence.tried(queued.problem, mine) if mine else ())

    def rank(self, awaited: Mapping[tuple[str, str], float]) -> None:
        """Set, by operator and problem id, the seconds of what awaits the screens of rivals; see `QueuedProblem`."""
        for queued in self._queued:
            queued.awaited = awaited.get((queued.evidence.operator.name, queued.problem.id), 0.0)

    def priority_of(self, variant: Variant) -> Priority:
        """The highest priority that a screen of a variant would have."""
        mine = [p for p in self._queued if p.evidence.operator.name == variant.candidate.operator]
        decides = bool(mine) and competes(mine[0].evidence, variant)
        awaited = decides and any(p.awaited > 0.0 and p.evidence.meant_for(variant, p.problem) for p in mine)
        return Priority.DECIDING if awaited else Priority.OTHERS

    def weight_of(self, variant: Variant) -> float:
        """The weight of all problems that a variant is meant for; 0 if all problems weigh the same."""
        mine = (p for p in self._queued if p.evidence.operator.name == variant.candidate.operator)
        return math.fsum(p.weight for p in mine if p.evidence.meant_for(variant, p.problem)) if self._weighs else 0.0

    def unsettled(self, evidence: Evidence) -> set[str]:
        """Ids of an operator's problems on which rivals wait or a device is at work."""
        mine = (p for p in self._queued if p.evidence is evidence)
        return {p.problem.id for p in mine if p.rivals or p.number in self._begun}

    def screen(self, pool: DevicePool, stop: Callable[[Priority], bool], more: More = lambda: ()) -> None:
        """Screen what waits with the highest priority. `stop`, asked with that priority, keeps problems from starting.

        Problems of more weight come first. Among deciding screens, those with the longest awaited compiles come next.
        If all weigh the same, each operator goes to few devices. Idle devices ask for `more`.
        """
        pool.each(self.jobs(stop), more, _any if self._weighs else self.operator_of)
        self._reconsider()

    def jobs(self, stop: Callable[[Priority], bool]) -> list[tuple[int, Job]]:
        """The next screens: those of the highest priority, on problems on which no device is at work."""
        waiting = [p for p in self._queued if p.priority and p.number not in self._begun]
        top = max((p.priority for p in waiting), default=Priority.NOTHING)
        chosen = [p for p in waiting if p.priority == top]
        if top == Priority.DECIDING:
            chosen.sort(key=lambda p: (-p.weight, -p.awaited, p.rank, p.number))
        else:
            chosen.sort(key=lambda p: (-p.weight, p.rank, p.number))
        screens = [(p, self._resemblances_of(p.evidence)) for p in chosen]
        return [(p.number, partial(self._screen, p, resemblances, top, stop)) for p, resemblances in screens]

    def _screen(
        self,
        queued: QueuedProblem,
        resemblances: Resemblances,
        priority: Priority,
        stop: Callable[[Priority], bool],
        measurer: Measurer,
    ) -> bool:
        self._begun.add(queued.number)
        try:
            return screen_queued(queued, resemblances, priority, stop, measurer)
        finally:
            with self._lock:
                self.screened += 1
                self.decided += priority == Priority.DECIDING
            self._begun.discard(queued.number)

    def settled(self) -> list[QueuedProblem]:
        """Problems on which nothing waits and no device is at work."""
        return [p for p in self._queued if not p.priority and p.number not in self._begun]

    def problems_of(self, evidence: Evidence) -> list[tuple[int, Problem]]:
        """An operator's problems with their numbers."""
        return [(p.number, p.problem) for p in self._queued if p.evidence is evidence]

    def operator_of(self, number: int) -> str:
        """The operator's name for a problem's number; empty for a number that belongs to no problem."""
        return self._queued[number].evidence.operator.name if number >= 0 else ""

    def _resemblances_of(self, evidence: Evidence) -> Resemblances:
        count, resemblances = self._resemblances.get(id(evidence), (0, None))
        if resemblances is None or count != len(evidence.variants):
            count, resemblances = len(evidence.variants), Resemblances(evidence)
            self._resemblances[id(evidence)] = count, resemblances
        return resemblances

    def _reconsider(self) -> None:
        """If candidates have failed since the last call, queue again what was passed over."""
        for evidence in {id(p.evidence): p.evidence for p in self._queued}.values():
            before, self._fallen[id(evidence)] = self._fallen[id(evidence)], _fallen(evidence)
            if before == self._fallen[id(evidence)]:
                continue
            passed = evidence.reconsider()
            for queued in (p for p in self._queued if p.evidence is evidence):
                mine = (evidence.variants[c] for c, problem in passed if problem == queued.problem.id)
                queued.add(evidence.tried(queued.problem, mine))


def _any(_number: int) -> str:
    return ""


def _fallen(evidence: Evidence) -> int:
    """How many candidates failed or did not compile."""
    return len(evidence.broken) + sum(e.does_not_compile for e in evidence.variants.values())


def screen_queued(
    queued: QueuedProblem,
    resemblances: Resemblances,
    priority: Priority,
    stop: Callable[[Priority], bool],
    measurer: Measurer,
) -> bool:
    """Screen what waits on a problem with a priority. Returns whether anything was started."""
    taken = [] if stop(priority) else queued.take(priority)
    if not taken:
        return False
    passed = resemblances.pass_over(queued.problem, taken)
    if passed:
        measurer.spare(queued.evidence.operator, queued.problem, len(passed))
        taken = [e for e in taken if e.candidate.id not in passed]
    try:
        measurer.screen(queued.evidence, queued.problem, taken)
    except WorkerError:  # another device may screen them
        queued.add(taken)
        raise
    return True
