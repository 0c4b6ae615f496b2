"""The parts of a survey: for each kind of calls its shapes, and the candidates that are timed on them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Evidence
from aot_tune.select import PRESELECTED, Costs, preselect, scouts
from aot_tune.spec import Problem
from aot_tune.spec.workload import Kind, kind_of, survey_shapes
from aot_tune.support.digests import canonical_digest

__all__ = ["Part", "parts_of", "turns"]

_SCOUTED, _OF_SHAPES = 40, 5
"""This many shapes, or a fifth of all, decide which candidates are surveyed."""
_IN_TURN = 64
"""The first shapes of each kind are surveyed in turn, one of each kind. Later, kinds of more weight get more."""
_LEAST_SHARE = 0.1
_PATIENCE = 1e8
"""The longest call of a generic variant in ns. Longer calls would take all of a survey's time."""


@dataclass
class Part:
    """The shapes of one kind of an operator's calls, and the units that are timed on them.

    A unit is one config of a kernel: its candidates differ only in what they assume of a call. Results are compared
    with those of a vendor's library, `first`. If it does not serve a shape, they are compared with those of `generics`,
    unless these would take too long. All units are timed on `scouted` problems, and only `chosen` candidates on the
    others. `share` is the weight of the kind's problems relative to the heaviest kind. `paces` are the most ns that
    candidates take for a FLOP or byte. `tuned` are the ids of the kind's tuned problems.
    """

    evidence: Evidence
    kind: Kind
    problems: Sequence[Problem]
    first: Sequence[Variant]
    generics: Sequence[Variant]
    units: Mapping[str, Sequence[Variant]]
    known: frozenset[str]
    share: float
    paces: Mapping[str, float]
    scouted: Sequence[Problem]
    chosen: list[str] = field(default_factory=list)
    tuned: frozenset[str] = frozenset()

    @property
    def left(self) -> bool:
        """Whether there are shapes without known times."""
        return any(self.lacks(p) for p in self.problems)

    def lacks(self, problem: Problem) -> bool:
        """Whether a shape has no known times, though something serves it of what is chosen, if it is already."""
        return problem.id not in self.known and not (self.chosen and not self._able(problem))

    def _able(self, problem: Problem) -> list[Variant]:
        evidence = self.evidence
        return [e for e in self.entries() if evidence.worth_a_try(e, problem) and not evidence.failed(e.candidate.id)]

    def entries(self) -> list[Variant]:
        """The candidates to time: all, until some are chosen."""
        first = {e.id for e in self.first}
        others = [e for own in self.units.values() for e in own if not self.chosen or e.id in self.chosen]
        return self.evidence.now([*self.first, *(e for e in others if e.id not in first)])

    def tried(self, problem: Problem) -> list[Variant]:
        """The candidates to time on a shape. The others are compared with the first of them."""
        evidence, able = self.evidence, self._able(problem)
        if able and any(able[0].id == e.id for e in self.first):
            return able
        most = _PATIENCE / evidence.operator.amount(problem)
        patient = [e for e in evidence.now(self.generics) if self.paces.get(e.candidate.id, 0.0) < most]
        return [*(e for e in patient if evidence.worth_a_try(e, problem)), *able]

    def only(self, problems: Sequence[Problem]) -> None:
        """Survey no other shapes than these, each with all that is chosen."""
        self.problems, self.scouted = problems, ()

    def settle(self, most: int = PRESELECTED) -> None:
        """Choose the candidates to go on with, by times on tuned problems and surveyed shapes. Drop the others' times.

        Surveyed shapes together weigh at least as much as the tuned problems, which may be many more.
        """
        if self.chosen:
            return
        able = {e.candidate.id: name for name, own in self.units.items() for e in own}
        own = {p.id for p in self.problems}
        costs = _rows(self.evidence).get(self.kind, {})
        tuned = {p: r for p, r in costs.items() if p not in self.evidence.surveyed.times}
        surveyed = {p: row for p, row in self.evidence.surveyed.times.items() if p in own}
        rows = {p: {c: t for c, t in row.items() if c in able} for p, row in {**tuned, **surveyed}.items()}
        weights = dict.fromkeys(surveyed, max(len(tuned) / max(len(surveyed), 1), 1.0))
        tiles = _tiles(self.evidence, self.units)
        alike = {c: tiles[name] for c, name in able.items() if name in tiles}
        self.chosen = preselect({p: r for p, r in rows.items() if r}, alike, most, weights)
        self.evidence.keep_surveyed(own, {e.candidate.id for e in (*self.generics, *self.entries())})


