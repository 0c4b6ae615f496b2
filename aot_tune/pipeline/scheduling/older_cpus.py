"""Variants for older CPUs. They are tuned last and briefly, starting with what won on this machine's own target."""

from __future__ import annotations

from collections.abc import Sequence

from aot_tune.bench.protocol.measurement_records import is_baseline
from aot_tune.pipeline.evidence import Evidence, Proposal
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.measuring.measure import left_undone
from aot_tune.pipeline.records.lookup import known_here
from aot_tune.pipeline.scheduling.like_device import like_winners
from aot_tune.pipeline.scheduling.time_to_link import seconds_after
from aot_tune.pipeline.scheduling.within_budget import BudgetTuning
from aot_tune.pipeline.session import Session
from aot_tune.spec import Target

__all__ = ["older_seconds", "on_record", "transferred", "tune_older"]

_TO_TUNE = 0.8
"""Share of the stated extra seconds that goes to tuning. The rest is for linking and checking more variants."""
_OF_BUDGET = 0.2
"""The largest share of the tuning budget that older CPUs may get."""
_NEAR, _PER_PROBLEM = 1.05, 2
"""A candidate won a problem if its time is within this factor of the best; the first two of them are always tried."""


def on_record(session: Session, older: Target) -> set[str]:
    """The operators for which records decide on older CPUs. Their races are made once, for the record, by `tune`."""
    if session.options.mode != "auto":
        return set()
    return {d.operator for d in session.databases if older.name in d.targets}


def older_seconds(session: Session, kept: float) -> float:
    """Seconds for tuning variants for older CPUs. `kept` are the seconds for what comes after tuning."""
    if session.older is None or not session.plan.may_measure:
        return 0.0
    if session.operators.keys() <= on_record(session, session.older):
        return 0.0
    return min(_TO_TUNE * session.options.older_cpus, _OF_BUDGET * max(session.budget.left - kept, 0.0))


def tune_older(session: Session, target: Target, pool: DevicePool, tuned: Sequence[Evidence]) -> dict[str, Evidence]:
    """Evidence for older CPUs by operator. It starts from what was tuned on a pool's devices, which have references."""
    kept = seconds_after(session)
    session.begin_turn(1, kept, older_seconds(session, kept))
    begun, measured, reused = session.turn.spent, pool.measured, pool.reused
    by_operator = {evidence.operator.name: _begun(session, target, evidence) for evidence in tuned}
    evidences = list(by_operator.values())
    if session.options.mode == "auto":
        for evidence in evidences:
            known_here(session, pool.device, evidence).give(evidence)
    variants = [
        e for evidence in evidences for e in evidence.variants.values() if e.object is None and evidence.lacks(e)
    ]
    session.pending.expect(evidences, variants)
    session.progress.line(f"{target.name}, for older CPUs: begins, for {session.turn.left:.0f} s at most")
    tuning = BudgetTuning(session, pool, evidences)
    tuning.run(variants)
    short = tuning.lacks_time()
    for evidence in evidences:
        if short or evidence.unmeasured():
            evidence.remark(left_undone(evidence, "the time for older CPUs"))
    session.progress.line(
        f"{target.name}, for older CPUs: {pool.measured - measured} measurements made, {pool.reused - reused} known "
        f"from before, in {session.turn.spent - begun:.0f} s"
    )
    return by_operator


def _begun(session: Session, target: Target, tuned: Evidence) -> Evidence:
    """Evidence with the first candidates, and with the measurements that all targets share."""
    operator = tuned.operator
    evidence = Evidence(operator, target, {}, brief=True)
    if tuned.left_out:
        evidence.leave_out()
    if tuned.left_out or operator.name in session.failures:
        return evidence
    with session.failures.of(operator.name):
        generics = map(Proposal, session.generic_variants(operator, target))
        evidence.try_too([*transferred(session, tuned, target), *generics])
    generic = {name for name, variant in evidence.variants.items() if variant.candidate.generic}
    every = (m for row in tuned.measurements.values() for m in row.values())
    evidence.add(*(m for m in every if is_baseline(m.candidate) or m.candidate in generic))
    return evidence


def transferred(session: Session, tuned: Evidence, target: Target) -> list[Proposal]:
    """Candidates for a target that are most like the winners on another, each for the problems that its model won."""
    operator, candidates = tuned.operator, {c: e.candidate for c, e in tuned.variants.items()}
    costs = tuned.choice_costs()
    models = like_winners(session, operator, target, costs, candidates, near=_NEAR, each=_PER_PROBLEM, guesses=1)
    return [Proposal(session.rendered(operator, c, target), frozenset(only)) for c, only in models.values()]
