"""What is compiled only after something else was among the best.

That is a config in a dtype that follows another dtype (`follows`). It is also code of a Triton function that assumes
nothing, which follows the code that the JIT would make."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Evidence
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

Groups = dict[tuple[object, ...], list[Variant]]

_AMONG_THE_BEST = 1.04
"""A config is among the best of a dtype if its time on some problem is at most this factor of the best time."""


def to_compile(evidence: Evidence, entries: Iterable[Variant], unsettled: Collection[str] = ()) -> list[Variant]:
    """The entries of an operator that are to be compiled now.

    An entry that follows others is due if one of them was measured, here or in a record, and was among the best. On
    `unsettled` problems that is not known yet, because something better may still come.
    """
    best, groups = _among_the_best(evidence), groups_of(evidence)
    if unsettled:
        best = {c for c in best if _problems(evidence, evidence.entries[c]).isdisjoint(unsettled)}
    return [e for e in entries if _is_due(evidence, _leaders(evidence, e, groups), best)]


def awaited(evidence: Evidence, entries: Iterable[Variant]) -> dict[str, float]:
    """Problem ids that decide whether following entries are compiled, with the seconds that such a compile takes."""
    found: dict[str, float] = {}
    groups = groups_of(evidence)
    for entry in entries:
        seconds = evidence.operator.kernel(entry.candidate.kernel).compile_seconds
        for leader in _leaders(evidence, entry, groups):
            found |= {p: max(seconds, found.get(p, 0.0)) for p in _problems(evidence, leader)}
    return found


def competes(evidence: Evidence, entry: Variant) -> bool:
    """Whether the time of an entry decides which others are among the best.

    Calls of a vendor's library do not count: if the library is missing or not wanted, the others must serve.
    """
    return not evidence.is_vendors(entry)


def follows_another(operator: Operator, candidate: Candidate) -> bool:
    """Whether a candidate's dtype follows another dtype of its kernel."""
    return other_dtypes(operator.kernel(candidate.kernel).follows, candidate.dtypes) != candidate.dtypes


def other_dtypes(follows: Mapping[str, str], dtypes: Mapping[str, str]) -> dict[str, str]:
    """Dtypes by variable, where each dtype that follows another is replaced by that one."""
    return {v: follows.get(d, d) for v, d in dtypes.items()}


def _problems(evidence: Evidence, entry: Variant) -> set[str]:
    return {p.id for p in evidence.workload if evidence.meant_for(entry, p)}


def waiting(evidence: Evidence, entries: Iterable[Variant]) -> list[Variant]:
    """The entries of an operator that wait because their leader has to be measured first."""
    best, groups = _among_the_best(evidence), groups_of(evidence)
    leaders = [(e, _leaders(evidence, e, groups)) for e in entries]
    return [
        e
        for e, found in leaders
        if not _is_due(evidence, found, best) and not all(_told(evidence, leader) for leader in found)
    ]


def may_come(evidence: Evidence, entries: Sequence[Variant], unsettled: Collection[str] = ()) -> list[Variant]:
    """The entries that are not due now, but may become due when more was screened.

    Such an entry waits, directly or through others, for a leader that is compiled or being compiled. The leader is not
    measured everywhere yet, or one of its problems is `unsettled`. An entry whose leader is never compiled does not
    count.
    """
    groups, left = groups_of(evidence), {e.id for e in entries}
    leaders = [(e, _leaders(evidence, e, groups)) for e in entries]
    coming: dict[str, Variant] = {}
    before = -1
    while len(coming) > before:
        before = len(coming)
        for entry, found in leaders:
            for leader in found if entry.id not in coming else ():
                open_ = not _told(evidence, leader) or not _problems(evidence, leader).isdisjoint(unsettled)
                if leader.id in coming or (open_ and leader.id not in left):
                    coming[entry.id] = entry
    return list(coming.values())


def _is_due(evidence: Evidence, leaders: list[Variant], best: set[str]) -> bool:
    return not leaders or any(leader.candidate.id in best and _told(evidence, leader) for leader in leaders)


def _told(evidence: Evidence, leader: Variant) -> bool:
    """Whether a candidate did not compile, or was measured on all problems that it is meant for."""
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
    """Groups of entries that differ only in what they assume of a call."""
    found: Groups = {}
    for entry in evidence.entries.values():
        found.setdefault(_key(entry, entry.candidate.dtypes), []).append(entry)
    return found


def _key(entry: Variant, dtypes: Mapping[str, str]) -> tuple[object, ...]:
    c = entry.candidate
    return c.kernel, c.target, tuple(sorted(c.config.items())), tuple(sorted(dtypes.items()))


def _leaders(evidence: Evidence, entry: Variant, groups: Groups) -> list[Variant]:
    """The leaders of an entry, of which one must succeed before the entry is tried.

    They are the entries in the dtype that its kernel follows, unless a record names it. For code of a
    Triton function without assumptions, which is kept for other calls, they are also the entries that assume more."""
    candidate = entry.candidate
    found = resembled(evidence, entry, groups) if entry.id not in evidence.named and competes(evidence, entry) else []
    if evidence.operator.kernel(candidate.kernel).triton is not None:
        same = groups[_key(entry, candidate.dtypes)]
        found += [e for e in same if assumes_less(candidate, e.candidate)]
    return found


def resembled(evidence: Evidence, entry: Variant, groups: Groups) -> list[Variant]:
    """The same candidates in the dtype that the entry's kernel follows."""
    candidate = entry.candidate
    if not follows_another(evidence.operator, candidate):
        return []
    wanted = other_dtypes(evidence.operator.kernel(candidate.kernel).follows, candidate.dtypes)
    return [e for e in groups.get(_key(entry, wanted), ()) if e.candidate.pins == candidate.pins]