def parts_of(evidence: Evidence, count: int) -> Iterator[Part]:
    """What is to be surveyed of an operator, if it has more than one variant to choose from."""
    operator = evidence.operator
    own: dict[Kind, list[Problem]] = {}
    for one in evidence.workload:
        own.setdefault(kind_of(operator, operator.facts(one)), []).append(one)
    weights = {kind: sum(evidence.weights.get(p.id, 1.0) for p in ps) for kind, ps in own.items()}
    generics = [e for e in evidence.entries.values() if e.candidate.generic and e.code]
    paces, every = _paces(evidence), _rows(evidence)
    for kind, drawn in survey_shapes(operator, evidence.target.family, count).items():
        rows = every.get(kind, {})
        problems = _mixed([p for p in own.get(kind, ()) if p.id in rows], drawn)
        first = _vendors(evidence, problems)
        units = _units(evidence, rows)
        known = frozenset(p.id for p in problems if p.id in evidence.surveyed.times)
        share = max(weights.get(kind, 0.0) / max(weights.values(), default=1.0), _LEAST_SHARE)
        scouted = problems[: min(_SCOUTED, len(problems) // _OF_SHAPES)]
        chosen = _known(evidence, units, known) if len(known) >= max(len(scouted), 1) else []
        if len(units) > 1:
            scouted = [] if chosen else scouted
            tuned = frozenset(rows)
            yield Part(evidence, kind, problems, first, generics, units, known, share, paces, scouted, chosen, tuned)


def turns(parts: Sequence[Part], *, scouted: bool) -> list[tuple[Part, Problem]]:
    """The shapes without known times, in the order of the survey: the `scouted` ones, or the others."""
    found: list[tuple[float, int, Part, Problem]] = []
    for place, part in enumerate(parts):
        first = {p.id for p in part.scouted}
        for number, one in enumerate(part.problems):
            later = number if number < _IN_TURN else _IN_TURN + (number - _IN_TURN) / part.share
            if (one.id in first) == scouted and part.lacks(one):
                found.append((later, place, part, one))
    return [(part, one) for _, _, part, one in sorted(found, key=lambda f: f[:2])]


def _paces(evidence: Evidence) -> dict[str, float]:
    """By candidate, ns for a FLOP or byte on the tuned problem where it is slowest."""
    known, found = {p.id: evidence.operator.amount(p) for p in evidence.workload}, dict[str, float]()
    for problem, row in evidence.times().items():
        for candidate, ns in row.items() if problem in known else ():
            found[candidate] = max(found.get(candidate, 0.0), ns / known[problem])
    return found


def _rows(evidence: Evidence) -> dict[Kind, Costs]:
    """The costs of each kind's tuned problems, without a vendor library's algorithms for single problems."""
    operator, found = evidence.operator, dict[Kind, Costs]()
    kinds = {p.id: kind_of(operator, operator.facts(p)) for p in evidence.workload}
    for problem, row in evidence.choice_costs().items():
        free = {c: t for c, t in row.items() if not evidence.is_bound(evidence.entries[c])}
        if problem in kinds and free:
            found.setdefault(kinds[problem], {})[problem] = free
    return found


def _units(evidence: Evidence, rows: Costs) -> dict[str, list[Variant]]:
    """The first units: those that lead on tuned problems, then the next best of each kernel in turn."""
    names, members, kernels = {}, dict[str, list[Variant]](), {}
    timed = {c for row in rows.values() for c in row}
    for entry in evidence.entries.values():
        one = entry.candidate
        if one.id in timed and not one.generic and not evidence.failed(one.id):
            name = canonical_digest([one.kernel, one.dtypes, one.config])
            names[one.id], kernels[name] = name, one.kernel
            members.setdefault(name, []).append(entry)
    costs = {p: row for p, r in rows.items() if (row := _of_units(r, names))}
    return {name: members[name] for name in scouts(costs, _tiles(evidence, members), kernels)}


def _known(evidence: Evidence, units: Mapping[str, Sequence[Variant]], known: Collection[str]) -> list[str]:
    """The candidates with known times: those that an earlier survey went on with."""
    timed = {c for p in known for c in evidence.surveyed.times[p]}
    return [e.candidate.id for own in units.values() for e in own if e.candidate.id in timed]


def _of_units(row: Mapping[str, float], names: Mapping[str, str]) -> dict[str, float]:
    """The least time of each unit. `names` has the unit of each candidate."""
    found: dict[str, float] = {}
    for candidate, time in row.items():
        if candidate in names:
            name = names[candidate]
            found[name] = min(time, found.get(name, time))
    return found


def _tiles(evidence: Evidence, units: Mapping[str, Sequence[Variant]]) -> dict[str, str]:
    """The kernel and tile of each unit, which nearly equal units have in common."""
    found = {}
    for name, own in units.items():
        one = own[0].candidate
        tiling = evidence.operator.kernel(one.kernel).tiling(one.config)
        if tiling is not None:
            found[name] = f"{one.kernel} {sorted(tiling.extents.items())} {tiling.split}"
    return found


def _vendors(evidence: Evidence, problems: Sequence[Problem]) -> list[Variant]:
    """Candidates that leave the choice to a vendor's library, for the current dtypes. Composed ones come last."""
    able = [e for e in evidence.entries.values() if evidence.leaves_choice(e) and e.code]
    found = [e for e in able if any(evidence.worth_a_try(e, p) for p in problems)]
    return sorted(found, key=lambda e: not evidence.is_vendors(e))


def _mixed(own: Sequence[Problem], drawn: Sequence[Problem]) -> list[Problem]:
    """Drawn shapes, alternating with tuned problems as long as there are any: not all units were timed on these."""
    pairs = itertools.zip_longest(drawn, own)
    return [p for pair in pairs for p in pair if p is not None]
