"""Tunes all of a plan, from an open session to its evidence: for a build, and for `aot-tune tune`, which records it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from aot_tune.compile import target_by_name
from aot_tune.database import Begun, OperatorDatabase, begin, forget
from aot_tune.pipeline.cluster.ray_executor import RayExecutor
from aot_tune.pipeline.evidence import Evidence, share_among_targets
from aot_tune.pipeline.executor import executor_of
from aot_tune.pipeline.records.record_writer import WrittenRecords, check_record_folder, databases_of, write_records
from aot_tune.pipeline.scheduling.time_to_link import seconds_of_kept
from aot_tune.pipeline.scheduling.tune_targets import tune
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.shipping.finish import selected
from aot_tune.pipeline.shipping.survey import expected_survey, survey_all
from aot_tune.plan.library_plan import Paths, Plan, input_files, read_plan
from aot_tune.plan.preflight import Machines, ThisMachine
from aot_tune.plan.wanted_targets import is_run_by
from aot_tune.search.budget import Budget
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.build_log import LOG_NAME
from aot_tune.support.digests import canonical_digest
from aot_tune.support.errors import BuildError
from aot_tune.support.installed_paths import PACKAGE, project_files
from aot_tune.support.limits import usable_cores
from aot_tune.support.progress import Progress


class TuneOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to tune: `operators`, all if empty. Their records go to `out`. `seconds` is the budget, if not the plan's.

    If targets were `named`, each needs a device. `devices` are patterns of names; without any, all are used.
    """

    out: str
    operators: tuple[str, ...] = ()
    named: bool = False
    seconds: float | None = None
    devices: tuple[str, ...] = ()


def tune_records(directory: Path, order: TuneOrder, progress: Progress) -> WrittenRecords:
    """Tune what a plan in `directory` asks for on the devices of this machine, and write the records.

    Each measurement is in the store at once. A later build, or another run of this, takes it from there. All operators
    that could be measured are recorded.

    Raises:
        BuildError: when a named target has no device here, or no target has one.
        DatabaseError: when the records cannot be written. This is checked before anything is measured.
    """
    plan, paths = read_plan(directory)
    with executor_of(plan, progress.line) as executor:
        plan, away, models = _narrowed(plan, order, executor or ThisMachine())
        if away:
            progress.line(f"NOTE no device for {', '.join(away)} {_where(plan)}: not tuned")
        turns = _turns(models)
        budget, tuned = Budget(plan.options.budget), list[WrittenRecords]()
        for number, (measured, targets) in enumerate(turns):
            part = msgspec.structs.replace(plan, targets=targets, older=plan.older if plan.older in targets else "")
            left = budget.part(len(turns) - number)
            tuned.append(tune_part(part, paths, Path(order.out), left, progress, executor, measured))
    errors = [records.error for records in tuned if records.error is not None]
    return WrittenRecords(
        files={path: database for records in tuned for path, database in records.files.items()},
        notes=tuple(dict.fromkeys(note for records in tuned for note in records.notes)),
        error=errors[0] if errors else None,
    )


def _turns(models: Mapping[str, Sequence[str]]) -> list[tuple[set[str], tuple[str, ...]]]:
    """Turns until each model had one, with their targets. In a turn, each target has at most one model of devices.

    `models` are digests of devices by target.
    """
    turns = []
    for number in range(max(map(len, models.values()), default=0)):
        served = {target: digests[number] for target, digests in models.items() if len(digests) > number}
        turns.append((set(served.values()), tuple(served)))
    return turns


