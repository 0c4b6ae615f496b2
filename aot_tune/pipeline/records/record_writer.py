"""After selection: compiles what is kept, compares it with the records, and keeps measurements for `record`."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Device, Measurement, is_baseline
from aot_tune.compile import Variant
from aot_tune.database import (
    OperatorDatabase,
    SurveyedShape,
    make_database,
    measured_before,
    operator_digest,
    save_database,
    update,
    without,
)
from aot_tune.database.checks import in_space
from aot_tune.pipeline.evidence import Chosen, Evidence
from aot_tune.pipeline.loaded_operators import baseline_versions
from aot_tune.pipeline.records.export_records import NOTES, ROOTS, roots_of
from aot_tune.pipeline.records.lookup import render_again
from aot_tune.pipeline.session import Session
from aot_tune.render import Candidate
from aot_tune.spec import Operator
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.errors import BuildError, DatabaseError, RenderError, SpecError
from aot_tune.support.storage import TEMPORARIES, new_temporary, put_folder

__all__ = ["compile_kept", "records_folder", "save_records"]


def compile_kept(
    session: Session, chosen: Mapping[str, Sequence[Chosen]], generics: Mapping[str, Sequence[Variant]]
) -> dict[str, list[Variant]]:
    """Compile every generic variant, and the kept variants that have no object yet. Returns the generic ones.

    An operator fails if one of its variants does not compile, or if a strict build gets other code than the recorded.
    """
    every = [one for found in chosen.values() for one in found]
    kept = [one.evidence.entries[c] for one in every for c in one.selection.kept]
    always = [entry for entries in generics.values() for entry in entries]
    made = session.compile([*always, *kept], "kept variants", [one.evidence for one in every])
    always, kept = made[: len(always)], made[len(always) :]
    left = iter(always)
    built = {name: list(itertools.islice(left, len(entries))) for name, entries in generics.items()}
    for name, generic in ((name, entry) for name, entries in built.items() for entry in entries):
        with session.failures.of(name):
            _require_generic(session.operators[name], generic)
    shipped = [*always, *(e for e in kept if not e.candidate.generic)]
    for entry in shipped:
        with session.failures.of(entry.candidate.operator):
            if not entry.compiled and not entry.candidate.generic:
                error = entry.object.error if entry.object else ""
                raise BuildError(f"kept variant {entry.candidate.label} does not compile here", why=error)
            if entry.rebuilt and session.options.strict:
                raise _other_code(session, entry)
    rebuilt = sum(e.rebuilt for e in shipped)
    if rebuilt:
        session.progress.line(
            f"{rebuilt} of {len(shipped)} variants are rebuilt: the compiler or its flags here differ from the "
            f"recorded ones"
        )
    return built


def _require_generic(operator: Operator, entry: Variant) -> None:
    """Raise BuildError if the generic variant has no object, because some calls would have no variant."""
    if not entry.compiled:
        reason = entry.object.error if entry.object is not None else "it was not compiled"
        raise BuildError(
            f"operator {operator.name!r}: its generic kernel cannot be compiled",
            why=reason,
            fix=f"mend {operator.kernel(entry.candidate.kernel).source}; calls would have no answer",
        )


def _toolchain(session: Session, entry: Variant) -> str:
    """The version of the toolchain that compiles an entry here."""
    return session.plan.toolchains.get(entry.candidate.backend, {}).get("version", "unknown")


def _other_code(session: Session, entry: Variant) -> DatabaseError:
    """The error for a strict build's variant whose code is not the recorded one."""
    what = "device code" if entry.object is not None and entry.object.device else "object"
    return DatabaseError(
        f"{entry.candidate.operator}: {entry.candidate.label} compiles to another {what} than the recorded one",
        why=f"recorded {entry.recorded[:12]}, here {entry.code[:12]} by {_toolchain(session, entry)}",
        fix=f"use the recorded toolchain and flags ({_recorded_toolchain(session, entry)}), or set AOT_TUNE_STRICT=0",
    )


def _recorded_toolchain(session: Session, entry: Variant) -> str:
    versions = {
        d.toolchains.get(entry.candidate.backend, {}).get("version", "unknown")
        for d in session.databases
        if d.candidate(entry.candidate.id) is not None
    }
    return " or ".join(sorted(versions))


def records_folder(session: Session) -> Path | None:
    """The folder with the records of the library's last build; None without a cache.

    Libraries with one name but another prefix or other operators belong to different projects; each has its own folder.
    A library that does without some backends has one too, `<name>-without-<backend>-<digest>`, because it knows less.
    So has a second checkout, once it has recorded something.
    """
    common, own = _folders(session)
    return own if own is not None and own.is_dir() else common


def _folders(session: Session) -> tuple[Path | None, Path | None]:
    """The folder of the first project with such a library, and the folder that this project would have beside it."""
    root = session.store.root
    if root is None:
        return None, None
    name = "-".join([session.plan.name, *(f"without-{backend}" for backend in session.options.exclude_backends)])
    identity = "\0".join((session.plan.prefix, *session.plan.operators))
    digests = [hashlib.sha256(text.encode()).hexdigest()[:12] for text in (identity, f"{identity}\0{_roots(session)}")]
    common, own = (root / "recorded" / f"{name}-{digest}" for digest in digests)
    return common, own


def _folder_to_write(session: Session) -> Path | None:
    """The project's own folder, if another project that still has its templates uses the first one."""
    common, own = _folders(session)
    if common is None or own is None or own.is_dir():
        return own
    others = roots_of(common)
    taken = others and others != _roots(session).splitlines() and all(Path(r).is_dir() for r in others)
    return own if taken else common


def _roots(session: Session) -> str:
    """The template folders of a build, a line each. They tell its project from others."""
    return "".join(f"{root.resolve()}\n" for root in session.renderer.roots)


