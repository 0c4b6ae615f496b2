"""What need not be tried, because of the results of a leader or of a similar problem.

A follower is compiled only after a leader was among the best. That is a config in a dtype that follows another dtype
(`follows`). It is also code of a Triton function that assumes nothing, which follows the code that the JIT would make.

A similar problem is the same one without its epilogue, or in the dtypes that a kernel follows, if the workload has it.
A config that is slow at a product is also slow with a bias, and slow in f16 if it was slow in bf16. A GPU does not wait
for these results. On a CPU everything is tried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Evidence
from aot_tune.render import Candidate, assumes_less
from aot_tune.spec import Operator, Problem

_Groups = dict[tuple[object, ...], list[Variant]]

_AMONG_THE_BEST = 1.04
"""A config is among the best of a dtype if its time on some problem is at most this factor of the best time."""

_NEAR = 1.15
"""A candidate is tried if its time is at most this factor of the best time among what is tried too.

With 1.1, a row kernel of an H200 would be 2 % slower on one problem."""

NEAR_IN_A_RECORD = 1.05
"""The factor for candidates that a record does not have. The record has what was tried.

The tuning decided by screens. A record has times of races, which heat a device: they are up to 8 % above screens."""


def to_compile(evidence: Evidence, variants: Iterable[Variant], unsettled: Collection[str] = ()) -> list[Variant]:
    """The variants of an operator that are to be compiled now.

    A variant that follows others is due if one of them was measured, here or in a record, and was among the best. On
    `unsettled` problems that is not known yet, because something better may still come.
    """
    best, groups = _among_the_best(evidence), _groups_of(evidence)
    if unsettled:
        best = {c for c in best if _problems(evidence, evidence.variants[c]).isdisjoint(unsettled)}
    return [e for e in variants if _is_due(evidence, _leaders(evidence, e, groups), best)]


def awaited(evidence: Evidence, variants: Iterable[Variant]) -> dict[str, float]:
    """Problem ids that decide whether following variants are compiled, with the seconds that such a compile takes."""
    seconds_of: dict[str, float] = {}
    groups = _groups_of(evidence)
    for variant in variants:
        seconds = evidence.operator.kernel(variant.candidate.kernel).compile_seconds
        for leader in _leaders(evidence, variant, groups):
            seconds_of |= {p: max(seconds, seconds_of.get(p, 0.0)) for p in _problems(evidence, leader)}
    return seconds_of


def competes(evidence: Evidence, variant: Variant) -> bool:
    """Whether a variant's time decides which others are among the best. Calls of a vendor's library do not."""
    return not evidence.is_vendors(variant)


def follows_another(operator: Operator, candidate: Candidate) -> bool:
    """Whether a candidate's dtype follows another dtype of its kernel."""
    return _other_dtypes(operator.kernel(candidate.kernel).follows, candidate.dtypes) != candidate.dtypes


def _other_dtypes(follows: Mapping[str, str], dtypes: Mapping[str, str]) -> dict[str, str]:
    """Dtypes by variable, where each dtype that follows another is replaced by that one."""
    return {v: follows.get(d, d) for v, d in dtypes.items()}


def _problems(evidence: Evidence, variant: Variant) -> set[str]:
    return {p.id for p in evidence.workload if evidence.meant_for(variant, p)}


def waiting(evidence: Evidence, variants: Iterable[Variant]) -> list[Variant]:
    """The variants of an operator that wait because their leader has to be measured first."""
    best, groups = _among_the_best(evidence), _groups_of(evidence)
    leaders = [(e, _leaders(evidence, e, groups)) for e in variants]
    return [
        e
        for e, its_leaders in leaders
        if not _is_due(evidence, its_leaders, best) and not all(_told(evidence, leader) for leader in its_leaders)
    ]


