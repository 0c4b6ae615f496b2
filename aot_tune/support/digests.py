"""Plain data: digests that do not depend on an order, and fields that two kinds of record share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec


def canonical(value: object) -> bytes:
    """Plain data as JSON that does not depend on the order of any mapping."""
    return msgspec.json.encode(value, order="deterministic")


def canonical_digest(value: object) -> str:
    """SHA-256 of the canonical JSON of plain data. It is the same for any order of keys, process and machine."""
    return hashlib.sha256(canonical(value)).hexdigest()


def digest_of_files(named: Iterable[tuple[str, Path | None]]) -> str:
    """Digest of files' names and contents in any order; a name may have no file. Raises OSError."""
    lines = [f"{n}\0{'' if p is None else hashlib.sha256(p.read_bytes()).hexdigest()}" for n, p in named]
    return hashlib.sha256("\n".join(sorted(lines)).encode(errors="surrogateescape")).hexdigest()


def shared_fields(record: object, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The values of a record's fields that another kind of record has too, by name."""
    return {name: getattr(record, name) for name in kind.__struct_fields__ if hasattr(record, name)}
