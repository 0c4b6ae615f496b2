"""Folders of records: what is not one is told, each mistake by its own words, and nothing is written then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from databases import DEVICE, a_database

from aot_tune.database import OperatorDatabase, save_database
from aot_tune.database.files import load_tree
from aot_tune.support.errors import DatabaseError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two records."""
    save_database(tmp_path / "tuning", a_database())
    save_database(tmp_path / "tuning", of("softmax"))
    return tmp_path / "tuning"


def of(operator: str, device: str = "test-cpu") -> OperatorDatabase:
    """An empty record."""
    identity = {"name": device}
    given = DEVICE if device == "test-cpu" else msgspec.structs.replace(DEVICE, slug=device, identity=identity)
    return msgspec.structs.replace(
        a_database(), operator=operator, device=given, candidates=(), measurements=(), problems=()
    )


def conflict(path: Path) -> None:
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(first + b"\n<<<<<<< ours\n" + rest)


MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "another schema": (
        lambda path: path.write_bytes(path.read_bytes().replace(b'"schema":6', b'"schema":2')),
        r"gemm\.jsonl:1: it is of format 'aot_tune database', schema 2",
    ),
    "half a record": (
        lambda path: path.write_bytes(path.read_bytes()[:2000]),
        r"gemm\.jsonl:\d+: the last line is cut off",
    ),
    "half a record at the end of a line": (
        lambda path: path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:12])),
        r"gemm\.jsonl:12: its end is missing",
    ),
    "a conflict": (conflict, r"gemm\.jsonl:2: two versions of it were merged, and the conflict stands"),
    "no record": (lambda path: path.write_text("hello\n"), r"gemm\.jsonl:1: this is not a database"),
    "another operator": (
        lambda path: path.rename(path.with_name("rms_norm.jsonl")),
        r"rms_norm\.jsonl:1: it is a record of operator 'gemm'\n  why: a record has the name",
    ),
    "two devices": (
        lambda path: save_database(path.parent.parent, of("gemm", "zz")).rename(path.with_name("x.jsonl")),
        r"x\.jsonl:2: it is of Test CPU \(zz\), but gemm\.jsonl is not\n  why: a folder holds",
    ),
    "the same twice": (
        lambda path: save_database(path.parent.parent / "copy", a_database()),
        r"gemm\.jsonl and .*gemm\.jsonl hold the same operator and device\n  fix: merge them with",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_has_its_own_words(folder: Path, name: str) -> None:
    spoil, words = MISTAKES[name]
    spoil(folder / "test-cpu" / "gemm.jsonl")
    with pytest.raises(DatabaseError, match=words):
        load_tree(folder)
