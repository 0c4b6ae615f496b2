"""What records know: measurements that hold here as they are, and variants that a replay builds again.

In the mode `replay-or-generic`, what records lack or what has changed since is reported, and not refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.devices.roofline import floor_of
from aot_tune.bench.protocol.measurement_records import Device, Measurement, is_baseline
from aot_tune.compile import Object, Variant, target_by_name, toolchain_for
from aot_tune.database import (
    CandidateRecord,
    OperatorDatabase,
    database_path,
    deciding,
    match_measurements,
    missing_problems,
    nearest_databases,
    operator_digest,
    without,
)
from aot_tune.database.checks import gone, in_space
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.pruning import NEAR_IN_A_RECORD, Resemblances, rank_of
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.wanted_kernels import is_named, kernels_for, left_to_others, tunes
from aot_tune.render import Candidate, Rendered
from aot_tune.render.candidate import requirements
from aot_tune.spec import Operator, Problem, Target
from aot_tune.spec.calls import is_taken
from aot_tune.support.errors import AotTuneError, DatabaseError, RenderError, SpecError

_MOST = 20
"""How many problems a line names."""
_Outdated = dict[str, AotTuneError]
"""Ids of recorded candidates that no longer are what was measured, and why."""


class Known:
    """Measurements of a database by candidate and problem."""

    def __init__(self, measurements: Sequence[Measurement] = (), refused: Iterable[Measurement] = ()) -> None:
        self._refused = {(m.candidate, m.problem.key) for m in refused}
        self._by: dict[tuple[str, str], Measurement] = {(m.candidate, m.problem.key): m for m in measurements}
        self._baselines: dict[str, list[Measurement]] = {}
        for m in measurements:
            if is_baseline(m.candidate):
                self._baselines.setdefault(m.problem.key, []).append(m)

    def find(self, candidate: str, problem: Problem) -> Measurement | None:
        return self._by.get((candidate, problem.key))

    def baselines(self, problem: Problem) -> list[Measurement]:
        return self._baselines.get(problem.key, [])

    def give(self, evidence: Evidence) -> int:
        """Add the known measurements that the evidence lacks. Returns how many were added.

        A race is due on a problem that the record has screens of, but no race. On a GPU, what the record has on other
        problems was passed over on a problem that raced; elsewhere it was if times on a similar problem say so.
        """
        given = 0
        for problem in evidence.workload:
            wanted = [e for e in evidence.tried(problem) if not evidence.has(e, problem)]
            measurements = [m for e in wanted if (m := self.find(e.candidate.id, problem)) is not None]
            row = evidence.on(problem)
            beside = [b for b in self.baselines(problem) if measurements and b.candidate not in row]
            evidence.add(*(_of_problem(measurement, problem) for measurement in (*measurements, *beside)))
            given += len(measurements)
            if measurements and not any(m.final for m in measurements):
                evidence.race_about(problem.id, {m.candidate for m in measurements})
        if given and not family(evidence.target.family).on_host:  # some were not screened
            self._pass_over(evidence)
        return given

    def _pass_over(self, evidence: Evidence) -> None:
        resemblances = Resemblances(evidence)
        tried = {candidate for candidate, _ in self._by}
        raced = {key for (candidate, key), m in self._by.items() if m.final and not is_baseline(candidate)}
        for problem in sorted(evidence.workload, key=partial(rank_of, evidence.operator)):
            key = problem.key
            lacking = (e for e in evidence.tried(problem) if not evidence.has(e, problem))
            missing = [e for e in lacking if (e.candidate.id, key) not in self._refused]
            if key in raced:
                evidence.pass_over(problem, tried.intersection(e.candidate.id for e in missing))
                missing = [e for e in missing if e.candidate.id not in tried]
            resemblances.pass_over(problem, missing, NEAR_IN_A_RECORD)


def _of_problem(measurement: Measurement, problem: Problem) -> Measurement:
    """The measurement with the workload's problem. A record may have its dims in another order."""
    if measurement.problem.id == problem.id:
        return measurement
    return msgspec.structs.replace(measurement, problem=problem)


def known_here(session: Session, device: Device, evidence: Evidence) -> Known:
    """What the committed databases know of an operator on this very device, under this policy, for these objects.

    A candidate with the recorded source and toolchain gets the recorded digest, so only kept candidates must be
    compiled. Versions of baselines do not matter, because nothing of theirs is linked.
    """
    operator = evidence.operator
    for database in session.databases:
        if database.operator != operator.name or database.device.digest != device.digest:
            continue
        _note_recorded_objects(session, database, evidence)
        usable, refused = match_measurements(
            database,
            device=device.digest,
            policy=session.policy(device.family).digest,
            contract=operator_digest(operator),
            # codes of other targets' candidates count as recorded: the generic variant races on all targets
            codes={c.id: c.code for c in database.candidates if c.id not in evidence.variants}
            | {i: e.code for i, e in evidence.variants.items()},
        )
        return Known(usable, refused)
    return Known()


