"""One entry of the object cache: a folder with the object, its record, and its key in plain text."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from aot_tune.compile.diagnostics import SOURCES
from aot_tune.compile.toolchain import Object
from aot_tune.support.digests import canonical
from aot_tune.support.storage import CorruptError, check_trust, read_own, remove_tree, seal, unseal, write_file

SCHEMA = 3
OBJECT, RECORD, KEY = "object.o", "object.json", "key.json"


_ELSEWHERE = ("key", "path", "cached", "lasting")
"""What a record does not hold of an object: its folder tells it, and only what is lasting is kept."""


def key_text(parts: Mapping[str, object]) -> tuple[str, bytes]:
    """The key of an entry and its plain text. The order of any mapping in `parts` does not matter."""
    text = msgspec.json.format(canonical({"schema": SCHEMA, **parts}), indent=2) + b"\n"
    return hashlib.sha256(text).hexdigest(), text


class Contents(NamedTuple):
    """A whole entry: its record, its key in plain text, and the object file, which is empty if there is none."""

    made: Object
    text: bytes
    data: bytes


def read_entry(
    folder: Path, key: str, *, trusted: bool, locate: Callable[[str], str] = str, tier_of: int = -1
) -> Contents:
    """Read an entry and check all of it: the key's text, the record's seal, the object's digest, the included files.

    Args:
        locate: tells where an included file is now.
        tier_of: the owner of the tier that the entry is in, if it is in one.

    Raises:
        FileNotFoundError: when there is no such entry.
        CorruptError: when it is damaged, or when a file that the source includes has changed.
        OtherSchemaError: when another version wrote it.
        CacheError: when others own it or can write to it, and it is not `trusted`.
    """
    text = check_entry(folder, key, trusted, tier_of)
    compiled = unseal(read_checked(folder / RECORD, trusted, tier_of), Object, SCHEMA)
    data = read_checked(folder / OBJECT, trusted, tier_of) if compiled.status == "ok" else b""
    if compiled.status == "ok" and hashlib.sha256(data).hexdigest() != compiled.digest:
        raise CorruptError("its object is not the one that was stored")
    for name, digest in compiled.includes.items():
        if file_digest(locate(name)) != digest:
            raise CorruptError(f"{name} has changed since")
    return Contents(compiled, text, data)


def check_entry(folder: Path, key: str, trusted: bool, tier_of: int = -1) -> bytes:
    """The text of an entry's key, if the entry is a folder and its key is `key`. Raises as `read_entry`."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise CorruptError("it is not a folder")
    if not trusted:
        check_trust(status, folder, tier_of)
    text = read_checked(folder / KEY, trusted, tier_of)
    if hashlib.sha256(text).hexdigest() != key:
        raise CorruptError("its key is not its name")
    return text


def _record(compiled: Object) -> dict[str, object]:
    return {name: getattr(compiled, name) for name in compiled.__struct_fields__ if name not in _ELSEWHERE}


def write_entry(folder: Path, compiled: Object, text: bytes) -> None:
    """Complete an entry in a temporary folder that holds the object, and write all of it to the disk."""
    write_file(folder / RECORD, seal(_record(compiled), SCHEMA))
    write_file(folder / KEY, text)
    keep = {RECORD, KEY, OBJECT} if compiled.status == "ok" else {RECORD, KEY, *SOURCES}
    for entry in os.scandir(folder):
        if entry.name in keep:
            continue
        if entry.is_dir(follow_symlinks=False):  # left by a compiler that was killed
            remove_tree(Path(entry.path))
        else:
            Path(entry.path).unlink()
    names = [OBJECT] if compiled.status == "ok" else []
    for name in (*names, "."):
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if name == OBJECT:
                os.fchmod(descriptor, 0o600)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def copy_entry(folder: Path, contents: Contents) -> None:
    """Write an entry of a tier into a folder. If a power cut spoils it, its checksums show that."""
    write_file(folder / RECORD, seal(_record(contents.made), SCHEMA), durable=False)
    write_file(folder / KEY, contents.text, durable=False)
    if contents.made.status == "ok":
        write_file(folder / OBJECT, contents.data, durable=False)


@cache
def file_digest(path: str) -> str:
    """SHA-256 of a file at the time when this process first asks. Empty when it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def read_checked(path: Path, trusted: bool, tier_of: int = -1) -> bytes:
    """What a file of an entry holds. `tier_of` is as for `read_entry`.

    Raises:
        CorruptError: when it is no plain file, or cannot be read.
        CacheError: when others own it or can write to it, and it is not `trusted`.
    """
    try:
        return read_own(path, trusted=trusted, tier_of=tier_of)
    except FileNotFoundError:
        raise CorruptError(f"it has no {path.name}") from None
    except OSError as error:
        raise CorruptError(f"its {path.name} cannot be read: {error.strerror}") from error
