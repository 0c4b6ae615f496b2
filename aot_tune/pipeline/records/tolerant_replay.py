"""The mode `replay-or-generic`: it reports what records lack or what has changed since, and does not refuse it."""

from __future__ import annotations

from collections.abc import Sequence

from aot_tune.database import OperatorDatabase, missing_problems, without
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.records.lookup import generic_evidence, miss, most_fitting, recalled, with_a_choice
from aot_tune.pipeline.records.recorded_candidates import Outdated, rendered_again
from aot_tune.pipeline.session import Session
from aot_tune.spec import Operator, Problem, Target

__all__ = ["evidence_of_what_holds"]

_MOST = 20
"""How many problems a line names."""


def evidence_of_what_holds(
    session: Session, operator: Operator, target: Target
) -> tuple[Evidence, OperatorDatabase | None]:
    """The evidence for a target from the part of the most fitting database that still holds. Its note tells the rest.

    Candidates with another source than the recorded one do not count. If no problem of the workload has a valid time,
    the generic variant serves the operator. Else it serves the calls that no recorded variant can serve.

    Raises:
        DatabaseError: when a record is damaged: it has a time that is impossible on its device.
    """
    wanted = with_a_choice(session, operator, target)
    if not (session.answers(operator, target) and session.tunes(operator, target) and wanted):
        return generic_evidence(session, operator, target), None
    outdated: Outdated = {}
    found = most_fitting(session, operator, target)
    entries = {} if found is None else rendered_again(session, operator, target, found, outdated)
    database = found if found is None else without(found, outdated)
    missing = missing_problems(database, wanted, target.name)
    reasons = [*_outdated(found, outdated), *_missing(session, operator, target, missing, found)]
    if database is None or len(missing) == len(wanted):
        evidence = generic_evidence(session, operator, target)
        if outdated or not evidence.brief:  # records for older CPUs may be incomplete
            evidence.remark(f"NOT TUNED for {target.name}, the generic variant serves: {'; '.join(reasons)}")
        return evidence, None
    evidence = recalled(session, operator, target, database, entries)
    if outdated or (missing and not evidence.brief):
        served = "; calls of them get a variant that was measured on others, else the generic one" * bool(missing)
        evidence.remark(f"PARTLY TUNED for {target.name}: {'; '.join(reasons)}{served}")
    return evidence, database


def _outdated(database: OperatorDatabase | None, outdated: Outdated) -> list[str]:
    """Why recorded candidates do not count, by kernel."""
    if database is None:
        return []
    kernels: dict[str, list[str]] = {}
    for record in database.candidates:
        if record.id in outdated:
            kernels.setdefault(record.candidate.kernel, []).append(record.id)
    told = []
    for kernel, ids in kernels.items():
        error = outdated[ids[0]]
        what = error.what.removeprefix(f"operator {database.operator!r}: ").splitlines()[0]
        told.append(f"{len(ids)} recorded candidate{'s' * (len(ids) != 1)} of {kernel} do not count: {what}")
    return told


def _missing(
    session: Session,
    operator: Operator,
    target: Target,
    missing: Sequence[Problem],
    found: OperatorDatabase | None,
) -> list[str]:
    """Which problems have no valid time; and why, if the record is of another version of the operator."""
    if not missing:
        return []
    names = ", ".join(p.id for p in missing[:_MOST]) + ", ..." * (len(missing) > _MOST)
    if found is not None:
        return [f"no time that counts of {len(missing)} problem{'s' * (len(missing) != 1)}: {names}"]
    what = miss(session, operator, target, missing, None).what.removeprefix(f"operator {operator.name!r} on ")
    return [f"{what.removeprefix(f'{target.name}: ')}: {names}"]
