"""Databases as files: one per operator and device below a folder. Each is written in one step."""

from __future__ import annotations

from pathlib import Path

from aot_tune.database.database_records import OperatorDatabase
from aot_tune.database.format import decode, encode
from aot_tune.database.record_lines import READ
from aot_tune.support.errors import DatabaseError
from aot_tune.support.storage import replace_file, sweep_temporaries

__all__ = ["database_path", "load_database", "load_databases", "save_database", "save_text"]


_TEMPORARY = ".aot_tune~"  # git ignores it


def database_path(folder: Path, database: OperatorDatabase) -> Path:
    """Where a database is below a folder of databases: `<device>/<operator>.jsonl`."""
    return folder / database.device.slug / f"{database.operator}.jsonl"


def save_database(folder: Path, database: OperatorDatabase) -> Path:
    """Write a database below a folder in one step; returns its path.

    Raises:
        DatabaseError: when the database contradicts itself or cannot be written.
    """
    path = database_path(folder, database)
    save_text(path, encode(database))
    return path


def save_text(path: Path, text: bytes) -> None:
    """Write the text of a database in one step.

    Raises:
        DatabaseError: when it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep_temporaries(path.parent, _TEMPORARY)
        replace_file(path, text, path.parent, durable=True, prefix=_TEMPORARY)
        path.chmod(0o644)
    except OSError as error:
        raise DatabaseError(
            f"cannot write {path} ({len(text)} bytes): {error.strerror}", fix="free disk space, or name another folder"
        ) from error


def load_database(path: Path, *, oldest: int = READ) -> OperatorDatabase:
    """Read a database of schema `oldest` or a later one.

    Raises:
        DatabaseError: with the file and line, for anything that is not a whole database of such a schema.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise DatabaseError(f"cannot read {path}: {error.strerror}") from error
    return decode(text, str(path), oldest=oldest)


def load_databases(folder: Path) -> list[OperatorDatabase]:
    """All databases below a folder, in the order of their paths. Empty if there is no such folder.

    Raises:
        DatabaseError: when one cannot be read, or two are of the same operator and device.
    """
    found: dict[tuple[str, str], Path] = {}
    databases = []
    for path in sorted(folder.rglob("*.jsonl"), key=lambda p: p.as_posix()):
        database = load_database(path)
        at = (database.operator, database.device.digest)
        if at in found:
            raise DatabaseError(
                f"{path} and {found[at]} hold the same operator and device", fix="merge them, or remove one"
            )
        found[at] = path
        databases.append(database)
    return databases