def _note_recorded_objects(session: Session, database: OperatorDatabase, evidence: Evidence) -> None:
    """Set `recorded` of candidates that the database's toolchain (for GPUs, without host) made of the same source."""
    alike, alike_on_device = toolchains_alike(session, database)
    for record in database.candidates:
        variant = evidence.variants.get(record.id)
        if variant is None or variant.rendered.digest != record.source:
            continue
        if record.candidate.backend not in (alike_on_device if record.device else alike):
            continue
        evidence.is_recorded_as(record.id, record.code)
        if record.status != "ok":  # it would fail again
            failed = Object(
                key="",
                path="",
                digest="",
                symbol=variant.rendered.symbol,
                source=record.source,
                target=record.candidate.target,
                status=record.status,
                error=record.error,
                cached=True,
            )
            evidence.has_become(record.id, failed)


def toolchains_alike(session: Session, database: OperatorDatabase) -> tuple[set[str], set[str]]:
    """Backends whose toolchain here is the recorded one: in all parts, and in the part that makes device code."""
    identities = session.plan.toolchains
    shared = {name: identity for name, identity in database.toolchains.items() if name in identities}
    whole = {name for name, identity in shared.items() if identity == identities[name]}
    parts = {name: toolchain_for(name, session.environment).device_identity for name in shared}
    return whole, {name for name, part in parts.items() if part(shared[name]) == part(identities[name])}


def recorded_evidence(session: Session, operator: Operator, target: Target) -> tuple[Evidence, OperatorDatabase | None]:
    """The evidence for a target from the most fitting database. Nothing is measured.

    A record of another version of the operator (its arguments, reference or tolerance) does not count. The most fitting
    database is of this very device, else of a device with the same name, else of any in the family. If AOT_TUNE_DEVICE
    names devices of the family, only theirs count. No database is needed if the operator has only generic kernels, or
    no kernel.

    Raises:
        DatabaseError: when no database has the operator on the target, or problems of the workload are missing.
    """
    decided = session.answers(operator, target) and tunes(session, operator, target)
    database = _most_fitting(session, operator, target) if decided else None
    brief = target == session.older  # such records may be incomplete
    missing = [] if brief else missing_problems(database, with_a_choice(session, operator, target), target.name)
    if missing:
        raise miss(session, operator, target, missing, database)
    if database is None:
        return _generic_evidence(session, operator, target), None
    variants = _rendered_again(session, operator, target, database)
    return recalled(operator, target, database, variants, brief=target == session.older), database


def _generic_evidence(session: Session, operator: Operator, target: Target) -> Evidence:
    """Evidence of the generic variant only."""
    generic = {e.candidate.id: e for e in session.generic_variants(operator, target)}
    evidence = Evidence(operator, target, generic, brief=target == session.older)
    if not tunes(session, operator, target):
        evidence.leave_out()
    return evidence


def evidence_as_recorded(operator: Operator, target: Target, database: OperatorDatabase) -> Evidence:
    """The evidence that a database gives for a target; nothing is rendered. Raises SpecError without declarations."""
    lost, measured = gone(database, operator), {m.candidate for m in database.measurements if m.status == "ok"}
    variants = {}
    for record in database.candidates:
        candidate = as_declared(operator, record.candidate) if record.id not in lost else record.candidate
        if record.id in measured - lost.keys() and (candidate.generic or candidate.target == target.name):
            requires = requirements(operator, candidate)
            rendered = Rendered(
                candidate=candidate, source="", digest=record.source, symbol="", lines=(), requires=requires
            )
            variants[record.id] = Variant(rendered=rendered, recorded=record.code)
    return recalled(operator, target, database, variants)


def recalled(
    operator: Operator, target: Target, database: OperatorDatabase, variants: dict[str, Variant], *, brief: bool = False
) -> Evidence:
    """The evidence that a database gives for some candidates. Raises DatabaseError for an impossible time."""
    evidence = Evidence(operator, target, variants, brief=brief)
    workload = {p.key: p for p in evidence.workload}
    for measurement in database.measurements:
        variant = evidence.variants.get(measurement.candidate)
        subject = is_baseline(measurement.candidate) or (
            variant is not None and evidence.meant_for(variant, measurement.problem)
        )
        failed = measurement.status not in ("ok", "skipped")  # also on a survey's shape
        if subject and (failed or measurement.problem.key in workload):
            _refuse_implausible(operator, database, measurement)
            evidence.add(_of_problem(measurement, workload.get(measurement.problem.key, measurement.problem)))
    evidence.survey_on(database.device)
    if _surveyed(database, target):
        evidence.add_survey((shape.problem, shape.ns) for shape in database.survey)
    return evidence


