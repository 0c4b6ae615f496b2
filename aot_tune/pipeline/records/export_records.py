"""Writes records to commit: exports the measurements of the last build, and checks the folder that they go to."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.database import (
    OperatorDatabase,
    database_path,
    load_database,
    load_databases,
    save_database,
    update,
    without,
)
from aot_tune.database.checks import in_space
from aot_tune.spec import Operator
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.errors import DatabaseError
from aot_tune.support.storage import cache_location

__all__ = ["NOTES", "Exported", "check_record_folder", "export_records", "write_records"]


NOTES = "notes.txt"
"""File beside a build's records: remarks on the build, such as what lacked time; a line each."""


ROOTS = "templates.txt"
"""File beside them: the folders of the build's templates, a line each."""


def roots_of(folder: Path) -> list[str]:
    """Template folders of the build whose records a folder has; none if the folder does not tell."""
    try:
        return (folder / ROOTS).read_text("utf-8").splitlines()
    except OSError:
        return []


@dataclass(frozen=True)
class Exported:
    """The files that were written, by path, remarks on their build, and when it recorded.

    The time is in seconds since the epoch. A build without a cache records nothing, so it is not the last one.
    """

    files: dict[Path, OperatorDatabase]
    notes: tuple[str, ...]
    time: float


def export_records(library: str, directory: Path) -> Exported:
    """Write the records of a library's last build below `directory`, a folder per device.

    If several projects have a library of that name, it is the library of the project that has `directory`, or else the
    working folder. Existing records of the same operator and device are merged: newer measurements win. If the two
    cannot be compared, the new ones replace all.

    Raises:
        DatabaseError: when nothing was recorded, when it is unclear whose records are meant, or when a file in
            `directory` is not a database.
    """
    root = cache_location(os.environ).root
    folder = _newest(root / "recorded", library, directory) if root is not None else None
    fresh = load_databases(folder) if folder is not None else []
    if folder is None or not fresh:
        others = {_library(f) for f in (root / "recorded").glob("*-*")} if root is not None else set()
        found = f", which has those of {', '.join(sorted(others))}" if others else ""
        raise DatabaseError(
            f"no build of library {library!r} has recorded anything",
            why=f"looked in {root / 'recorded'}{found}" if root is not None else "the cache is off",
            fix="build with AOT_TUNE_MODE=auto or tune and a writable cache, then record",
        )
    notes = folder / NOTES
    return Exported(
        files=write_records(directory, fresh, _operators(folder, {d.operator for d in fresh})),
        notes=tuple(notes.read_text("utf-8").splitlines()) if notes.is_file() else (),
        time=folder.stat().st_mtime,
    )


def write_records(
    directory: Path, fresh: Iterable[OperatorDatabase], operators: Mapping[str, Operator]
) -> dict[Path, OperatorDatabase]:
    """Write records below a folder, merged with existing ones of the same operator and device. Returns files by path.

    `operators` are those of the records, as their templates declare them now. Existing candidates of kernels and
    configs that are gone are dropped.

    Raises:
        DatabaseError: when a file in `directory` is not a database, or one cannot be written.
    """
    there = {_key(d): d for d in load_databases(directory)} if directory.is_dir() else {}
    there = {k: _of_space(d, operators.get(d.operator)) for k, d in there.items()}
    merged = [update(there[_key(d)], d) if _key(d) in there else d for d in fresh]
    return {save_database(directory, d): d for d in merged}


def _operators(folder: Path, names: Collection[str]) -> dict[str, Operator]:
    """The current operators of the build whose records a folder has. Templates that are gone give none."""
    found = {}
    for name in names:
        for root in map(Path, roots_of(folder)):
            if name not in found and (root / name / "operator.py").is_file():
                found[name] = load_operator(root / name)
    return found


def _of_space(database: OperatorDatabase, operator: Operator | None) -> OperatorDatabase:
    """A record without the candidates of kernels and configs that its operator no longer has."""
    if operator is None:
        return database
    kernels = {k.name for k in operator.kernels}
    gone = [
        c.id for c in database.candidates if c.candidate.kernel not in kernels or not in_space(operator, c.candidate)
    ]
    return without(database, gone)


def _newest(recorded: Path, library: str, directory: Path) -> Path | None:
    """The folder that the last build of a library with that name wrote: `<library>-<digest>`.

    If there is none, the folder of the last build without some backends: `<library>-without-<backend>-<digest>`.
    """
    folders = [(_library(f), f) for f in recorded.glob("*-*") if f.is_dir()]
    whole = [f for name, f in folders if name == library]
    less = [f for name, f in folders if name.startswith(f"{library}-without-")]
    found = _of_project(whole or less, directory, library)
    return max(found, key=lambda f: f.stat().st_mtime_ns, default=None)


def _of_project(folders: list[Path], directory: Path, library: str) -> list[Path]:
    """The folders of the project that has `directory`, or else the working folder; all if no project has it."""
    bases = (directory.resolve().parent, Path.cwd().resolve())
    inside = ([f for f in folders if any(Path(r).is_relative_to(b) for r in roots_of(f))] for b in bases)
    own = next(filter(None, inside), folders)
    projects = {tuple(roots) for f in own if (roots := roots_of(f)) and all(Path(r).is_dir() for r in roots)}
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
        place = database_path(folder, database)
        if path == place:
            continue
        if path.parent in {folder / d.slug for d in devices}:
            raise DatabaseError(
                f"{str(path)!r} is a record of another device, {database.device.name}",
                why=f"the folder is that of {path.parent.name}, the record of {database.device.slug}",
                fix=f"move it to {str(place)!r}, or name another folder",
            )
        if database.device.digest in ours and database.operator in operators:
            raise DatabaseError(
                f"{str(path)!r} is a record of this device in another place than {str(place)!r}",
                why="there would be two records of one operator and device, and neither would count",
                fix=f"move it to {str(place)!r}, or name another folder",
            )
    for one in (folder, *(folder / d.slug for d in devices)):
        there = next(f for f in (one, *one.resolve().parents) if f.exists())
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            raise DatabaseError(
                f"records cannot be written to {str(folder)!r}",
                why=f"{str(there)!r} is not writable" if there.is_dir() else f"{str(there)!r} is not a folder",
                fix="name another folder with --out, and copy the records to the project afterwards",
            )
