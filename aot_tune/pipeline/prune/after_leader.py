"""What is compiled only once something else was among the best: a config in a dtype that resembles another (`follows`),
and code of a Triton function that assumes nothing, beside the code that the JIT would make."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.render import Candidate, assumes_less
from aot_tune.spec import Operator

__all__ = [
    "Groups",
    "awaited",
    "competes",
    "follows_another",
    "groups_of",
    "may_come",
    "other_dtypes",
    "resembled",
    "to_compile",
    "waiting",
]

Groups = dict[tuple[object, ...], list[Entry]]

_AMONG_THE_BEST = 1.04
"""A config was among the best of a dtype where it took at most so many times the best time on some problem."""


def to_compile(evidence: Evidence, entries: Iterable[Entry], unsettled: Collection[str] = ()) -> list[Entry]:
    """Those of an operator's entries that are to be compiled now.

    An entry that follows others is where one of them was measured, here or in a record, and was among the best. On
    problems of these ids that cannot be told yet, for something that is compiled may be better.
    """
    best, groups = _among_the_best(evidence), groups_of(evidence)
    if unsettled:
        best = {c for c in best if _problems(evidence, evidence.entries[c]).isdisjoint(unsettled)}
    return [e for e in entries if _is_due(evidence, _leaders(evidence, e, groups), best)]


def awaited(evidence: Evidence, entries: Iterable[Entry]) -> dict[str, float]:
    """By id, the problems that tell whether entries are to be compiled, which follow others: seconds that one takes."""
    found: dict[str, float] = {}
    groups = groups_of(evidence)
    for entry in entries:
        seconds = evidence.operator.kernel(entry.candidate.kernel).compile_seconds
        for leader in _leaders(evidence, entry, groups):
            found |= {p: max(seconds, found.get(p, 0.0)) for p in _problems(evidence, leader)}
    return found


def competes(evidence: Evidence, entry: Entry) -> bool:
    """Whether the time of an entry decides which others are among the best.

    Calls of a vendor's library are left out: where it is missing, or not wanted, the others serve.
    """
    return not evidence.is_vendors(entry)


def follows_another(operator: Operator, candidate: Candidate) -> bool:
    """Whether a candidate is of a dtype in which its kernel follows another."""
    return other_dtypes(operator.kernel(candidate.kernel).follows, candidate.dtypes) != candidate.dtypes


def other_dtypes(follows: Mapping[str, str], dtypes: Mapping[str, str]) -> dict[str, str]:
    """Dtypes by variable, with those that are followed in place of those that follow them."""
    return {v: follows.get(d, d) for v, d in dtypes.items()}


def _problems(evidence: Evidence, entry: Entry) -> set[str]:
    return {p.id for p in evidence.workload if evidence.meant_for(entry, p)}


def waiting(evidence: Evidence, entries: Iterable[Entry]) -> list[Entry]:
    """Those of an operator's entries that follow one which has to be measured first."""
    best, groups = _among_the_best(evidence), groups_of(evidence)
    leaders = [(e, _leaders(evidence, e, groups)) for e in entries]
    return [
        e
        for e, found in leaders
        if not _is_due(evidence, found, best) and not all(_told(evidence, leader) for leader in found)
    ]


def may_come(evidence: Evidence, entries: Sequence[Entry], unsettled: Collection[str] = ()) -> list[Entry]:
    """Those of an operator's entries that are not to be compiled now, but may be when more was screened.

    All others are being compiled, or are; of these, or by way of these, an entry waits for one that is not measured
    everywhere, or has problems of these ids. What waits for one that is never compiled is not among them.
    """
    groups, left = groups_of(evidence), {id(e) for e in entries}
    leaders = [(e, _leaders(evidence, e, groups)) for e in entries]
    coming: dict[int, Entry] = {}
    before = -1
    while len(coming) > before:
        before = len(coming)
        for entry, found in leaders:
            for leader in found if id(entry) not in coming else ():
                open_ = not _told(evidence, leader) or not _problems(evidence, leader).isdisjoint(unsettled)
                if id(leader) in coming or (open_ and id(leader) not in left):
                    coming[id(entry)] = entry
    return list(coming.values())


def _is_due(evidence: Evidence, leaders: list[Entry], best: set[str]) -> bool:
    return not leaders or any(leader.candidate.id in best and _told(evidence, leader) for leader in leaders)


def _told(evidence: Evidence, leader: Entry) -> bool:
    """Whether a candidate did not compile, or was measured wherever it is meant for."""
    failed = leader.object is not None and not leader.compiled
    return failed or (bool(leader.code) and not evidence.lacks(leader))


def _among_the_best(evidence: Evidence) -> set[str]:
    """Candidates that were among the best on some problem."""
    own = {c for c, e in evidence.entries.items() if competes(evidence, e)}
    best: set[str] = set()
    for row in evidence.costs().values():
        times = {c: t for c, t in row.items() if c in own}
        limit = _AMONG_THE_BEST * min(times.values(), default=0.0)
        best.update(c for c, t in times.items() if t <= limit)
    return best


def groups_of(evidence: Evidence) -> Groups:
    """Entries that differ in nothing but what they assume of a call."""
    found: Groups = {}
    for entry in evidence.entries.values():
        found.setdefault(_key(entry, entry.candidate.dtypes), []).append(entry)
    return found


def _key(entry: Entry, dtypes: Mapping[str, str]) -> tuple[object, ...]:
    c = entry.candidate
    return c.kernel, c.target, tuple(sorted(c.config.items())), tuple(sorted(dtypes.items()))


def _leaders(evidence: Evidence, entry: Entry, groups: Groups) -> list[Entry]:
    """The entries of which one must succeed for this one to be tried: that in the dtype which its kernel follows, and
    for code of a Triton function without assumptions, which is kept for other calls, those that assume more."""
    candidate = entry.candidate
    found = resembled(evidence, entry, groups) if competes(evidence, entry) else []
    if evidence.operator.kernel(candidate.kernel).triton is not None:
        same = groups[_key(entry, candidate.dtypes)]
        found += [e for e in same if assumes_less(candidate, e.candidate)]
    return found


def resembled(evidence: Evidence, entry: Entry, groups: Groups) -> list[Entry]:
    """The same in the dtype which an entry's kernel follows."""
    candidate = entry.candidate
    if not follows_another(evidence.operator, candidate):
        return []
    wanted = other_dtypes(evidence.operator.kernel(candidate.kernel).follows, candidate.dtypes)
    return [e for e in groups.get(_key(entry, wanted), ()) if e.candidate.pins == candidate.pins]
