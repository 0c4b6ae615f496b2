"""Renders recorded candidates again, to see whether each is still what was measured."""

from __future__ import annotations

import msgspec

from aot_tune.compile import Variant, target_by_name
from aot_tune.database import CandidateRecord, OperatorDatabase
from aot_tune.database.checks import in_space
from aot_tune.pipeline.session import Session
from aot_tune.render import Candidate, Rendered
from aot_tune.spec import Operator, Target
from aot_tune.support.errors import AotTuneError, DatabaseError, RenderError, SpecError

__all__ = ["Outdated", "as_declared", "render_again", "rendered_again"]

Outdated = dict[str, AotTuneError]
"""Ids of recorded candidates that no longer are what was measured, and why."""


def as_declared(operator: Operator, candidate: Candidate) -> Candidate:
    """The candidate with its config in the order of declaration. Records sort it; people want the declared order."""
    names = [p.name for p in operator.kernel(candidate.kernel).parameters]
    config = {n: candidate.config[n] for n in names if n in candidate.config} | candidate.config
    return msgspec.structs.replace(candidate, config=config)


def render_again(session: Session, operator: Operator, candidate: Candidate) -> Rendered:
    """The source of a recorded candidate, rendered here.

    Raises:
        RenderError: for any fault in the template, with its file and line.
        SpecError: when a Triton function was not read for the candidate's target.
    """
    declared = as_declared(operator, candidate)
    return session.renderer.render(operator, declared, target_by_name(candidate.target))


def _no_kernel(session: Session, operator: Operator, candidate: Candidate, database: OperatorDatabase) -> DatabaseError:
    """The error for a record of a kernel that this build lacks: its backend is missing, or the kernel is gone."""
    what = f"operator {operator.name!r}: no kernel {candidate.kernel!r} for {candidate.target}"
    if candidate.backend not in session.plan.toolchains:
        return DatabaseError(
            what,
            why=f"the record of {database.device.slug} needs {candidate.backend}, which this build does not have",
            fix=f"install what it needs (the build's notes say what), or set "
            f"AOT_TUNE_EXCLUDE_BACKENDS={candidate.backend}",
        )
    return DatabaseError(
        what,
        why=f"the record of {database.device.slug} is of templates that have one",
        fix="tune again and record, or use the templates that the database was recorded with",
    )


def rendered_again(
    session: Session, operator: Operator, target: Target, database: OperatorDatabase, outdated: Outdated | None = None
) -> dict[str, Variant]:
    """Entries of the recorded candidates of a target, and of the generic one.

    Args:
        outdated: gets the candidates whose source is no longer the recorded one, or whose kernel is gone. They get no
            entry.

    Raises:
        AotTuneError: for the first such candidate if `outdated` is None, because its times belong to another kernel.
    """
    found: dict[str, Variant] = {}
    gone = 0
    measured = {m.candidate for m in database.measurements if m.status == "ok"}
    for record in database.candidates:
        candidate = record.candidate
        if candidate.backend in session.options.exclude_backends or candidate.kernel in operator.left_out:
            continue
        if record.id not in measured or not (candidate.generic or candidate.target == target.name):
            continue
        try:
            rendered = _as_recorded(session, operator, record, database)
        except (DatabaseError, RenderError, SpecError) as error:
            if outdated is None:
                raise
            outdated[record.id] = error
            continue
        if rendered is None:
            gone += 1
            continue
        found[record.id] = Variant(rendered=rendered, recorded=record.code)
    if gone:
        session.progress.line(
            f"{operator.name}: {gone} recorded candidates for {target.name} have configs that their kernels no longer "
            "have: they are not linked"
        )
    for generic in session.generic_entries(operator, target):
        found.setdefault(generic.candidate.id, generic)
    return found


def _as_recorded(
    session: Session, operator: Operator, record: CandidateRecord, database: OperatorDatabase
) -> Rendered | None:
    """A recorded candidate, rendered and equal to the record; None if its kernel no longer has the config.

    Raises:
        DatabaseError: when its source is not the recorded one, or there is no such kernel.
        RenderError, SpecError: as `render_again`.
    """
    if all(k.name != record.candidate.kernel for k in operator.kernels):
        raise _no_kernel(session, operator, record.candidate, database)
    if not in_space(operator, record.candidate):
        return None
    rendered = render_again(session, operator, record.candidate)
    if rendered.digest != record.source:
        raise DatabaseError(
            f"operator {operator.name!r}: the source of {rendered.candidate.label} is not the recorded one",
            why=f"the record of {database.device.slug} is of source {record.source[:12]}, the template gives "
            f"{rendered.digest[:12]}",
            fix="tune again and record, or use the templates that the database was recorded with",
        )
    return rendered
