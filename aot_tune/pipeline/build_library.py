"""Drives the stages in their order. No other module knows all of them."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from aot_tune.bench.devices.family import family
from aot_tune.compile import Variant, target_by_name, toolchain_for
from aot_tune.database import deciding, told_ties
from aot_tune.pipeline.every_candidate import compile_every_candidate, tell_failures
from aot_tune.pipeline.evidence import Chosen, Evidence, share_among_targets
from aot_tune.pipeline.executor import executor_of
from aot_tune.pipeline.measuring.verify_variants import verified_beside, verify_shipped
from aot_tune.pipeline.records.lookup import evidence_of_what_holds, recorded_evidence
from aot_tune.pipeline.records.record_writer import save_records
from aot_tune.pipeline.scheduling.time_to_link import TO_CHECK, link_memory, seconds_after, seconds_to_link
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.shipping.filling_in import stand_in, without_wrong
from aot_tune.pipeline.shipping.finish import choose, finish, keep_texts, tell_losses
from aot_tune.pipeline.shipping.sanitize import sanitize_kept
from aot_tune.pipeline.shipping.verify_linked import plan_checks
from aot_tune.pipeline.tune_library import begun_or_resumed, opened_session, tune_library
from aot_tune.plan.library_plan import Paths, Plan, read_plan
from aot_tune.plan.options import TOLERANT
from aot_tune.report.report_records import Report
from aot_tune.report.report_text import in_reading_order
from aot_tune.report.verdict import told_together, verdict_lines
from aot_tune.search.budget import Budget
from aot_tune.support.errors import BuildError, DatabaseError
from aot_tune.support.installed_paths import BUNDLED_PREFIX
from aot_tune.support.progress import Progress
from aot_tune.support.storage import write_changed
from aot_tune.support.wall_clock import note_tuned, planned_just_now, spent_before

_STILL = 0.25
"""At the end of the tuning, at least this share of the time for the link is left."""
_NOT_OWN = ("/usr", "/opt", "/lib", "/lib64", "/nix", "/proc", "/sys", "/dev")


def build(directory: Path) -> None:
    """Build the library planned in `directory`: sources, objects, manifest, report. Raises AotTuneError."""
    plan, paths = read_plan(directory)
    budget = Budget(plan.options.budget, spent=spent_before(directory))
    progress, tells = Progress(spent=budget.spent), not planned_just_now(directory)
    with (
        executor_of(plan, progress.line) as executor,
        opened_session(plan, paths, budget, progress, executor, tells=tells, folder=directory) as session,
    ):
        with begun_or_resumed(session) as run:
            report = build_with(session, plan, directory)
            run.end()
        _note_headers(directory, _own_headers(session, paths))
        session.tell_of_tiers()
        ago = 0.0 if session.time.tuned is None else progress.now() - session.time.tuned
        link = seconds_to_link(session) if budget.seconds is None else seconds_after(session)
        for line in verdict_lines(in_reading_order(report), _without_baseline(session, report)):
            progress.line(line)
        progress.line(
            f"done in {budget.spent:.0f} s, about {max(link - ago, _STILL * link):.0f} s more to link; "
            f"{shown_again(plan, directory)}"
        )


def _without_baseline(session: Session, report: Report) -> dict[str, list[str]]:
    """The tuned operators that were compared with no baseline, each with the modules that would bring one."""
    parts = [part for part in report.operators if part.problems]
    compared = {part.operator for part in parts if part.speedup}
    missing: dict[str, list[str]] = {}
    for part in parts:
        if part.operator not in compared:
            runs = family(target_by_name(part.target).family).runs
            modules = {
                b.requires.partition(".")[0] for b in session.operators[part.operator].baselines if runs(b.requires)
            }
            missing.setdefault(part.operator, []).extend(sorted(modules))
    return missing


def _own_headers(session: Session, paths: Paths) -> list[Path]:
    """Headers that the C++ sources include and that are the author's: of no template root, compiler or package."""
    package = Path(__file__).resolve().parents[1]
    foreign = [Path(p).resolve() for p in (*_NOT_OWN, sys.prefix, sys.base_prefix, str(package), *paths.templates)]
    headers: set[Path] = set()
    for backend in session.plan.toolchains:
        chain = toolchain_for(backend, session.environment)
        folders = [*foreign, *(Path(f).resolve() for f in chain.include_folders())]
        for name in session.cache(backend).includes:
            path = Path(chain.locate(name)).resolve()
            if path.is_file() and not any(path.is_relative_to(f) for f in folders):
                headers.add(path)
    return sorted(headers)