def may_come(
    evidence: Evidence, variants: Sequence[Variant], unsettled: Collection[str] = (), compiling: Collection[str] = ()
) -> list[Variant]:
    """The variants that are not due now, but may become due when more was screened.

    Such a variant waits, directly or through others, for a leader that is compiled or `compiling`. The leader is not
    measured everywhere yet, or one of its problems is `unsettled`. A variant whose leader is never compiled does not
    count: a record lacks leaders that were slow.
    """
    groups, left = _groups_of(evidence), {e.id for e in variants}
    leaders = [(e, _leaders(evidence, e, groups)) for e in variants]
    coming: dict[str, Variant] = {}
    before = -1
    while len(coming) > before:
        before = len(coming)
        for variant, its_leaders in leaders:
            for leader in its_leaders if variant.id not in coming else ():
                open_ = not _told(evidence, leader) or not _problems(evidence, leader).isdisjoint(unsettled)
                if leader.id in coming or (open_ and leader.id not in left and (leader.code or leader.id in compiling)):
                    coming[variant.id] = variant
    return list(coming.values())


def _is_due(evidence: Evidence, leaders: list[Variant], best: set[str]) -> bool:
    return not leaders or any(leader.candidate.id in best and _told(evidence, leader) for leader in leaders)


def _told(evidence: Evidence, leader: Variant) -> bool:
    """Whether a candidate did not compile, or was measured on all problems that it is meant for."""
    return leader.does_not_compile or (bool(leader.code) and not evidence.lacks(leader))


def _among_the_best(evidence: Evidence) -> set[str]:
    """Candidates that were among the best on some problem."""
    competing = {c for c, e in evidence.variants.items() if competes(evidence, e)}
    best: set[str] = set()
    for row in evidence.costs().values():
        times = {c: t for c, t in row.items() if c in competing}
        limit = _AMONG_THE_BEST * min(times.values(), default=0.0)
        best.update(c for c, t in times.items() if t <= limit)
    return best


def _groups_of(evidence: Evidence) -> _Groups:
    """Groups of variants that differ only in what they assume of a call."""
    groups: _Groups = {}
    for variant in evidence.variants.values():
        groups.setdefault(_key(variant, variant.candidate.dtypes), []).append(variant)
    return groups


def _key(variant: Variant, dtypes: Mapping[str, str]) -> tuple[object, ...]:
    c = variant.candidate
    return c.kernel, c.target, tuple(sorted(c.config.items())), tuple(sorted(dtypes.items()))


def _leaders(evidence: Evidence, variant: Variant, groups: _Groups) -> list[Variant]:
    """The leaders of a variant, of which one must succeed before the variant is tried.

    They are the variants in the dtype that its kernel follows, unless a record names it. For code of a
    Triton function without assumptions, which is kept for other calls, they are also the variants that assume more."""
    candidate = variant.candidate
    leaders = (
        _resembled(evidence, variant, groups)
        if variant.id not in evidence.named and competes(evidence, variant)
        else []
    )
    if evidence.operator.kernel(candidate.kernel).triton is not None:
        same = groups[_key(variant, candidate.dtypes)]
        leaders += [e for e in same if assumes_less(candidate, e.candidate)]
    return leaders


def _resembled(evidence: Evidence, variant: Variant, groups: _Groups) -> list[Variant]:
    """The same candidates in the dtype that the variant's kernel follows."""
    candidate = variant.candidate
    if not follows_another(evidence.operator, candidate):
        return []
    wanted = _other_dtypes(evidence.operator.kernel(candidate.kernel).follows, candidate.dtypes)
    return [e for e in groups.get(_key(variant, wanted), ()) if e.candidate.pins == candidate.pins]


def rank_of(operator: Operator, problem: Problem) -> int:
    """In how many ways a problem differs from similar ones that are screened first: these have lower ranks."""
    followed = any(_in_other_dtypes(operator, k.name, problem).id != problem.id for k in operator.kernels)
    return int(operator.without_epilogue(problem).id != problem.id) + int(followed)