def tune_part(
    plan: Plan,
    paths: Paths,
    out: Path,
    budget: Budget,
    progress: Progress,
    executor: RayExecutor | None,
    models: Collection[str],
) -> WrittenRecords:
    """Tune a plan for targets that each have one model of devices."""
    with opened_session(plan, paths, budget, progress, executor, models, links=False) as session:
        check_record_folder(out, session.devices, plan.operators)
        session.progress.line(f"records go to {out}")
        with begun_or_resumed(session) as run:
            evidence = tune_library(session)
            measured = {name: by_target for name, by_target in evidence.items() if name not in session.failures}
            files = _written(session, measured, out)
            if not session.failures:  # the next run tries again what failed, and knows what is measured
                run.end()
        session.tell_of_tiers()
        told = (
            f"{len(files)} record{'s' * (len(files) != 1)} written"
            if files
            else "nothing that the project's records do not have"
        )
        session.progress.line(f"done in {session.time.budget.spent:.0f} s: {told}")
        return WrittenRecords(
            files=files,
            notes=tuple(f"{name} on {e.target.name}: {e.note}" for name in measured for e in measured[name] if e.note),
            error=session.failures.error(len(plan.operators)) if session.failures else None,
        )


def _written(session: Session, measured: Mapping[str, Sequence[Evidence]], out: Path) -> dict[Path, OperatorDatabase]:
    for by_target in measured.values():
        share_among_targets(by_target)
        for evidence in by_target:
            tried = [c for c, e in evidence.variants.items() if not e.candidate.generic]
            if tried and all(map(evidence.failed, tried)):
                evidence.nothing_survived()
    operators = {name: load_operator(Path(session.operators[name].folder)) for name in measured}
    return write_records(out, databases_of(session, measured), operators)


def _where(plan: Plan) -> str:
    return "on this machine" if plan.options.executor == "local" else "in the cluster"


def _narrowed(plan: Plan, order: TuneOrder, machines: Machines) -> tuple[Plan, list[str], dict[str, list[str]]]:
    """The plan for the requested targets that have a device here, those that have none, and digests of devices."""
    operators = tuple(o for o in plan.operators if not order.operators or o in order.operators)
    here = machines.devices(plan.options.threads or usable_cores(), plan.families)
    devices = [d for d in here if not order.devices or any(fnmatch(d.name, pattern) for pattern in order.devices)]
    native, baselines = {t.name for t in machines.native()}, [target_by_name(b) for b in plan.baselines]
    models = {
        name: list(dict.fromkeys(d.digest for d in devices if is_run_by(d, target_by_name(name), native, baselines)))
        for name in plan.targets
    }
    away = [name for name, digests in models.items() if not digests]
    if away and (order.named or len(away) == len(models)):
        raise BuildError(
            f"no device for {', '.join(away)} {_where(plan)}",
            why=f"tuning needs measurements, and here {'is' if len(here) == 1 else 'are'} "
            f"{'; '.join(d.name for d in here)}, for {', '.join(sorted(native))}",
            fix="run the command on a machine with such a device, or name other targets with --target; "
            "`aot-tune doctor` tells what is here",
        )
    kept = tuple(name for name, digests in models.items() if digests)
    older = plan.older if plan.older in kept else ""
    options = plan.options if order.seconds is None else replace(plan.options, budget=order.seconds)
    narrowed = msgspec.structs.replace(plan, operators=operators, targets=kept, older=older, options=options)
    return narrowed, away, {name: models[name] for name in kept}


@contextmanager
def opened_session(
    plan: Plan,
    paths: Paths,
    budget: Budget,
    progress: Progress,
    executor: RayExecutor | None = None,
    models: Collection[str] | None = None,
    *,
    links: bool = True,
    tells: bool = True,
    folder: Path | None = None,
) -> Iterator[Session]:
    """A session for a plan, closed in the end. If it `tells`, lines say what is planned. Without `links`, nothing is
    linked. The log is below AOT_TUNE_KEEP, else in the `folder`, if any.

    Raises:
        AotTuneError: for a cache that the user named and that cannot be used, or for machines of the `executor` that
            are not fit for the plan.
    """
    folder = Path(plan.options.keep) / plan.name if plan.options.keep else folder
    if folder is not None:
        progress.log.open(folder / LOG_NAME)
    for line in (*plan.summary(), *paths.compilers) if tells else ():
        progress.line(line)
    session = Session(plan, paths, progress, budget, links=links, executor=executor, models=models)
    try:
        if executor is not None:
            _agree(session, executor, paths)
        for line in session.left_out():
            progress.line(line)
        reasons = dict.fromkeys(session.compilers_of(backend).reason for backend in plan.toolchains)
        progress.line(f"cache {session.location.root or 'off'}, {'; '.join(reasons)}")
        yield session
    finally:
        session.close()


