"""Screens that wait for a device: first those that tell whether other candidates are to be compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from aot_tune.errors import WorkerError
from aot_tune.pipeline.crew import Crew
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.follow import competes, resembles
from aot_tune.pipeline.measure import Measurer
from aot_tune.pipeline.session import LoadedOperator
from aot_tune.spec import Problem

__all__ = ["Backlog", "Place", "places_of"]


@dataclass
class Place:
    """A problem; what is measured of its number is measured on one device.

    Candidates that are to be screened on it wait: in `rivals` those whose times decide what is compiled that follows
    others, in `others` the rest. `urgency` are the seconds that such followers take to compile, 0 without any. On one
    that `follows`, what is tried depends on the problem of another dtype.
    """

    number: int
    loaded: LoadedOperator
    evidence: Evidence
    problem: Problem
    follows: bool = False
    urgency: float = 0.0
    rivals: list[Entry] = field(default_factory=list)
    others: list[Entry] = field(default_factory=list)

    @property
    def most(self) -> float:
        """How urgent the most urgent of what waits is; negative where nothing does."""
        return self.urgency if self.rivals else 0.0 if self.others else -1.0

    def take(self, urgency: float) -> list[Entry]:
        """What waits and is of some urgency; it does not wait any more."""
        taken: list[Entry] = []
        if self.urgency == urgency:
            taken, self.rivals = self.rivals, []
        if urgency == 0.0:
            taken, self.others = [*taken, *self.others], []
        return taken

    def add(self, entries: Iterable[Entry]) -> None:
        """Have those of the entries wait that were not screened."""
        for entry in entries:
            if not self.evidence.has(entry, self.problem):
                (self.rivals if competes(self.evidence, entry) else self.others).append(entry)


def places_of(pairs: Sequence[tuple[LoadedOperator, Evidence]]) -> list[Place]:
    """All problems of the operators' workloads."""
    each = ((loaded, evidence, problem) for loaded, evidence in pairs for problem in evidence.workload)
    return [
        Place(number, loaded, evidence, problem, resembles(evidence.operator, problem))
        for number, (loaded, evidence, problem) in enumerate(each)
    ]


class Backlog:
    """What is compiled and not screened yet."""

    def __init__(self, pairs: Sequence[tuple[LoadedOperator, Evidence]]) -> None:
        self._places = places_of(pairs)

    def __bool__(self) -> bool:
        return any(place.rivals or place.others for place in self._places)

    def add(self, entries: Iterable[Entry]) -> None:
        """Have entries that have their object screened on the problems that they are meant for."""
        by_operator: dict[str, list[Entry]] = {}
        for entry in entries:
            by_operator.setdefault(entry.candidate.operator, []).append(entry)
        for place in self._places if by_operator else ():
            evidence, mine = place.evidence, by_operator.get(place.evidence.operator.name, [])
            place.add(evidence.tried(place.problem, mine) if mine else ())

    def rank(self, urgency: Mapping[tuple[str, str], float]) -> None:
        """Say how urgent screens are, by operator and problem id; see `Place`."""
        for place in self._places:
            place.urgency = urgency.get((place.evidence.operator.name, place.problem.id), 0.0)

    def urgency_of(self, entry: Entry) -> float:
        """How urgent an entry's most urgent screen would be."""
        own = [p for p in self._places if p.evidence.operator.name == entry.candidate.operator]
        if not own or not competes(own[0].evidence, entry):
            return 0.0
        return max((p.urgency for p in own if p.urgency and p.evidence.meant_for(entry, p.problem)), default=0.0)

    def unsettled(self, evidence: Evidence) -> set[str]:
        """Ids of an operator's problems on which rivals wait."""
        return {place.problem.id for place in self._places if place.evidence is evidence and place.rivals}

    def screen(self, crew: Crew, stop: Callable[[float], bool]) -> None:
        """Screen the most urgent of what waits; no problem is begun any more once `stop` says so of that urgency."""
        most = [(place, place.most) for place in self._places]
        top = max((urgency for _, urgency in most), default=-1.0)
        chosen = sorted((place for place, urgency in most if urgency == top >= 0.0), key=lambda place: place.follows)
        crew.each((place.number, partial(_screen, place, top, stop)) for place in chosen)


def _screen(place: Place, urgency: float, stop: Callable[[float], bool], measurer: Measurer) -> bool:
    if stop(urgency):
        return False
    taken = place.take(urgency)
    try:
        measurer.screen(place.loaded, place.evidence, place.problem, taken)
    except WorkerError:  # another device may screen them
        place.add(taken)
        raise
    return True
