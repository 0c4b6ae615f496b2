"""One entry of the object cache: a folder with the object, its record, and its key in plain text."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from aot_tune.compile.diagnostics import SOURCES
from aot_tune.compile.toolchain import CompileStatus
from aot_tune.support.digests import canonical
from aot_tune.support.storage import CorruptError, check_trust, read_own, seal, unseal, write_file

__all__ = [
    "KEY",
    "OBJECT",
    "RECORD",
    "SCHEMA",
    "Contents",
    "Stored",
    "check_entry",
    "copy_entry",
    "file_digest",
    "key_text",
    "read_checked",
    "read_entry",
    "write_entry",
]

SCHEMA = 3
OBJECT, RECORD, KEY = "object.o", "object.json", "key.json"


class Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `object.json` holds.

    `includes` maps the files that were read beside the source to their digests, and files that were looked for but
    missing to an empty digest. `timeout` is the limit in seconds that the run had.
    """

    status: CompileStatus
    digest: str
    device: str
    symbol: str
    source: str
    target: str
    error: str
    log: str
    seconds: float
    timeout: float
    resources: dict[str, int]
    includes: dict[str, str]


def key_text(parts: Mapping[str, object]) -> tuple[str, bytes]:
    """The key of an entry and its plain text. The order of any mapping in `parts` does not matter."""
    text = msgspec.json.format(canonical({"schema": SCHEMA, **parts}), indent=2) + b"\n"
    return hashlib.sha256(text).hexdigest(), text


class Contents(NamedTuple):
    """A whole entry: its record, its key in plain text, and the object, which is empty if there is none."""

    stored: Stored
    text: bytes
    object: bytes


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
    stored = unseal(read_checked(folder / RECORD, trusted, tier_of), Stored, SCHEMA)
    data = read_checked(folder / OBJECT, trusted, tier_of) if stored.status == "ok" else b""
    if stored.status == "ok" and hashlib.sha256(data).hexdigest() != stored.digest:
        raise CorruptError("its object is not the one that was stored")
    for name, digest in stored.includes.items():
        if file_digest(locate(name)) != digest:
            raise CorruptError(f"{name} has changed since")
    return Contents(stored, text, data)


def check_entry(folder: Path, key: str, trusted: bool, tier_of: int = -1) -> bytes:
    """Check that an entry is a folder, and that the key in it is `key`. Returns the key's text.

    Raises:
        FileNotFoundError, CorruptError, CacheError: as `read_entry`.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise CorruptError("it is not a folder")
    if not trusted:
        check_trust(status, folder, tier_of)
    text = read_checked(folder / KEY, trusted, tier_of)
    if hashlib.sha256(text).hexdigest() != key:
        raise CorruptError("its key is not its name")
    return text


def write_entry(folder: Path, stored: Stored, text: bytes) -> None:
    """Complete an entry in a temporary folder that holds the object, and write all of it to the disk."""
    write_file(folder / RECORD, seal(stored, SCHEMA))
    write_file(folder / KEY, text)
    keep = {RECORD, KEY, OBJECT} if stored.status == "ok" else {RECORD, KEY, *SOURCES}
    for entry in os.scandir(folder):
        if entry.name in keep:
            continue
        if entry.is_dir(follow_symlinks=False):  # left by a compiler that was killed
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()
    names = [OBJECT] if stored.status == "ok" else []
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
    write_file(folder / RECORD, seal(contents.stored, SCHEMA), durable=False)
    write_file(folder / KEY, contents.text, durable=False)
    if contents.stored.status == "ok":
        write_file(folder / OBJECT, contents.object, durable=False)


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
