"""Exports what the last build measured as a database to commit."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aot_tune.database import OperatorDatabase, load_databases, save_database, update, without
from aot_tune.pipeline.records.recorded_candidates import in_space
from aot_tune.spec import Operator
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.errors import DatabaseError
from aot_tune.support.storage import cache_location

__all__ = ["NOTES", "Exported", "export_records", "write_records"]

NOTES = "notes.txt"
"""Beside the records of a build: what is to be said of them, such as what a budget left no time for; a line each."""


ROOTS = "templates.txt"
"""Beside them: the folders of the build's templates, a line each."""


def roots_of(folder: Path) -> list[str]:
    """Where the templates of the build were whose records a folder has; none where it does not tell."""
    try:
        return (folder / ROOTS).read_text("utf-8").splitlines()
    except OSError:
        return []


@dataclass(frozen=True)
class Exported:
    """The files that were written, by path, what is to be said of the build that they are of, and when it recorded.

    That is in seconds since the epoch: a build whose cache is off records nothing, and the one before it is the last.
    """

    files: dict[Path, OperatorDatabase]
    notes: tuple[str, ...]
    time: float


def export_records(library: str, directory: Path) -> Exported:
    """Write the records of a library's last build below `directory`, a folder per device.

    Where several projects have a library of that name, it is that of the project that `directory`, or the working
    folder, is in. Records of the same operator and device that are there already are merged: newer measurements win,
    and replace all where the two cannot be compared.

    Raises:
        DatabaseError: when nothing was recorded, when it cannot be told whose records are meant, or when a file in
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
    """Write records below a folder, merged with those of the same operator and device there; what was written, by path.

    `operators` are those of the records as their templates declare them now: of what is there, candidates of kernels
    and configs that are gone go.

    Raises:
        DatabaseError: when a file in `directory` is not a database, or one cannot be written.
    """
    there = {_key(d): d for d in load_databases(directory)} if directory.is_dir() else {}
    there = {k: _of_space(d, operators.get(d.operator)) for k, d in there.items()}
    merged = [update(there[_key(d)], d) if _key(d) in there else d for d in fresh]
    return {save_database(directory, d): d for d in merged}


def _operators(folder: Path, names: Collection[str]) -> dict[str, Operator]:
    """The operators of the build whose records a folder has, as they are now; none of templates that are gone."""
    found = {}
    for name in names:
        for root in map(Path, roots_of(folder)):
            if name not in found and (root / name / "operator.py").is_file():
                found[name] = load_operator(root / name)
    return found


def _of_space(database: OperatorDatabase, operator: Operator | None) -> OperatorDatabase:
    """A record less the candidates of kernels and configs that its operator has no more."""
    if operator is None:
        return database
    kernels = {k.name for k in operator.kernels}
    gone = [
        c.id for c in database.candidates if c.candidate.kernel not in kernels or not in_space(operator, c.candidate)
    ]
    return without(database, gone)


def _newest(recorded: Path, library: str, directory: Path) -> Path | None:
    """The folder that the last build of a library of that name wrote: `<library>-<digest>`.

    Where there is none, that of the last build without some backends: `<library>-without-<backend>-<digest>`.
    """
    folders = [(_library(f), f) for f in recorded.glob("*-*") if f.is_dir()]
    whole = [f for name, f in folders if name == library]
    less = [f for name, f in folders if name.startswith(f"{library}-without-")]
    found = _of_project(whole or less, directory, library)
    return max(found, key=lambda f: f.stat().st_mtime_ns, default=None)


def _of_project(folders: list[Path], directory: Path, library: str) -> list[Path]:
    """The folders that are of the project which `directory`, or else the working folder, is in; all where none is."""
    bases = (directory.resolve().parent, Path.cwd().resolve())
    inside = ([f for f in folders if any(Path(r).is_relative_to(b) for r in roots_of(f))] for b in bases)
    own = next(filter(None, inside), folders)
    projects = {tuple(roots) for f in own if (roots := roots_of(f)) and all(Path(r).is_dir() for r in roots)}
    if len(projects) > 1:
        raise DatabaseError(
            f"{len(projects)} projects have a library {library!r}",
            why="; ".join(sorted("templates in " + " and ".join(roots) for roots in projects)),
            fix="run the command in the folder of the project whose records you want, or record into a folder in it",
        )
    return own


def _library(folder: Path) -> str:
    return folder.name.rpartition("-")[0]


def _key(database: OperatorDatabase) -> tuple[str, str]:
    return database.operator, database.device.slug
