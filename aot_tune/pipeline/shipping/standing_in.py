"""On older CPUs, a candidate like a winner stands in for kinds of calls that there was no time to measure."""

from __future__ import annotations

from collections.abc import Sequence

from aot_tune.pipeline.evidence import Evidence, Proposal
from aot_tune.pipeline.scheduling.older_cpus import transferred
from aot_tune.pipeline.session import Session
from aot_tune.spec import Problem, all_of

__all__ = ["stand_in"]


def stand_in(session: Session, found: Sequence[Evidence]) -> None:
    """For each choice of dtypes without a time, let one candidate stand in for all of its problems.

    `found` is an operator's evidence by target. On the target for older CPUs, the chosen config is the most like the
    one that won most of these problems on this machine's own target. It is verified like every kept variant. Without it
    the generic variant would serve these calls, at least ten times as slow.
    """
    older = next((e for e in found if e.brief and not e.left_out), None)
    tuned = next((e for e in reversed(found) if e.target.on_host and not e.brief and not e.left_out), None)
    if older is None or tuned is None or not tuned.measurements:
        return
    likely = transferred(session, tuned, older.target)
    for dtypes, problems in _unreached(older).items():
        able = [p for p in likely if tuple(p.variant.candidate.dtypes.values()) == dtypes and not _is_out(older, p)]
        best = max(able, key=lambda p: _served(older, p, problems), default=None)
        if best is not None and _served(older, best, problems):
            if best.variant.id not in older.entries:
                older.try_too([best])
            older.stand_in(best.variant.id)


def _is_out(evidence: Evidence, proposal: Proposal) -> bool:
    return proposal.variant.id in evidence.entries and evidence.failed(proposal.variant.id)


def _unreached(evidence: Evidence) -> dict[tuple[str, ...], list[Problem]]:
    """For each choice of dtypes, its problems, if only generic variants were timed on them."""
    operator = evidence.operator
    timed = {p for p, row in evidence.times().items() if any(not evidence.entries[c].candidate.generic for c in row)}
    kinds: dict[tuple[str, ...], list[Problem]] = {}
    for problem in evidence.workload:
        kinds.setdefault(tuple(problem.dtypes.get(v, c[0]) for v, c in operator.dtypes.items()), []).append(problem)
    return {dtypes: found for dtypes, found in kinds.items() if timed.isdisjoint(p.id for p in found)}


def _served(evidence: Evidence, proposal: Proposal, problems: Sequence[Problem]) -> int:
    """How many of the problems a candidate serves, among those that it is tried on: its model won them."""
    name = proposal.variant.id
    only = evidence.only.get(name) if name in evidence.entries else proposal.only
    wanted = [p for p in problems if only is None or p.id in only]
    return sum(all_of(proposal.variant.requires, evidence.operator.facts(p)) for p in wanted)