def _surveyed(database: OperatorDatabase, target: Target) -> bool:
    """Whether a survey timed variants of this target. Generic ones do not count: other targets have them as well."""
    candidates = {c.id for c in database.candidates if c.candidate.target == target.name and not c.candidate.generic}
    return any(not candidates.isdisjoint(shape.ns) for shape in database.survey)


def recall_survey(session: Session, device: Device, evidence: Evidence) -> None:
    """Take over surveyed times from a record of this very device, for candidates whose code is the same."""
    operator = evidence.operator
    policy, contract = session.policy(device.family).digest, operator_digest(operator)
    for database in session.databases if session.options.mode != "tune" else ():
        same_device = database.was_made_on(device, policy)
        if same_device and (database.operator, database.contract) == (operator.name, contract):
            codes = {c.id: c.code for c in database.candidates}
            same = {name for name, e in evidence.variants.items() if e.code and e.code == codes.get(name)}
            evidence.add_survey(((shape.problem, shape.ns) for shape in database.survey), same)


def _refuse_implausible(operator: Operator, database: OperatorDatabase, measured: Measurement) -> None:
    """Refuse a record with a time that is impossible on its device. Raises DatabaseError naming the measurement."""
    if measured.status != "ok" or measured.ns is None or is_baseline(measured.candidate):
        return
    least = floor_of(database.device, operator, measured.problem)
    if measured.ns < least:
        raise DatabaseError(
            f"operator {operator.name!r}: {measured.candidate} on '{measured.problem.id}' takes {measured.ns:g} ns, "
            f"less than the {least:.1f} ns that the device's peaks allow",
            why=f"so says the record of {database.device.slug}",
            fix="restore the file, or measure again and record",
        )


def miss(
    session: Session, operator: Operator, target: Target, missing: Sequence[Problem], database: OperatorDatabase | None
) -> DatabaseError:
    """The error for problems that the most fitting database lacks, or that no database has."""
    stale = [] if database is not None else _of_target(session, operator, target)  # of another version of the operator
    lacking = f"{len(missing)} problem{'s are' if len(missing) != 1 else ' is'} not in the database"
    listed = "\n       ".join(p.id for p in missing[:20])
    fix = (
        f"tune on the device, run `aot-tune records export --library {session.plan.name} tuning`, commit the result; "
        f"{_others_fix(session, operator, target)}"
    )
    if not stale:
        return DatabaseError(
            f"operator {operator.name!r} on {target.name}: {lacking}", why=listed, fix=f"{fix}or use AOT_TUNE_MODE=auto"
        )
    path = database_path(Path(), stale[0])  # a report repeats it, and holds no folder of this machine
    digests = "\n       ".join(
        f"{database_path(Path(session.database), d)}:1 is of digest {d.contract[:12]}" for d in stale
    )
    return DatabaseError(
        f"{path}:1: the record is of another version of operator {operator.name!r}: on {target.name} {lacking}",
        why="its dims, dtypes, tensors, attributes, reference, tolerance or what is legal have changed: its digest is "
        f"{operator_digest(operator)[:12]} now\n       {digests}\n       not measured are\n       {listed}",
        fix=f"{fix}or declare the operator as it was recorded, or use AOT_TUNE_MODE=auto",
    )


def _others_fix(session: Session, operator: Operator, target: Target) -> str:
    """A hint which records AOT_TUNE_DEVICE leaves out that know an operator on a target; it ends with a semicolon."""
    kept = deciding(session.databases, session.options.device)
    others = {d.device.name for d in session.databases if d.operator == operator.name and target.name in d.targets}
    others -= {d.device.name for d in kept}
    return f"or let AOT_TUNE_DEVICE name {' or '.join(map(repr, sorted(others)))}; " if others else ""


def with_a_choice(session: Session, operator: Operator, target: Target) -> list[Problem]:
    """Problems that a record must have: those on which some kernel is tried whose times decide if it is kept."""
    named = [k for k in kernels_for(session, operator, target) if is_named(session, operator, k) and not k.fills_in]
    kernels = [k for k in named if next(k.configs(target.facts), None) is not None]
    left = left_to_others(session, operator, target, here=False)
    problems = (p for p in operator.workload_for(target.family) if p.id not in left)
    return [p for p in problems if is_taken(operator, p, kernels, worthwhile=True)]