def _note_headers(directory: Path, headers: Sequence[Path]) -> None:
    """Tell the build tool which headers were read, in the way compilers do."""
    names = [str(directory / "tuned"), str(directory / "plan.json"), *map(str, headers)]
    first, *others = (
        name.replace("\\", "\\\\").replace(" ", "\\ ").replace("#", "\\#").replace("$", "$$") for name in names
    )
    write_changed(directory / "headers.d", os.fsencode(f"{first}:{''.join(f' {name}' for name in others)}\n"))


def shown_again(plan: Plan, directory: Path) -> str:
    """How to see the report. That of the bundled operators is installed with them."""
    if plan.prefix == BUNDLED_PREFIX:
        return "`aot-tune report` shows each race"
    if plan.module and directory.is_relative_to(tempfile.gettempdir()):  # pip removes its build folder
        return f"`aot-tune report --module PACKAGE.{plan.module}` shows each race once PACKAGE is installed"
    return f"`aot-tune report --build {shlex.quote(str(directory))}` shows each race while that folder is there"


def build_with(session: Session, plan: Plan, directory: Path) -> Report:
    """Build with an open session: tune or replay, ship, save records."""
    if plan.options.mode == "compile":
        tell_failures(session, compile_every_candidate(session))
        _without_failed(session)
    with verified_beside(session):
        evidence = _evidence(session)
        if session.time.tuned is None:
            session.time.tuned = session.progress.now()
        generics: dict[str, list[Variant]] = {}
        chosen: dict[str, list[Chosen]] = {}
        for name, evidences in evidence.items():
            share_among_targets(evidences)
            with session.failures.of(name), session.time.stage("choosing variants"):
                stand_in(session, evidences)
                generics[name] = _generics(session, name, evidences)
                chosen[name] = [choose(session, e) for e in evidences]
                _log_choice(session, chosen[name])
        tell_losses(session, chosen)
        with session.time.stage("compiling what is kept"), session.time.not_after_tuning(session.progress.now):
            generics = _compile_kept(session, chosen, generics)  # a replay compiles here
    with session.time.stage("checking what is kept"):
        chosen = without_wrong(chosen, verify_shipped(session, chosen, generics))
        session.coming.pop("kept variants")
    if plan.options.sanitize == "winners":
        with session.time.stage("sanitizers"):
            sanitize_kept(session, chosen, generics)
    _without_failed(session)
    plan_checks(session, directory, chosen, generics)
    ago = session.progress.now() - session.time.tuned
    memory = link_memory(session) if session.location.mode in ("rw", "fresh") else None
    note_tuned(directory, memory, ago=ago, granted=session.time.load.granted)
    with session.time.stage("writing the library"):
        kept = keep_texts(session, _kept(session, chosen, generics))
        report = finish(session, directory, chosen, generics, kept)
    if plan.options.mode in ("auto", "tune"):
        save_records(session, {name: evidences for name, evidences in evidence.items() if name in session.operators})
    return report


def _log_choice(session: Session, chosen: Sequence[Chosen]) -> None:
    for member in chosen:
        evidence, selection = member.evidence, member.selection
        session.progress.log.add(
            "build",
            "choice",
            f"{evidence.operator.name} on {evidence.target.name}",
            kept={evidence.variants[c].name: evidence.variants[c].candidate.label for c in selection.kept},
            regret={problem: round(regret, 4) for problem, regret in selection.regret.items()},
        )


def _evidence(session: Session) -> dict[str, list[Evidence]]:
    """Evidence by operator, as the mode says: none, from records, or measured."""
    if session.options.mode in ("generic", "compile"):
        return {name: [] for name in session.operators}
    records = deciding(session.databases, session.options.device)
    for line in dict.fromkeys(line for d in session.devices for line in told_ties(records, session.operators, d)):
        session.progress.line(line)
    return replay_all(session) if session.options.replays else tune_library(session)


def _without_failed(session: Session) -> None:
    """Leave out the operators that failed. Raises AotTuneError if options forbid that, or none is left."""
    failures, count = session.failures, len(session.operators)
    if not failures:
        return
    if session.options.no_survivor != "leave-out" or len(failures.operators) == count:
        raise failures.error(count)
    for line in failures.told():
        session.progress.line(line)
    names = ", ".join(failures.operators)
    session.progress.line(f"LEFT OUT of the library, as AOT_TUNE_NO_SURVIVOR=leave-out says: {names}")
    session.leave_failed_out()


def _generics(session: Session, name: str, evidences: list[Evidence]) -> list[Variant]:
    """The generic variants of an operator: the measured ones, if there are any."""
    measured = {e.candidate.id: e for evidence in evidences for e in evidence.variants.values() if e.candidate.generic}
    variants = session.generic_variants(session.operators[name])
    return [measured.get(e.candidate.id, e) for e in variants]


def _kept(
    session: Session, chosen: Mapping[str, Sequence[Chosen]], generics: Mapping[str, Sequence[Variant]]
) -> Iterator[Variant]:
    """All variants of the library."""
    for name in session.operators:
        yield from (member.evidence.variants[c] for member in chosen.get(name, ()) for c in member.selection.kept)
        yield from generics[name]