def _agree(session: Session, executor: RayExecutor, paths: Paths) -> None:
    """Check that helping machines fit a build. Raises BuildError, also when no device runs a target to measure."""
    roots = [Path(root) for root in paths.templates]
    files = input_files(roots, session.operators, "", project_files())
    executor.agree(session.plan, paths, [f for f in files if not f.is_relative_to(PACKAGE)])
    if not session.plan.may_measure or session.options.mode not in ("auto", "tune"):
        return
    recorded = {t for d in session.databases for t in d.targets} if session.options.mode == "auto" else set()
    for target in session.targets:
        if target.name not in recorded and session.device_for(target) is None:
            have = ", ".join(dict.fromkeys(d.name for d in session.devices)) or "none"
            raise BuildError(
                f"the Ray cluster has no device of target {target.name}",
                why=f"its devices are: {have}",
                fix="add a node that has one (`ray start --address=HEAD:6379`), or leave the target out of "
                "AOT_TUNE_TARGETS",
            )


def tune_library(session: Session) -> dict[str, list[Evidence]]:
    """Evidence by operator, one for each target, of everything that a session's plan asks for, surveys included.

    In the mode `auto`, what records and the store know is used as it is. Each new measurement is in the store as soon
    as it is made, so a killed run loses at most one.
    """
    began = session.progress.now()
    session.coming["survey"] = lambda: expected_survey(session, session.progress.now() - began)
    session.coming["kept variants"] = seconds_of_kept(session)
    with session.time.stage("compiling and measuring"):
        evidence = tune(session)
    measured = session.progress.now() - began
    session.coming.pop("survey")
    with session.time.stage("survey"), session.time.not_after_tuning(session.progress.now):
        survey_all(session, evidence, measured, lambda tuned: selected(tuned, session.options)[1].losing)
    return evidence


class _TuningRun:
    """A run that may measure anew, from `begun_or_resumed`. Call `end` when all is measured and written."""

    def __init__(self, session: Session, begun: Begun | None) -> None:
        self._session, self._begun = session, begun

    def end(self) -> None:
        """All is measured. The next run that measures anew starts from nothing."""
        if self._begun is not None:
            self._begun.end()
        elif self._session.options.mode == "auto":
            forget(self._session.location, _kind(self._session))


@contextmanager
def begun_or_resumed(session: Session) -> Iterator[_TuningRun]:
    """In the mode `tune`, use what an interrupted run has measured anew."""
    begun = _begin(session)
    try:
        yield _TuningRun(session, begun)
    finally:
        if begun is not None:
            begun.leave()


def _begin(session: Session) -> Begun | None:
    if session.options.mode != "tune":
        return None
    if session.location.mode == "fresh":
        forget(session.location, _kind(session))
    begun = begin(session.location, _kind(session))
    if begun is not None:
        session.goes_on_with(begun)
        if begun.resumed:
            when = time.strftime("%H:%M:%S", time.localtime(begun.since / 1e9))
            session.progress.line(
                f"continues the build of {when}, which did not end (AOT_TUNE_CACHE=fresh measures all again)"
            )
    return begun


def _kind(session: Session) -> str:
    """Identifies builds that would measure the same."""
    plan, options = session.plan, session.options
    asked = [options.filter, options.exclude_backends, options.effort, plan.workload.operators]
    return canonical_digest([plan.name, plan.prefix, plan.operators, plan.targets, plan.devices, asked])
