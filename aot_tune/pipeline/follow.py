"""What is tried only once something else was among the best: a config in a dtype that resembles another (`follows`),
and code of a Triton function that assumes nothing, beside the code that the JIT would make."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.render import Candidate, assumes_less
from aot_tune.spec import Operator, Problem

__all__ = ["awaited", "competes", "follows_another", "pass_over", "resembles", "to_compile", "waiting"]

Groups = dict[tuple[object, ...], list[Entry]]

_AMONG_THE_BEST = 1.04
"""A config was among the best of a dtype where it took at most so many times the best time on some problem."""

_NEAR_THE_BEST = 1.15
"""On a problem a config is tried in the dtype that follows where it took at most so many times the best time of those
that are. Of 1809 measurements of products in f16 on an H200 that leaves 808, with the best of each problem among them;
1.1 would have done, but screens are short."""


def to_compile(evidence: Evidence, entries: Iterable[Entry], unsettled: Collection[str] = ()) -> list[Entry]:
    """Those of an operator's entries that are to be compiled now.

    An entry that follows others is where one of them was measured, here or in a record, and was among the best. On
    problems of these ids that cannot be told yet, for something that is compiled may be better.
    """
    best, groups = _among_the_best(evidence), _groups(evidence)
    if unsettled:
        best = {c for c in best if _problems(evidence, evidence.entries[c]).isdisjoint(unsettled)}
    return [e for e in entries if _is_due(evidence, _leaders(evidence, e, groups), best)]


def awaited(evidence: Evidence, entries: Iterable[Entry]) -> dict[str, float]:
    """By id, the problems that tell whether entries are to be compiled, which follow others: seconds that one takes."""
    found: dict[str, float] = {}
    groups = _groups(evidence)
    for entry in entries:
        seconds = evidence.operator.kernel(entry.candidate.kernel).compile_seconds
        for leader in _leaders(evidence, entry, groups):
            found |= {p: max(seconds, found.get(p, 0.0)) for p in _problems(evidence, leader)}
    return found


def competes(evidence: Evidence, entry: Entry) -> bool:
    """Whether the time of an entry decides which others are among the best.

    Calls of a vendor's library are left out: where it is missing, or not wanted, the others serve.
    """
    return evidence.operator.kernel(entry.candidate.kernel).algorithms is None


def follows_another(operator: Operator, candidate: Candidate) -> bool:
    """Whether a candidate is of a dtype in which its kernel follows another."""
    return _other_dtypes(operator.kernel(candidate.kernel).follows, candidate.dtypes) != candidate.dtypes


def resembles(operator: Operator, problem: Problem) -> bool:
    """Whether kernels follow another dtype on a problem: that of the other one is better screened first."""
    return any(_other_dtypes(k.follows, problem.dtypes) != problem.dtypes for k in operator.kernels)


def pass_over(evidence: Evidence, problem: Problem, entries: Iterable[Entry]) -> set[str]:
    """Have those of the entries not tried on a problem whose like in the dtype that they follow was far from the best.

    That was on the problem that is the same but for its dtypes. Calls of a vendor's library are held against each
    other, and so are the rest. What was not timed there is tried. Returns the ids of those that are passed over.
    """
    groups, best = _groups(evidence), dict[bool, float]()
    passed: set[str] = set()
    for entry in entries:
        took, own = _took_before(evidence, entry, problem, groups), competes(evidence, entry)
        if took is None:
            continue
        if own not in best:
            rivals = (e for e in evidence.entries.values() if competes(evidence, e) == own and _is_tried(evidence, e))
            times = (_took_before(evidence, e, problem, groups) for e in rivals if evidence.meant_for(e, problem))
            best[own] = min((t for t in times if t is not None), default=took)
        if took > _NEAR_THE_BEST * best[own]:
            passed.add(entry.candidate.id)
    evidence.passed_over |= {(c, problem.id) for c in passed}
    return passed


def _is_tried(evidence: Evidence, entry: Entry) -> bool:
    """Whether there is an object of an entry, or going to be one."""
    return bool(entry.digest) or (entry.object is None and (entry.due or not competes(evidence, entry)))


def _took_before(evidence: Evidence, entry: Entry, problem: Problem, groups: Groups) -> float | None:
    """ns that what an entry follows took on the problem that is the same but for its dtypes."""
    leaders = _resembled(evidence, entry, groups)
    if not leaders:
        return None
    operator, kernel = evidence.operator, evidence.operator.kernel(entry.candidate.kernel)
    dtypes = _other_dtypes(kernel.follows, problem.dtypes)
    dtypes = {v: d for v, d in dtypes.items() if d != operator.dtypes[v][0]}  # as problems have them
    row = evidence.measurements.get(msgspec.structs.replace(problem, dtypes=dtypes).id, {})
    known = (row.get(leader.candidate.id) for leader in leaders)
    return min((m.ns for m in known if m is not None and m.ns is not None), default=None)


def _other_dtypes(follows: Mapping[str, str], dtypes: Mapping[str, str]) -> dict[str, str]:
    return {v: follows.get(d, d) for v, d in dtypes.items()}


def _problems(evidence: Evidence, entry: Entry) -> set[str]:
    return {p.id for p in evidence.workload if evidence.meant_for(entry, p)}


def waiting(evidence: Evidence, entries: Iterable[Entry]) -> list[Entry]:
    """Those of an operator's entries that follow one which has to be measured first."""
    best, groups = _among_the_best(evidence), _groups(evidence)
    leaders = [(e, _leaders(evidence, e, groups)) for e in entries]
    return [
        e
        for e, found in leaders
        if not _is_due(evidence, found, best) and not all(_told(evidence, leader) for leader in found)
    ]


def _is_due(evidence: Evidence, leaders: list[Entry], best: set[str]) -> bool:
    return not leaders or any(leader.candidate.id in best and _told(evidence, leader) for leader in leaders)


def _told(evidence: Evidence, leader: Entry) -> bool:
    """Whether a candidate did not compile, or was measured wherever it is meant for."""
    failed = leader.object is not None and not leader.compiled
    return failed or (bool(leader.digest) and not evidence.lacks(leader))


def _among_the_best(evidence: Evidence) -> set[str]:
    """Candidates that were among the best on some problem."""
    own = {c for c, e in evidence.entries.items() if competes(evidence, e)}
    best: set[str] = set()
    for row in evidence.costs().values():
        times = {c: t for c, t in row.items() if c in own}
        limit = _AMONG_THE_BEST * min(times.values(), default=0.0)
        best.update(c for c, t in times.items() if t <= limit)
    return best


def _groups(evidence: Evidence) -> Groups:
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
    found = _resembled(evidence, entry, groups) if competes(evidence, entry) else []
    if evidence.operator.kernel(candidate.kernel).triton is not None:
        same = groups[_key(entry, candidate.dtypes)]
        found += [e for e in same if assumes_less(candidate, e.candidate)]
    return found


def _resembled(evidence: Evidence, entry: Entry, groups: Groups) -> list[Entry]:
    """The same in the dtype which an entry's kernel follows."""
    candidate = entry.candidate
    if not follows_another(evidence.operator, candidate):
        return []
    wanted = _other_dtypes(evidence.operator.kernel(candidate.kernel).follows, candidate.dtypes)
    return [e for e in groups.get(_key(entry, wanted), ()) if e.candidate.pins == candidate.pins]