def _in_other_dtypes(operator: Operator, kernel: str, problem: Problem) -> Problem:
    dtypes = _other_dtypes(operator.kernel(kernel).follows, problem.dtypes)
    stated = {
        v: d for v, d in dtypes.items() if d != operator.dtypes[v][0]
    }  # in the form that problems of a workload have
    return msgspec.structs.replace(problem, dtypes=stated)


class Resemblances:
    """Similar problems for one operator's current candidates. If candidates are added, make a new object."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence, groups = evidence, _groups_of(evidence)
        self._leaders = {
            c: [x.candidate.id for x in _resembled(evidence, e, groups)] for c, e in evidence.variants.items()
        }
        self._followers: dict[str, list[str]] = {}
        for follower, leaders in self._leaders.items():
            for leader in leaders:
                self._followers.setdefault(leader, []).append(follower)
        self._bare = {p.id: evidence.operator.without_epilogue(p).id for p in evidence.workload}

    def pass_over(self, problem: Problem, variants: Iterable[Variant], near: float = _NEAR) -> set[str]:
        """Do not try the variants that were far from the best on a similar problem. Returns their ids.

        Calls of a vendor's library are compared with each other, and so are all other candidates. A candidate without a
        time is tried, unless it was passed over on the similar problem.
        """
        best: dict[tuple[str, bool, bool], float] = {}
        passed = {e.candidate.id for e in variants if self._is_far(e, problem, near, best)}
        self._evidence.pass_over(problem, passed)
        return passed

    def _is_far(
        self, variant: Variant, problem: Problem, near: float, best: dict[tuple[str, bool, bool], float]
    ) -> bool:
        competing = competes(self._evidence, variant)
        for like, before, follows in self._likes(variant, problem):
            took = self._took(like, before)
            if took is None:
                if before and all((c, like) in self._evidence.passed_over for c in before):
                    return True
                continue
            key = (like, competing, follows)
            if key not in best:
                best[key] = self._best(*key, problem)
            if took > near * best[key]:
                return True
        return False

    def _likes(self, variant: Variant, problem: Problem) -> list[tuple[str, list[str], bool]]:
        """Similar problems, each with the candidates that correspond to the variant there.

        The last value is whether the similarity is by a dtype that the variant's kernel follows."""
        candidate = variant.candidate
        if (
            candidate.generic or variant.id in self._evidence.named
        ):  # it is timed wherever it may have to serve, or is named
            return []
        likes: list[tuple[str, list[str], bool]] = []
        bare = self._bare.get(problem.id, problem.id)
        if bare != problem.id:
            likes.append((bare, [candidate.id], False))
        if leaders := self._leaders.get(candidate.id, []):
            likes.append((_in_other_dtypes(self._evidence.operator, candidate.kernel, problem).id, leaders, True))
        return likes

    def _took(self, like: str, candidates: Sequence[str]) -> float | None:
        """The least time in ns of those candidates that are right on all problems."""
        row, broken = self._evidence.on(like), self._evidence.broken
        times = (row[c].ns for c in candidates if c in row and c not in broken)
        return min((ns for ns in times if ns is not None), default=None)

    def _best(self, like: str, competing: bool, follows: bool, problem: Problem) -> float:
        """The least ns on the similar problem, of candidates that are tried on this one and not known to be wrong."""
        evidence, least = self._evidence, float("inf")
        for before in evidence.on(like):
            took = self._took(like, [before])
            if before not in evidence.variants or took is None or took >= least:
                continue
            rivals = (evidence.variants[c] for c in (self._followers.get(before, []) if follows else [before]))
            if any(self._is_rival(e, competing) and evidence.meant_for(e, problem) for e in rivals):
                least = took
        return least

    def _is_rival(self, variant: Variant, competing: bool) -> bool:
        coming = bool(variant.code) or (variant.object is None and variant.id in self._evidence.due)
        right = variant.candidate.id not in self._evidence.broken
        return coming and right and not variant.candidate.generic and competes(self._evidence, variant) == competing
