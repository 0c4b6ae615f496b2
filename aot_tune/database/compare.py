"""What a record says of choices, and what another record says differently."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aot_tune.bench.protocol.measurement_records import Measurement, is_baseline
from aot_tune.database.records import OperatorDatabase


@dataclass(frozen=True)
class Fastest:
    """The fastest candidate of a target on a problem: its label, ns of a call, and whether it was in a race."""

    candidate: str
    label: str
    ns: float
    raced: bool


@dataclass(frozen=True)
class ChangedProblem:
    """The fastest candidates of a target on a problem that two records know. `ratio` is time after over before."""

    target: str
    problem: str
    before: Fastest
    after: Fastest
    ratio: float

    @property
    def other(self) -> bool:
        """Whether another candidate is the fastest."""
        return self.before.candidate != self.after.candidate


@dataclass(frozen=True)
class RecordChange:
    """What differs in another record of the same operator and device.

    Args:
        problems: those that both know, by target and id.
        came, went: problems that are new or gone. Candidates that are new or gone are counted by kernel.
        code: how many candidates have other code, by kernel.
        surveyed: how many shapes before and after.
        head: differences, in words, of the operator's version, policy, toolchains and baselines.
    """

    problems: tuple[ChangedProblem, ...]
    came: tuple[str, ...]
    went: tuple[str, ...]
    candidates_came: Mapping[str, int]
    candidates_went: Mapping[str, int]
    code: Mapping[str, int]
    surveyed: tuple[int, int]
    head: tuple[str, ...]

    @property
    def mean(self) -> float:
        """Geometric mean of the times' ratios, or 1 if there are none."""
        return math.exp(math.fsum(math.log(p.ratio) for p in self.problems) / max(len(self.problems), 1))


def fastest(database: OperatorDatabase) -> dict[tuple[str, str], Fastest]:
    """The fastest candidate by target and problem id, of those that failed nowhere.

    Candidates with a race come before those without, as when a build chooses. Which of them a build keeps depends on
    all problems together. A generic variant counts for each target of its family that has other candidates.
    """
    failed = {m.candidate for m in database.measurements if m.status not in ("ok", "skipped")}
    records = {c.id: c.candidate for c in database.candidates if c.id not in failed}
    own = {c.target for c in records.values() if not c.generic}
    targets = {
        i: [t for t in sorted(own) if t.partition("-")[0] == c.target.partition("-")[0]] or [c.target]
        if c.generic
        else [c.target]
        for i, c in records.items()
    }
    best: dict[tuple[str, str], Measurement] = {}
    for m in database.measurements:
        if m.ns is None or is_baseline(m.candidate) or m.candidate not in records:
            continue
        for target in targets[m.candidate]:
            at = (target, m.problem.id)
            if at not in best or _place(m) < _place(best[at]):
                best[at] = m
    return {
        at: Fastest(m.candidate, records[m.candidate].label, m.ns or 0.0, m.final is not None)
        for at, m in sorted(best.items())
    }


def changes(before: OperatorDatabase, after: OperatorDatabase) -> RecordChange:
    """What `after` says differently from `before`, for the same operator and device."""
    old, new = fastest(before), fastest(after)
    problems = [{p.id for p in d.problems} for d in (before, after)]
    candidates = [{c.id: c for c in d.candidates} for d in (before, after)]
    kept = candidates[0].keys() & candidates[1].keys()
    return RecordChange(
        problems=tuple(
            ChangedProblem(*at, before=old[at], after=new[at], ratio=new[at].ns / old[at].ns) for at in new if at in old
        ),
        came=tuple(sorted(problems[1] - problems[0])),
        went=tuple(sorted(problems[0] - problems[1])),
        candidates_came=_by_kernel(after, candidates[1].keys() - kept),
        candidates_went=_by_kernel(before, candidates[0].keys() - kept),
        code=_by_kernel(after, {i for i in kept if candidates[0][i].code != candidates[1][i].code}),
        surveyed=(len(before.survey), len(after.survey)),
        head=tuple(_head(before, after)),
    )


def _place(m: Measurement) -> tuple[bool, float, str]:
    return m.final is None, m.ns or 0.0, m.candidate


def _by_kernel(database: OperatorDatabase, ids: Iterable[str]) -> dict[str, int]:
    wanted = set(ids)
    counts = Counter(c.candidate.kernel for c in database.candidates if c.id in wanted)
    return dict(sorted(counts.items()))


def _head(before: OperatorDatabase, after: OperatorDatabase) -> Iterable[str]:
    if before.contract != after.contract:
        yield f"the operator is of another version: {before.contract[:12]}, then {after.contract[:12]}"
    if before.policy_digest != after.policy_digest:
        yield f"the policy is another: {before.policy_digest[:12]}, then {after.policy_digest[:12]}"
    for what, old, new in (
        ("toolchain", _versions(before.toolchains), _versions(after.toolchains)),
        ("baseline", before.baselines, after.baselines),
    ):
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                yield f"{what} {name}: {old.get(name, 'none')}, then {new.get(name, 'none')}"


def _versions(toolchains: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {name: identity.get("version", "unknown") for name, identity in toolchains.items()}