def _most_fitting(session: Session, operator: Operator, target: Target) -> OperatorDatabase | None:
    """The record that decides for an operator on a target: complete ones first, then the most like a device here."""
    contract = operator_digest(operator)
    fitting = [d for d in _of_target(session, operator, target) if d.contract == contract]
    device = next((d for d in session.devices if d.family == target.family), None)
    if device is not None:
        fitting = nearest_databases(fitting, operator.name, device)
    else:
        fitting.sort(key=lambda d: d.device.slug)
    wanted = with_a_choice(session, operator, target) if len(fitting) > 1 and target != session.older else []
    whole = (d for d in fitting if not missing_problems(d, wanted, target.name))
    return next(whole, next(iter(fitting), None))


def _of_target(session: Session, operator: Operator, target: Target) -> list[OperatorDatabase]:
    """The records that may decide for a target. They may be of any version of the operator."""
    named = (d for d in deciding(session.databases, session.options.device) if d.operator == operator.name)
    return [d for d in named if target.name in d.targets]


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


def _rendered_again(
    session: Session, operator: Operator, target: Target, database: OperatorDatabase, outdated: _Outdated | None = None
) -> dict[str, Variant]:
    """Variants of the recorded candidates of a target, and of the generic one.

    Args:
        outdated: gets the candidates whose source is no longer the recorded one, or whose kernel is gone. They get no
            variant.

    Raises:
        AotTuneError: for the first such candidate if `outdated` is None, because its times belong to another kernel.
    """
    variants: dict[str, Variant] = {}
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
        variants[record.id] = Variant(rendered=rendered, recorded=record.code)
    if gone:
        session.progress.line(
            f"{operator.name}: {gone} recorded candidates for {target.name} have configs that their kernels no longer "
            "have: they are not linked"
        )
    generics = {g.id: g for g in session.generic_variants(operator, target)}
    places = {(g.candidate.kernel, g.candidate.target) for g in generics.values()}
    for name, candidate in [(n, v.candidate) for n, v in variants.items() if v.candidate.generic]:
        if name not in generics and (candidate.kernel, candidate.target) in places:
            del variants[name]  # here, another config is the first that fits
    return {**variants, **{name: g for name, g in generics.items() if name not in variants}}


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
    if not (session.answers(operator, target) and tunes(session, operator, target) and wanted):
        return _generic_evidence(session, operator, target), None
    outdated: _Outdated = {}
    record = _most_fitting(session, operator, target)
    variants = {} if record is None else _rendered_again(session, operator, target, record, outdated)
    database = record if record is None else without(record, outdated)
    missing = missing_problems(database, wanted, target.name)
    reasons = [*_outdated(record, outdated), *_missing(session, operator, target, missing, record)]
    if database is None or len(missing) == len(wanted):
        evidence = _generic_evidence(session, operator, target)
        if outdated or not evidence.brief:  # records for older CPUs may be incomplete
            evidence.remark(f"NOT TUNED for {target.name}, the generic variant serves: {'; '.join(reasons)}")
        return evidence, None
    evidence = recalled(operator, target, database, variants, brief=target == session.older)
    if outdated or (missing and not evidence.brief):
        served = "; calls of them get a variant that was measured on others, else the generic one" * bool(missing)
        evidence.remark(f"PARTLY TUNED for {target.name}: {'; '.join(reasons)}{served}")
    return evidence, database


def _outdated(database: OperatorDatabase | None, outdated: _Outdated) -> list[str]:
    """Why recorded candidates do not count, by kernel."""
    if database is None:
        return []
    kernels: dict[str, list[str]] = {}
    for record in database.candidates:
        if record.id in outdated:
            kernels.setdefault(record.candidate.kernel, []).append(record.id)
    lines = []
    for kernel, ids in kernels.items():
        error = outdated[ids[0]]
        what = error.what.removeprefix(f"operator {database.operator!r}: ").splitlines()[0]
        lines.append(f"{len(ids)} recorded candidate{'s' * (len(ids) != 1)} of {kernel} do not count: {what}")
    return lines


def _missing(
    session: Session, operator: Operator, target: Target, missing: Sequence[Problem], record: OperatorDatabase | None
) -> list[str]:
    """Which problems have no valid time; and why, if the record is of another version of the operator."""
    if not missing:
        return []
    names = ", ".join(p.id for p in missing[:_MOST]) + ", ..." * (len(missing) > _MOST)
    if record is not None:
        return [f"no time that counts of {len(missing)} problem{'s' * (len(missing) != 1)}: {names}"]
    what = miss(session, operator, target, missing, None).what.removeprefix(f"operator {operator.name!r} on ")
    return [f"{what.removeprefix(f'{target.name}: ')}: {names}"]
