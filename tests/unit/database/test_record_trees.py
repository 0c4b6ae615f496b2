"""Folders of records: what is not one is told, each mistake by its own words, and nothing is written then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from databases import DEVICE, a_database, older_text

from aot_tune.database import OperatorDatabase, encode, load_database, load_databases, save_database
from aot_tune.database.record_trees import load_tree, save_tree
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


def test_a_folder_and_a_file(folder: Path) -> None:
    tree = load_tree(folder)
    assert [path.name for path in tree] == ["gemm.jsonl", "softmax.jsonl"]
    assert list(load_tree(folder / "test-cpu" / "gemm.jsonl").values()) == [tree[folder / "test-cpu" / "gemm.jsonl"]]
    save_database(folder, of("gemm", "another"))
    assert len(load_tree(folder)) == 3


def conflict(path: Path) -> None:
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(first + b"\n<<<<<<< ours\n" + rest)


MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "another schema": (
        lambda path: path.write_bytes(path.read_bytes().replace(b'"schema":5', b'"schema":2')),
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


def test_all_mistakes_are_told_at_once(folder: Path) -> None:
    for path in (folder / "test-cpu").iterdir():
        path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DatabaseError, match="2 mistakes") as caught:
        load_tree(folder)
    assert "gemm.jsonl" in str(caught.value)
    assert "softmax.jsonl" in str(caught.value)


def test_no_folder_and_no_records(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match=r"there is no .*tuning\n"):
        load_tree(tmp_path / "tuning")
    with pytest.raises(DatabaseError, match="holds no records"):
        load_tree(tmp_path)


def test_older_records_are_read_where_that_is_asked_for(folder: Path) -> None:
    path = folder / "test-cpu" / "gemm.jsonl"
    before = load_database(path)
    path.write_bytes(older_text(before, 3))
    with pytest.raises(DatabaseError, match="schema 3") as caught:
        load_databases(folder)
    assert "`aot-tune records upgrade`" in caught.value.fix
    tree = load_tree(folder, older=True)
    assert save_tree(tree) == [path]
    assert path.read_bytes() == encode(before)
    assert save_tree(tree) == []


def test_nothing_is_written_where_one_cannot_be(folder: Path) -> None:
    tree = load_tree(folder)
    gemm, softmax = tree
    bad = msgspec.structs.replace(tree[softmax], measurements=tree[gemm].measurements)
    before = gemm.read_bytes()
    changed = msgspec.structs.replace(tree[gemm], baselines={})
    with pytest.raises(DatabaseError, match="there is no such candidate"):
        save_tree({gemm: changed, softmax: bad})
    assert gemm.read_bytes() == before
