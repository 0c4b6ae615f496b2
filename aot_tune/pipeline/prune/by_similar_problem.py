"""What need not be tried on a problem: candidates that were far from the best on a similar problem.

A similar problem is the same one without its epilogue, or in the dtypes that a kernel follows, if the workload has it.
A config that is slow at a product is also slow with a bias, and slow in f16 if it was slow in bf16. A GPU does not wait
for these results. On a CPU everything is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.prune.after_leader import competes, groups_of, other_dtypes, resembled
from aot_tune.spec import Operator, Problem

__all__ = ["NEAR", "NEAR_IN_A_RECORD", "Resemblances", "rank_of"]

NEAR = 1.15
"""A candidate is tried if its time is at most this factor of the best time among what is tried too.

Of the 4750 times of an H200 for products in f16 or with an epilogue, this leaves 2972. Of 123 for rows in f16, it
leaves
65. The best of each problem is among them. With 1.1, a row kernel would be 2 % slower on one problem."""

NEAR_IN_A_RECORD = 1.05
"""The factor for candidates that a record does not have. The record has what was tried.

The tuning decided by screens. A record has times of races, which heat a device: they are up to 8 % above screens."""


def rank_of(operator: Operator, problem: Problem) -> int:
    """In how many ways a problem differs from similar ones that are screened first: these have lower ranks."""
    followed = any(_in_other_dtypes(operator, k.name, problem).id != problem.id for k in operator.kernels)
    return int(operator.without_epilogue(problem).id != problem.id) + int(followed)


def _in_other_dtypes(operator: Operator, kernel: str, problem: Problem) -> Problem:
    dtypes = other_dtypes(operator.kernel(kernel).follows, problem.dtypes)
    stated = {
        v: d for v, d in dtypes.items() if d != operator.dtypes[v][0]
    }  # in the form that problems of a workload have
    return msgspec.structs.replace(problem, dtypes=stated)


class Resemblances:
    """Similar problems for one operator's current candidates. If candidates are added, make a new object."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence, groups = evidence, groups_of(evidence)
        self._leaders = {
            c: [x.candidate.id for x in resembled(evidence, e, groups)] for c, e in evidence.entries.items()
        }
        self._followers: dict[str, list[str]] = {}
        for follower, leaders in self._leaders.items():
            for leader in leaders:
                self._followers.setdefault(leader, []).append(follower)
        self._bare = {p.id: evidence.operator.without_epilogue(p).id for p in evidence.workload}

    def pass_over(self, problem: Problem, entries: Iterable[Variant], near: float = NEAR) -> set[str]:
        """Do not try the entries that were far from the best on a similar problem. Returns their ids.

        Calls of a vendor's library are compared with each other, and so are all other candidates. A candidate without a
        time is tried, unless it was passed over on the similar problem.
        """
        best: dict[tuple[str, bool, bool], float] = {}
        passed = {e.candidate.id for e in entries if self._is_far(e, problem, near, best)}
        self._evidence.pass_over(problem, passed)
        return passed

    def _is_far(self, entry: Variant, problem: Problem, near: float, best: dict[tuple[str, bool, bool], float]) -> bool:
        own = competes(self._evidence, entry)
        for like, before, follows in self._likes(entry, problem):
            took = self._took(like, before)
            if took is None:
                if before and all((c, like) in self._evidence.passed_over for c in before):
                    return True
                continue
            key = (like, own, follows)
            if key not in best:
                best[key] = self._best(*key, problem)
            if took > near * best[key]:
                return True
        return False

    def _likes(self, entry: Variant, problem: Problem) -> list[tuple[str, list[str], bool]]:
        """Similar problems, each with the candidates that correspond to the entry there.

        The last value is whether the similarity is by a dtype that the entry's kernel follows."""
        candidate = entry.candidate
        if (
            candidate.generic or entry.id in self._evidence.named
        ):  # it is timed wherever it may have to serve, or is named
            return []
        found: list[tuple[str, list[str], bool]] = []
        bare = self._bare.get(problem.id, problem.id)
        if bare != problem.id:
            found.append((bare, [candidate.id], False))
        if leaders := self._leaders.get(candidate.id, []):
            found.append((_in_other_dtypes(self._evidence.operator, candidate.kernel, problem).id, leaders, True))
        return found

    def _took(self, like: str, candidates: Sequence[str]) -> float | None:
        """The least time in ns of those candidates that are right on all problems."""
        row, broken = self._evidence.on(like), self._evidence.broken
        known = (row[c].ns for c in candidates if c in row and c not in broken)
        return min((ns for ns in known if ns is not None), default=None)

    def _best(self, like: str, own: bool, follows: bool, problem: Problem) -> float:
        """The least ns on the similar problem, of candidates that are tried on this one and not known to be wrong."""
        evidence, found = self._evidence, float("inf")
        for before in evidence.on(like):
            took = self._took(like, [before])
            if before not in evidence.entries or took is None or took >= found:
                continue
            here = (evidence.entries[c] for c in (self._followers.get(before, []) if follows else [before]))
            if any(self._is_rival(e, own) and evidence.meant_for(e, problem) for e in here):
                found = took
        return found

    def _is_rival(self, entry: Variant, own: bool) -> bool:
        coming = bool(entry.code) or (entry.object is None and entry.id in self._evidence.due)
        right = entry.candidate.id not in self._evidence.broken
        return coming and right and not entry.candidate.generic and competes(self._evidence, entry) == own
