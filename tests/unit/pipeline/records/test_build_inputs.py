"""Inputs of builds: folders and modules by their contents, operators by value."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aot_tune.database.plain_values import UnlistedError, plain_value
from aot_tune.pipeline.records.build_inputs import module_digests
from aot_tune.spec import CompileOptions, Launcher
from aot_tune.spec.load_operators import bundled_templates, load_operator
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


def test_every_field_of_a_kernel_is_part_of_its_value() -> None:
    kernel = load_operator(bundled_templates() / "gemm").kernels[0]
    seen = {digest(plain_value(kernel))}
    others: dict[str, object] = {
        "name": "other", "template": "gemm/other.j2", "backend": "other", "parameters": (1,), "constraints": (1,),
        "requires": (1,), "worthwhile": (1,), "pins": {"X": ("M",)}, "generic": not kernel.generic, "order": ({},),
        "dtypes": {"T": ("f64",)}, "follows": {"f64": "f32"}, "compile_seconds": 99.0, "algorithms": len,
        "triton": "function", "listed": ({"X": 1},), "tile": {"N": 8}, "split": 2, "cluster": {"N": 2}, "occupancy": 2,
        "stages": ("a", "b"), "scratch": 1, "fills_in": not kernel.fills_in,
        "function": (Launcher("a.cu:f", ()),), "compile": CompileOptions(options=("-O1",)),
    }  # fmt: skip
    for field in dataclasses.fields(kernel):
        value = {f.name: getattr(kernel, f.name) for f in dataclasses.fields(kernel)} | {field.name: others[field.name]}
        changed = object.__new__(type(kernel))
        changed.__dict__.update(value)
        seen.add(digest(plain_value(changed)))
    assert len(seen) == 1 + len(others)


def made(default: object = 1, cell: object = 1) -> Callable[..., object]:
    return lambda given=default: (given, cell)


def made_otherwise(default: object = 1, cell: object = 1) -> Callable[..., object]:
    return lambda given=default: [given, cell]


SIZE = 1


def uses_a_global() -> int:
    return SIZE


def uses_a_function() -> int:
    return uses_a_global()


def test_functions_count_by_source_defaults_cells_and_globals(monkeypatch: Patch) -> None:
    kinds = [
        made(),
        made(2),
        made(1, 2),
        made(1, (1, 2.0, None)),
        made_otherwise(),
        functools.partial(made, 1),
        functools.partial(made, 2),
        len,
        uses_a_function,
    ]
    values = [digest(plain_value(k)) for k in kinds]
    assert len(set(values)) == len(values)
    assert digest(plain_value(made())) == values[0]
    monkeypatch.setitem(globals(), "SIZE", 2)
    assert digest(plain_value(uses_a_function)) != values[-1]


def test_values_of_a_kind_are_told_apart_where_json_would_not() -> None:
    values = [1, 1.0, True, "1", (1,), [1], {1: 1}, {"1": 1}, {1}, float("nan"), float("inf"), None, b"1", int, 1j]
    assert len({digest(plain_value(v)) for v in values}) == len(values)


@pytest.mark.parametrize("value", [object(), np.ones(3), [{1: (np.ones(1),)}], made(np.ones(2))])
def test_what_has_no_value_is_refused(value: object) -> None:
    with pytest.raises(UnlistedError):
        plain_value(value)


def test_what_never_ends_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(UnlistedError, match="without end"):
        plain_value(endless)
