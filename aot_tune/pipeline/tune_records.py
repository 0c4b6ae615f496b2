"""What `aot-tune tune` does with a planned library: tunes all of it on this machine's devices, and records it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from aot_tune.compile import target_by_name
from aot_tune.database import OperatorDatabase
from aot_tune.pipeline.choose_executor import executor_of
from aot_tune.pipeline.evidence import Evidence, share_among_targets
from aot_tune.pipeline.executor import Executor
from aot_tune.pipeline.records.record_writer import check_record_folder, databases_of, write_records
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.tune_plan import begun_or_resumed, opened_session, tune_plan
from aot_tune.plan.library_plan import Paths, Plan, read_plan
from aot_tune.plan.preflight import Machines, ThisMachine
from aot_tune.plan.wanted_targets import is_run_by
from aot_tune.search.budget import Budget
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.errors import AotTuneError, BuildError
from aot_tune.support.limits import usable_cores
from aot_tune.support.progress import Progress

__all__ = ["TuneOrder", "TunedRecords", "tune_records"]


class TuneOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to tune of a planned library: its `operators`, all if empty. Their records go to `out`.

    If targets were `named`, each must have a device here. `seconds` is the budget, if it is not the plan's.
    """

    out: str
    operators: tuple[str, ...] = ()
    named: bool = False
    seconds: float | None = None


class TunedRecords(msgspec.Struct, frozen=True, kw_only=True):
    """The records that were written, by path, remarks on them, and what was wrong with other operators."""

    files: dict[Path, OperatorDatabase]
    notes: tuple[str, ...] = ()
    error: AotTuneError | None = None


def tune_records(directory: Path, order: TuneOrder) -> TunedRecords:
    """Tune what a plan in `directory` asks for on the devices of this machine, and write the records.

    Each measurement is in the store at once. A later build, or another run of this, takes it from there. All operators
    that could be measured are recorded.

    Raises:
        BuildError: when a named target has no device here, or no target has one.
        DatabaseError: when the records cannot be written. This is checked before anything is measured.
    """
    plan, paths = read_plan(directory)
    progress = Progress()
    with executor_of(plan, progress.line) as executor:
        plan, away = _narrowed(plan, order, executor or ThisMachine())
        if away:
            progress.line(f"NOTE no device for {', '.join(away)} {_where(plan)}: not tuned")
        parts = [(None, plan.targets)] if executor is None else executor.parts(plan.targets)
        budget, found = Budget(plan.options.budget), list[TunedRecords]()
        for number, (machines, targets) in enumerate(parts):
            part = msgspec.structs.replace(plan, targets=targets, older=plan.older if plan.older in targets else "")
            found.append(_tuned(part, paths, Path(order.out), budget.part(len(parts) - number), progress, machines))
    errors = [one.error for one in found if one.error is not None]
    return TunedRecords(
        files={path: database for one in found for path, database in one.files.items()},
        notes=tuple(dict.fromkeys(note for one in found for note in one.notes)),
        error=errors[0] if errors else None,
    )


def _tuned(
    plan: Plan, paths: Paths, out: Path, budget: Budget, progress: Progress, machines: Executor | None
) -> TunedRecords:
    """Tune a plan for targets that each have one model of devices."""
    with opened_session(plan, paths, budget, progress, machines, links=False) as session:
        check_record_folder(out, session.devices, plan.operators)
        session.progress.line(f"records go to {out}")
        with begun_or_resumed(session) as run:
            evidence = tune_plan(session)
            known = {name: found for name, found in evidence.items() if name not in session.failures}
            files = _written(session, known, out)
            if not session.failures:  # the next run tries again what failed, and knows what is measured
                run.end()
        session.tell_of_tiers()
        told = (
            f"{len(files)} record{'s' * (len(files) != 1)} written"
            if files
            else "nothing that the project's records do not have"
        )
        session.progress.line(f"done in {session.budget.spent:.0f} s: {told}")
        return TunedRecords(
            files=files,
            notes=tuple(f"{name} on {e.target.name}: {e.note}" for name, own in known.items() for e in own if e.note),
            error=session.failures.error(len(plan.operators)) if session.failures else None,
        )


def _written(session: Session, known: Mapping[str, Sequence[Evidence]], out: Path) -> dict[Path, OperatorDatabase]:
    for found in known.values():
        share_among_targets(found)
        for one in found:
            tried = [c for c, e in one.entries.items() if not e.candidate.generic]
            if tried and all(map(one.failed, tried)):
                one.nothing_survived()
    operators = {name: load_operator(Path(session.operators[name].folder)) for name in known}
    return write_records(out, databases_of(session, known), operators)


def _where(plan: Plan) -> str:
    return "on this machine" if plan.options.executor == "local" else "in the cluster"


def _narrowed(plan: Plan, order: TuneOrder, machines: Machines) -> tuple[Plan, list[str]]:
    """The plan for the requested targets that have a device here, and the targets that have none."""
    operators = tuple(o for o in plan.operators if not order.operators or o in order.operators)
    here = machines.devices(plan.options.threads or usable_cores(), plan.families)
    native, baselines = {t.name for t in machines.native()}, [target_by_name(b) for b in plan.baselines]
    targets = {n: any(is_run_by(d, target_by_name(n), native, baselines) for d in here) for n in plan.targets}
    away = [name for name, runs in targets.items() if not runs]
    if away and (order.named or len(away) == len(targets)):
        raise BuildError(
            f"no device for {', '.join(away)} {_where(plan)}",
            why=f"tuning needs measurements, and here {'is' if len(here) == 1 else 'are'} "
            f"{'; '.join(d.name for d in here)}, for {', '.join(sorted(native))}",
            fix="run the command on a machine with such a device, or name other targets with --targets; "
            "`aot-tune doctor` tells what is here",
        )
    kept = tuple(name for name, runs in targets.items() if runs)
    older = plan.older if plan.older in kept else ""
    options = plan.options if order.seconds is None else msgspec.structs.replace(plan.options, budget=order.seconds)
    return msgspec.structs.replace(plan, operators=operators, targets=kept, older=older, options=options), away