def replay_all(session: Session) -> dict[str, list[Evidence]]:
    """Evidence of every operator, from the records."""
    tolerant = session.options.mode == TOLERANT
    if not session.databases or not session.targets:
        if not tolerant:
            raise BuildError(
                "AOT_TUNE_MODE=replay, but the database is empty",
                why="replay measures nothing: it needs the records of a build on the device",
                fix=f"run `aot-tune records export --library {session.plan.name} tuning` after a build on the device, "
                "commit the folder, or use another mode",
            )
        session.progress.line("NOTE there are no records: the library has only generic variants")
    by_operator: dict[str, list[Evidence]] = {name: [] for name in session.operators}
    decide = evidence_of_what_holds if tolerant else recorded_evidence
    for target in session.targets:
        decided: dict[str, list[str]] = {}
        notes: list[tuple[str, str]] = []
        left_out: list[tuple[str, str]] = []
        for name, operator in session.operators.items():
            with session.failures.of(name):
                evidence, database = decide(session, operator, target)
            if name in session.failures:
                continue
            by_operator[name].append(evidence)
            if database is not None:
                decided.setdefault(database.device.slug, []).append(name)
            if evidence.note:
                (left_out if evidence.left_out else notes).append((name, evidence.note))
        for line in (*told_together(left_out), *(f"NOTE {line}" for line in told_together(notes))):
            session.progress.line(line)
        for slug, names in decided.items():
            whose = f" for {', '.join(names)}" if len(decided) > 1 else ""
            session.progress.line(f"{target.name} is chosen by records of {slug}{whose}")
    return by_operator


def _compile_kept(
    session: Session, chosen: Mapping[str, Sequence[Chosen]], generics: Mapping[str, Sequence[Variant]]
) -> dict[str, list[Variant]]:
    """Compile every generic variant, and the kept variants that have no object yet. Returns the generic ones.

    An operator fails if one of its variants does not compile, or if a strict build gets other code than the recorded.
    """
    every = [member for members in chosen.values() for member in members]
    kept = [member.evidence.variants[c] for member in every for c in member.selection.kept]
    always = [variant for variants in generics.values() for variant in variants]
    new = sum(variant.object is None for variant in (*always, *kept))
    session.coming["kept variants"] = lambda: TO_CHECK * new
    compiled = session.compile([*always, *kept], "kept variants", [member.evidence for member in every])
    always, kept = compiled[: len(always)], compiled[len(always) :]
    left = iter(always)
    built = {name: list(itertools.islice(left, len(variants))) for name, variants in generics.items()}
    for name, generic in ((name, variant) for name, variants in built.items() for variant in variants):
        with session.failures.of(name):
            operator = session.operators[name]
            if not generic.compiled:
                raise BuildError(
                    f"operator {operator.name!r}: its generic kernel cannot be compiled",
                    why=generic.error,
                    fix=f"correct {operator.kernel(generic.candidate.kernel).source}; calls would have no answer",
                )
    shipped = [*always, *(e for e in kept if not e.candidate.generic)]
    for variant in shipped:
        with session.failures.of(variant.candidate.operator):
            if not variant.compiled and not variant.candidate.generic:
                raise BuildError(f"kept variant {variant.candidate.label} does not compile here", why=variant.error)
            if variant.rebuilt and session.options.strict:
                raise _other_code(session, variant)
    rebuilt = sum(e.rebuilt for e in shipped)
    if rebuilt:
        session.progress.line(
            f"{rebuilt} of {len(shipped)} variants are rebuilt: the compiler or its flags here differ from the "
            f"recorded ones"
        )
    return built


def _toolchain(session: Session, variant: Variant) -> str:
    """The version of the toolchain that compiles a variant here."""
    return session.plan.toolchains.get(variant.candidate.backend, {}).get("version", "unknown")


def _other_code(session: Session, variant: Variant) -> DatabaseError:
    """The error for a strict build's variant whose code is not the recorded one."""
    what = "device code" if variant.object is not None and variant.object.device else "object"
    return DatabaseError(
        f"{variant.candidate.operator}: {variant.candidate.label} compiles to another {what} than the recorded one",
        why=f"recorded {variant.recorded[:12]}, here {variant.code[:12]} by {_toolchain(session, variant)}",
        fix=f"use the recorded toolchain and flags ({_recorded_toolchain(session, variant)}), or set AOT_TUNE_STRICT=0",
    )


def _recorded_toolchain(session: Session, variant: Variant) -> str:
    versions = {
        d.toolchains.get(variant.candidate.backend, {}).get("version", "unknown")
        for d in session.databases
        if any(c.id == variant.candidate.id for c in d.candidates)
    }
    return " or ".join(sorted(versions))
