"""The records of a build: they are kept in the cache, exported from there, and written to the folder to commit."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aot_tune.bench.protocol.measurement_records import Device, Measurement, is_baseline
from aot_tune.compile import Variant
from aot_tune.database import (
    CandidateRecord,
    OperatorDatabase,
    SurveyedShape,
    canonical_database,
    compact_store,
    database_path,
    load_database,
    load_databases,
    measured_before,
    operator_digest,
    save_database,
    update,
    without,
)
from aot_tune.database.checks import gone, other_sources
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.loaded_operators import baseline_versions
from aot_tune.pipeline.records.lookup import render_again
from aot_tune.pipeline.session import Session
from aot_tune.render import Candidate
from aot_tune.spec import Operator
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.errors import AotTuneError, DatabaseError
from aot_tune.support.storage import TEMPORARIES, cache_location, new_temporary, put_folder

_NOTES = "notes.txt"
"""File beside a build's records: remarks on the build, such as what lacked time; a line each."""


_ROOTS = "templates.txt"
"""File beside them: the folders of the build's templates, a line each."""


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
    texts = identity, f"{identity}\0{_roots(session)}"
    digests = [hashlib.sha256(os.fsencode(text)).hexdigest()[:12] for text in texts]
    common, own = (root / "recorded" / f"{name}-{digest}" for digest in digests)
    return common, own


def _folder_to_write(session: Session) -> Path | None:
    """The project's own folder, if another project that still has its templates uses the first one."""
    common, own = _folders(session)
    if common is None or own is None or own.is_dir():
        return own
    others = _roots_of(common)
    taken = others and others != _roots(session).splitlines() and all(Path(r).is_dir() for r in others)
    return own if taken else common


def _roots(session: Session) -> str:
    """The template folders of a build, a line each. They tell its project from others."""
    return "".join(f"{root.resolve()}\n" for root in session.renderer.roots)


def save_records(session: Session, evidence: Mapping[str, Sequence[Evidence]]) -> None:
    """Keep what this build, and no earlier one, measured or took from records, for `records export`; or say why not."""
    folder = _folder_to_write(session)
    if folder is None:
        return
    databases = list(databases_of(session, evidence)) if session.options.cache != "ro" else []
    if not databases:  # the results of an earlier build are still the last
        return
    temporaries = folder.parent.parent / TEMPORARIES
    try:
        fresh = new_temporary(temporaries)
        for database in databases:
            save_database(fresh, database)
        notes = [f"{name} on {e.target.name}: {e.note}" for name in evidence for e in evidence[name] if e.note]
        (fresh / _NOTES).write_text("".join(f"{note}\n" for note in notes), encoding="utf-8")
        (fresh / _ROOTS).write_bytes(os.fsencode(_roots(session)))
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        put_folder(fresh, folder, temporaries)
    except (OSError, DatabaseError) as error:
        session.progress.line(
            f"NOTE `aot-tune records export` will not find this build: {folder} cannot be written: {error}"
        )


def databases_of(session: Session, evidence: Mapping[str, Sequence[Evidence]]) -> Iterator[OperatorDatabase]:
    """A database for each operator and device that something was measured on.

    An operator's error is noted for that operator, and the others go on.
    """
    for name, evidences in evidence.items():
        databases: list[OperatorDatabase] = []
        with session.failures.of(name):
            databases = [*_databases_of_one(session, session.operators[name], evidences)]
        yield from databases


def _databases_of_one(
    session: Session, operator: Operator, evidences: Sequence[Evidence]
) -> Iterator[OperatorDatabase]:
    sources = {e.candidate.id: e.rendered.digest for tuned in evidences for e in tuned.variants.values()}
    for device in session.devices:
        database = database_of(session, operator, evidences, device)
        if database is None:
            continue
        same = [d for d in session.databases if d.operator == operator.name and d.device.digest == device.digest]
        if same:
            older = _of_this_tree(session, operator, sources, same[0])
            again = session.options.mode == "tune"
            database = update(measured_before(older, database) if again else older, database)
        yield database


def _of_this_tree(
    session: Session, operator: Operator, sources: Mapping[str, str], recorded: OperatorDatabase
) -> OperatorDatabase:
    """A committed record without the candidates that the tree no longer gives, or whose source it gives otherwise.

    A replay renders all, also those that this build did not try. It refuses a record with another source, or with a
    kernel that is not for its target. `sources` has the digests of what this build tried.
    """

    def render(operator: Operator, candidate: Candidate) -> str:
        return sources.get(candidate.id) or render_again(session, operator, candidate).digest

    changed, _ = other_sources(recorded, operator, render)
    kernels = {k.name for k in operator.kernels}
    no_kernel = {c.id for c in recorded.candidates if c.candidate.kernel not in kernels}
    read = {c.id for c in recorded.candidates if _is_read(session, operator, c.candidate)}
    declared = load_operator(Path(operator.folder))  # the session's lacks kernels of backends that are not installed
    return without(recorded, {*changed, *(no_kernel & read), *gone(recorded, declared)})


