"""Inputs of builds: folders and modules by their contents, operators by value."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot_tune.database.plain_values import UnlistedError, plain_value
from aot_tune.pipeline.records.build_inputs import module_digests
from aot_tune.support.digests import canonical_digest as digest
from aot_tune.support.folders import folder_digest

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("names", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_a_link_counts_by_the_folder_that_it_leads_to(tmp_path: Path, names: str) -> None:
    """Whether that folder is below the same root, before or behind the link, or not."""
    one, other, link = (tmp_path / name for name in names)
    for folder in (one, other):
        folder.mkdir()
        (folder / "file.h").write_text(folder.name)
    seen = {folder_digest(tmp_path)}
    for target in (one, other):
        link.symlink_to(target)
        seen.add(folder_digest(tmp_path))
        link.unlink()
    assert len(seen) == 3


def test_modules_are_found_by_their_names_without_being_imported(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "never_imported").mkdir()
    (tmp_path / "never_imported" / "__init__.py").write_text("raise SystemExit('imported')")
    inside = tmp_path / "never_imported" / "inside.py"
    inside.write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    names = ["never_imported", "never_imported.inside", "never_imported.absent", "nowhere.at_all"]
    before = module_digests(names)
    assert [bool(before[n]) for n in names] == [True, True, False, False]
    inside.write_text("another")
    after = module_digests(names)
    assert [n for n in names if after[n] != before[n]] == ["never_imported.inside"]


def test_values_of_a_kind_are_told_apart_where_json_would_not() -> None:
    values = [1, 1.0, True, "1", (1,), [1], {1: 1}, {"1": 1}, {1}, float("nan"), float("inf"), None, b"1", int, 1j]
    assert len({digest(plain_value(v)) for v in values}) == len(values)


def test_what_never_ends_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(UnlistedError, match="without end"):
        plain_value(endless)
