"""Kernels that take long to compile try a dtype only where the config was among the best in another (`follows`)."""

from __future__ import annotations

from collections.abc import Iterable

from aot_tune.pipeline.evidence import Entry, Evidence

__all__ = ["to_compile", "waiting"]

_AMONG_THE_BEST = 1.04
"""A config was among the best of a dtype where it took at most so many times the best time on some problem."""


def to_compile(evidence: Evidence, entries: Iterable[Entry]) -> list[Entry]:
    """Those of an operator's entries that are to be compiled now.

    An entry that follows another one is where that was measured, here or in a record, and was among the best.
    """
    best = _among_the_best(evidence)
    leaders = [(e, _leader(evidence, e)) for e in entries]
    return [e for e, leader in leaders if leader is None or (_told(evidence, leader) and leader.candidate.id in best)]


def waiting(evidence: Evidence, entries: Iterable[Entry]) -> list[Entry]:
    """Those of an operator's entries that follow one which has to be measured first."""
    leaders = [(e, _leader(evidence, e)) for e in entries]
    return [e for e, leader in leaders if leader is not None and not _told(evidence, leader)]


def _told(evidence: Evidence, leader: Entry) -> bool:
    """Whether a candidate did not compile, or was measured wherever it is meant for."""
    failed = leader.object is not None and not leader.compiled
    return failed or (bool(leader.digest) and not evidence.lacks(leader))


def _among_the_best(evidence: Evidence) -> set[str]:
    """Candidates that were among the best on some problem.

    Calls of a vendor's library are left out: where it is missing, or not wanted, the others serve.
    """
    kernels = evidence.operator.kernels
    own = {k.name for k in kernels if k.algorithms is None}
    best: set[str] = set()
    for row in evidence.costs().values():
        times = {c: t for c, t in row.items() if evidence.entries[c].candidate.kernel in own}
        limit = _AMONG_THE_BEST * min(times.values(), default=0.0)
        best.update(c for c, t in times.items() if t <= limit)
    return best


def _leader(evidence: Evidence, entry: Entry) -> Entry | None:
    """The entry whose success decides whether this one is tried."""
    candidate = entry.candidate
    follows = evidence.operator.kernel(candidate.kernel).follows
    wanted = {v: follows.get(d, d) for v, d in candidate.dtypes.items()}
    if wanted == candidate.dtypes:
        return None
    for other in evidence.entries.values():
        c = other.candidate
        if (c.kernel, c.config, c.pins, c.target, c.dtypes) == (
            candidate.kernel,
            candidate.config,
            candidate.pins,
            candidate.target,
            wanted,
        ):
            return other
    return None