def _is_read(session: Session, operator: Operator, candidate: Candidate) -> bool:
    """Whether this build would have the candidate's kernel. It lacks Triton functions for other targets only."""
    plan = session.plan
    tried = candidate.target in plan.targets and candidate.backend in plan.toolchains
    return tried and candidate.kernel not in operator.left_out


def database_of(
    session: Session, operator: Operator, evidences: Sequence[Evidence], device: Device
) -> OperatorDatabase | None:
    """The database of an operator on a device, with all its targets. What races for several is kept once."""
    on_device = [e for e in evidences if session.device_for(e.target) == device]
    compiled = {e.candidate.id: e for evidence in on_device for e in evidence.variants.values() if e.object is not None}
    measurements: dict[tuple[str, str], Measurement] = {}
    for m in (m for evidence in on_device for m in evidence.made()):
        compiled_here = m.candidate in compiled and m.code == compiled[m.candidate].code
        if (compiled_here or is_baseline(m.candidate)) and m.device == device.digest and not m.spoiled:
            measurements.setdefault((m.candidate, m.problem.id), m)
    if not measurements:
        return None
    asked, policy = [e for e in on_device if not e.brief], session.policy(device.family)
    database = OperatorDatabase(
        operator=operator.name,
        contract=operator_digest(operator),
        device=msgspec.structs.replace(device, unit=""),
        policy=msgspec.to_builtins(policy),
        policy_digest=policy.digest,
        toolchains={name: dict(identity) for name, identity in session.plan.toolchains.items()},
        baselines=dict(baseline_versions(operator)),
        candidates=tuple(
            msgspec.structs.replace(CandidateRecord.of(v), sanitized=session.verdicts.get(v.code, {}))
            for v in compiled.values()
        ),
        problems=(),
        measurements=tuple(measurements.values()),
        survey=_surveyed(on_device, compiled),
        opening=" and ".join(dict.fromkeys(e.opening for e in asked)) if all(e.opening for e in asked) else "",
    )
    return canonical_database(database)


def _surveyed(evidences: Sequence[Evidence], compiled: Mapping[str, Variant]) -> tuple[SurveyedShape, ...]:
    """The shapes of all targets together."""
    shapes: dict[str, SurveyedShape] = {}
    for evidence in evidences:
        for name, problem in evidence.surveyed.problems.items():
            before = shapes[name].ns if name in shapes else {}
            ns = {c: t for c, t in evidence.surveyed.times[name].items() if c in compiled}
            shapes[name] = SurveyedShape(problem=problem, ns=before | ns)
    return tuple(shapes.values())


def _roots_of(folder: Path) -> list[str]:
    """Template folders of the build whose records a folder has; none if the folder does not tell."""
    try:
        return os.fsdecode((folder / _ROOTS).read_bytes()).splitlines()
    except OSError:
        return []


@dataclass(frozen=True)
class WrittenRecords:
    """The records that were written, by path, remarks on them, and what was wrong with other operators.

    `time` is when their build recorded, in seconds since the epoch. A build without a cache records nothing, so it is
    not the last one.
    """

    files: dict[Path, OperatorDatabase]
    notes: tuple[str, ...] = ()
    error: AotTuneError | None = None
    time: float = 0.0


def export_records(library: str, directory: Path) -> WrittenRecords:
    """Write the records of a library's last build below `directory`, a folder per device.

    If several projects have a library of that name, it is the library of the project that has `directory`, or else the
    working folder. Existing records of the same operator and device are merged: newer measurements win. If the two
    cannot be compared, the new ones replace all.

    Raises:
        DatabaseError: when nothing was recorded, when it is unclear whose records are meant, or when a file in
            `directory` is not a database.
    """
    location = cache_location(os.environ)
    root = location.root
    folder = _newest(root / "recorded", library, directory) if root is not None else None
    fresh = load_databases(folder) if folder is not None else []
    if folder is None or not fresh:
        others = {_library(f) for f in (root / "recorded").glob("*-*")} if root is not None else set()
        hint = f", which has those of {', '.join(sorted(others))}" if others else ""
        raise DatabaseError(
            f"no build of library {library!r} has recorded anything",
            why=f"looked in {root / 'recorded'}{hint}" if root is not None else "the cache is off",
            fix="build with AOT_TUNE_MODE=auto or tune and a writable cache, then record",
        )
    compact_store(location)
    notes = folder / _NOTES
    return WrittenRecords(
        files=write_records(directory, fresh, _operators(folder, {d.operator for d in fresh})),
        notes=tuple(notes.read_text("utf-8", "replace").splitlines()) if notes.is_file() else (),
        time=folder.stat().st_mtime,
    )


