"""Records as files, one per operator and device below a folder: read strictly, and each written in one step."""

from __future__ import annotations

from pathlib import Path

from aot_tune.database.format import database_of_store, decode, encode, is_store
from aot_tune.database.record_lines import COUNTED, OLDEST_KNOWN, READ, schema_of
from aot_tune.database.records import OperatorDatabase
from aot_tune.support.errors import DatabaseError, Mistakes
from aot_tune.support.storage import replace_file, sweep_temporaries

_TEMPORARY = ".aot_tune~"  # git ignores it


def database_path(folder: Path, database: OperatorDatabase) -> Path:
    """Where a database is below a folder of databases: `<device>/<operator>.jsonl`."""
    return folder / database.device.slug / f"{database.operator}.jsonl"


def save_database(folder: Path, database: OperatorDatabase) -> Path:
    """Write a database below a folder in one step; returns its path. Raises DatabaseError."""
    path = database_path(folder, database)
    save_text(path, encode(database))
    return path


def save_text(path: Path, text: bytes) -> None:
    """Write the text of a database in one step. Raises DatabaseError when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep_temporaries(path.parent, _TEMPORARY)
        replace_file(path, text, path.parent, durable=True, prefix=_TEMPORARY)
        path.chmod(0o644)
    except OSError as error:
        raise DatabaseError(
            f"cannot write {path} ({len(text)} bytes): {error.strerror}", fix="free disk space, or name another folder"
        ) from error


def load_database(path: Path, *, oldest: int = READ, stores: bool = False) -> OperatorDatabase:
    """Read a database of schema `oldest` or a later one. With `stores`, it may be the text of a store.

    Raises:
        DatabaseError: with the file and line, for anything that is not a whole database of such a schema.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise DatabaseError(f"cannot read {path}: {error.strerror}") from error
    if stores and is_store(text):
        return database_of_store(text, str(path))
    return decode(text, str(path), oldest=oldest)


def load_databases(folder: Path) -> list[OperatorDatabase]:
    """All databases below a folder by path, none without a folder. Raises DatabaseError, also for duplicates."""
    paths: dict[tuple[str, str], Path] = {}
    databases = []
    for path in _files(folder):
        databases.append(load_database(path))
        _check_alone(path, databases[-1], paths)
    return databases


RecordTree = dict[Path, OperatorDatabase]
"""Records by the path that they were read from."""


def load_tree(path: Path, *, older: bool = False, stores: bool = False) -> RecordTree:
    """The records below a folder, or of one file. With `older`, also those of schemas that builds no longer read.

    With `stores`, the file may be a text of a store.

    Raises:
        DatabaseError: if there are none, one cannot be read or has a wrong name, two are of one operator and device, or
            two devices share a folder. Everything is reported at once.
    """
    if path.is_dir():
        files, stores = _files(path), False
        if not files:
            raise DatabaseError(
                f"{path} holds no records", fix="name a folder that `aot-tune records export` wrote, such as tuning"
            )
    elif path.exists():
        files = [path]
    else:
        raise DatabaseError(f"there is no {path}", fix="name a folder of records, or one of its files")
    mistakes, tree = Mistakes(), RecordTree()
    for file in files:
        with mistakes.gather():
            tree[file] = load_database(file, oldest=OLDEST_KNOWN if older else READ, stores=stores)
    mistakes.tell()
    if path.is_dir():
        _check_places(tree)
    return tree


def without_digests(tree: RecordTree) -> list[Path]:
    """The files of a tree whose schema has no digests."""
    paths = []
    for path in tree:
        with path.open("rb") as file:
            if schema_of(file.readline(), str(path), OLDEST_KNOWN) <= COUNTED:
                paths.append(path)
    return paths


def save_tree(tree: RecordTree) -> list[Path]:
    """Write records to their paths, once all have their text. Returns those that changed. Raises DatabaseError."""
    texts = {path: encode(database) for path, database in tree.items()}
    changed = [path for path, text in texts.items() if not path.is_file() or path.read_bytes() != text]
    for path in changed:
        save_text(path, texts[path])
    return changed


def _files(folder: Path) -> list[Path]:
    return sorted((p for p in folder.rglob("*.jsonl") if not p.is_dir()), key=lambda p: p.as_posix())


def _check_places(tree: RecordTree) -> None:
    mistakes = Mistakes()
    devices: dict[Path, tuple[Path, str]] = {}
    paths: dict[tuple[str, str], Path] = {}
    for path, database in tree.items():
        with mistakes.gather():
            if path.stem != database.operator:
                raise DatabaseError(
                    f"{path}:1: it is a record of operator {database.operator!r}",
                    why="a record has the name of its operator",
                    fix=f"rename it to {database.operator}.jsonl, or restore the file",
                )
        with mistakes.gather():
            first, digest = devices.setdefault(path.parent, (path, database.device.digest))
            if digest != database.device.digest:
                raise DatabaseError(
                    f"{path}:2: it is of {database.device.name} ({database.device.slug}), but {first.name} is not",
                    why="a folder holds the records of one device",
                    fix=f"move it to a folder {database.device.slug}",
                )
        with mistakes.gather():
            _check_alone(path, database, paths)
    mistakes.tell()


def _check_alone(path: Path, database: OperatorDatabase, paths: dict[tuple[str, str], Path]) -> None:
    other = paths.setdefault((database.operator, database.device.digest), path)
    if other != path:
        raise DatabaseError(
            f"{path} and {other} hold the same operator and device",
            fix="merge them with `aot-tune records merge`, or remove one",
        )