def save_records(session: Session, evidence: Mapping[str, Sequence[Evidence]]) -> None:
    """Keep what this build measured, or took from committed records, for `aot-tune record`.

    The folder holds only this build's results: nothing of earlier builds stays.

    Raises:
        DatabaseError: when they cannot be written.
    """
    folder = _folder_to_write(session)
    if folder is None:
        return
    found = list(databases_of(session, evidence)) if session.options.cache != "ro" else []
    if not found:  # the results of an earlier build are still the last
        return
    temporaries = folder.parent.parent / TEMPORARIES
    try:
        fresh = new_temporary(temporaries)
        for database in found:
            save_database(fresh, database)
        notes = [f"{name} on {e.target.name}: {e.note}" for name, own in evidence.items() for e in own if e.note]
        (fresh / NOTES).write_text("".join(f"{note}\n" for note in notes), encoding="utf-8")
        (fresh / ROOTS).write_text(_roots(session), encoding="utf-8")
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        put_folder(fresh, folder, temporaries)
    except OSError as error:
        raise DatabaseError(
            f"cannot write {folder}: {error.strerror}", fix="free disk space, or set AOT_TUNE_CACHE=off"
        ) from error


def databases_of(session: Session, evidence: Mapping[str, Sequence[Evidence]]) -> Iterator[OperatorDatabase]:
    """A database for each operator and device that something was measured on."""
    for name, found in evidence.items():
        sources = {e.candidate.id: e.rendered.digest for one in found for e in one.entries.values()}
        operator = session.operators[name]
        for device in session.devices:
            database = database_of(session, operator, found, device)
            if database is not None:
                same = [d for d in session.databases if d.operator == name and d.device.digest == device.digest]
                if same:  # the session's operator lacks kernels of backends that are not installed
                    rest = _untried_sources(session, operator, sources, same[0])
                    older = _of_this_tree(load_operator(Path(operator.folder)), sources | rest, same[0])
                    again = session.options.mode == "tune"
                    database = update(measured_before(older, database) if again else older, database)
                yield database


def _untried_sources(
    session: Session, operator: Operator, sources: Mapping[str, str], recorded: OperatorDatabase
) -> dict[str, str]:
    """Digests of the sources that the recorded candidates which this build did not try are rendered to.

    A replay renders them all. It refuses a record with another source, or with a kernel that is not for its target.
    """
    kernels = {k.name: k for k in operator.kernels}
    found = {}
    for record in recorded.candidates:
        if record.id in sources:
            continue
        candidate = record.candidate
        tried = candidate.target in session.plan.targets and candidate.backend in session.plan.toolchains
        tried = tried and candidate.kernel not in operator.left_out
        if tried and candidate.kernel not in kernels:  # a Triton function for no target of this build
            found[record.id] = ""
        if not _may_be_of(operator, candidate):
            continue
        try:
            found[record.id] = render_again(session, operator, candidate).digest
        except SpecError:  # this build has not read the Triton function
            continue
        except RenderError:  # the template's configs have changed
            found[record.id] = ""
    return found


def _of_this_tree(operator: Operator, sources: Mapping[str, str], recorded: OperatorDatabase) -> OperatorDatabase:
    """A committed record without the candidates that the operator's kernels can no longer give.

    Candidates with another source than here are dropped too; `sources` has the digests of what is rendered here.
    Configs from a vendor's library or a function's autotuner are not known here, and stay.
    """
    gone = {c.id for c in recorded.candidates if sources.get(c.id, c.source) != c.source}
    return without(recorded, gone | {c.id for c in recorded.candidates if not _may_be_of(operator, c.candidate)})


def _may_be_of(operator: Operator, candidate: Candidate) -> bool:
    return any(k.name == candidate.kernel for k in operator.kernels) and in_space(operator, candidate)


def database_of(
    session: Session, operator: Operator, found: Sequence[Evidence], device: Device
) -> OperatorDatabase | None:
    """The database of one operator on one device, with all its targets.

    The generic variant and the baselines race for several targets, but are kept once.
    """
    own = [e for e in found if session.device_for(e.target) == device]
    here = {e.candidate.id: e for one in own for e in one.entries.values() if e.object is not None}
    compiled = [(e.rendered, e.object) for e in here.values() if e.object is not None]
    measurements: dict[tuple[str, str], Measurement] = {}
    for m in (m for one in own for row in one.measurements.values() for m in row.values()):
        compiled_here = m.candidate in here and m.code == here[m.candidate].code
        if (compiled_here or is_baseline(m.candidate)) and m.device == device.digest:
            measurements.setdefault((m.candidate, m.problem.id), m)
    if not measurements:
        return None
    asked = [e for e in own if not e.brief]
    return make_database(
        operator=operator.name,
        contract=operator_digest(operator),
        device=msgspec.structs.replace(device, unit=""),
        policy=family(device.family).policy(),
        toolchains=session.plan.toolchains,
        baselines=baseline_versions(operator),
        compiled=compiled,
        measurements=measurements.values(),
        survey=_surveyed(own, here),
        opening=" and ".join(dict.fromkeys(e.opening for e in asked)) if all(e.opening for e in asked) else "",
    )


def _surveyed(own: Sequence[Evidence], here: Mapping[str, Variant]) -> list[SurveyedShape]:
    """The shapes of all targets together."""
    found: dict[str, SurveyedShape] = {}
    for one in own:
        for name, problem in one.surveyed.problems.items():
            before = found[name].ns if name in found else {}
            ns = {c: t for c, t in one.surveyed.times[name].items() if c in here}
            found[name] = SurveyedShape(problem=problem, ns=before | ns)
    return list(found.values())