def write_records(
    directory: Path, fresh: Iterable[OperatorDatabase], operators: Mapping[str, Operator]
) -> dict[Path, OperatorDatabase]:
    """Write records below a folder, merged with existing ones of the same operator and device. Returns files by path.

    `operators` are those of the records, as their templates declare them. Existing candidates of kernels and
    configs that are gone are dropped.

    Raises:
        DatabaseError: when a file in `directory` is not a database, or one cannot be written.
    """
    records = {}
    for database in load_databases(directory):
        operator = operators.get(database.operator)
        records[_key(database)] = database if operator is None else without(database, gone(database, operator))
    merged = [update(records[_key(d)], d) if _key(d) in records else d for d in fresh]
    return {save_database(directory, d): d for d in merged}


def _operators(folder: Path, names: Collection[str]) -> dict[str, Operator]:
    """The current operators of the build whose records a folder has. Templates that are gone give none."""
    operators = {}
    for name in names:
        for root in map(Path, _roots_of(folder)):
            if name not in operators and (root / name / "operator.py").is_file():
                operators[name] = load_operator(root / name)
    return operators


def _newest(recorded: Path, library: str, directory: Path) -> Path | None:
    """The folder that the last build of a library with that name wrote: `<library>-<digest>`.

    If there is none, the folder of the last build without some backends: `<library>-without-<backend>-<digest>`.
    """
    folders = [(_library(f), f) for f in recorded.glob("*-*") if f.is_dir()]
    whole = [f for name, f in folders if name == library]
    less = [f for name, f in folders if name.startswith(f"{library}-without-")]
    of_project = _of_project(whole or less, directory, library)
    return max(of_project, key=lambda f: f.stat().st_mtime_ns, default=None)


def _of_project(folders: list[Path], directory: Path, library: str) -> list[Path]:
    """The folders of the project that has `directory`, or else the working folder; all if no project has it."""
    bases = (directory.resolve().parent, Path.cwd().resolve())
    inside = ([f for f in folders if any(Path(r).is_relative_to(b) for r in _roots_of(f))] for b in bases)
    own = next(filter(None, inside), folders)
    projects = {tuple(roots) for f in own if (roots := _roots_of(f)) and all(Path(r).is_dir() for r in roots)}
    if len(projects) > 1:
        raise DatabaseError(
            f"{len(projects)} projects have a library {library!r}",
            why="; ".join(sorted("templates in " + " and ".join(roots) for roots in projects)),
            fix="run the command in the project whose records you want, or name a folder inside it",
        )
    return own


def _library(folder: Path) -> str:
    return folder.name.rpartition("-")[0]


def _key(database: OperatorDatabase) -> tuple[str, str]:
    return database.operator, database.device.slug


def check_record_folder(folder: Path, devices: Sequence[Device], operators: Collection[str]) -> None:
    """Check that records of these operators on these devices can be written below a folder.

    Raises:
        DatabaseError: when it cannot be written to, is the folder of a single device, has records of these devices in a
            wrong place, or has records of other devices in their place.
    """
    if folder.exists() and not folder.is_dir():
        raise DatabaseError(f"{str(folder)!r} is not a folder", fix="name a folder for the records, such as tuning")
    direct = next(iter(sorted(folder.glob("*.jsonl"))), None)
    if direct is not None:
        device = load_database(direct).device
        raise DatabaseError(
            f"{str(folder)!r} is the folder of a single device, {device.name}",
            why=f"it holds {direct.name} itself; records are written into a folder for each device, here "
            f"{', '.join(d.slug for d in devices)}",
            fix=f"name the folder above it, {str(folder.resolve().parent)!r}",
        )
    ours = {d.digest: d for d in devices}
    for path in sorted(folder.rglob("*.jsonl")):
        database = load_database(path)
        expected = database_path(folder, database)
        if path == expected:
            continue
        if path.parent in {folder / d.slug for d in devices}:
            raise DatabaseError(
                f"{str(path)!r} is a record of another device, {database.device.name}",
                why=f"the folder is that of {path.parent.name}, the record of {database.device.slug}",
                fix=f"move it to {str(expected)!r}, or name another folder",
            )
        if database.device.digest in ours and database.operator in operators:
            raise DatabaseError(
                f"{str(path)!r} is a record of this device in another place than {str(expected)!r}",
                why="there would be two records of one operator and device, and neither would count",
                fix=f"move it to {str(expected)!r}, or name another folder",
            )
    for destination in (folder, *(folder / d.slug for d in devices)):
        existing = next(f for f in (destination, *destination.resolve().parents) if f.exists())
        if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
            raise DatabaseError(
                f"records cannot be written to {str(folder)!r}",
                why=f"{str(existing)!r} is not writable" if existing.is_dir() else f"{str(existing)!r} is not a folder",
                fix="name another folder, and copy the records to the project afterwards",
            )
