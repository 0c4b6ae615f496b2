"""Which modules are a project's own."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aot_tune.support.installed_paths import PACKAGE, is_installed, package_code, project_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def package(folder: Path, name: str) -> list[str]:
    (folder / name / "below").mkdir(parents=True)
    files = [folder / name / "__init__.py", folder / name / "below" / "__init__.py", folder / name / "below" / "one.py"]
    for file in files:
        file.write_text("")
    importlib.import_module(f"{name}.below.one")
    return [str(f) for f in files]


def own(folder: Path) -> list[str]:
    return [f for f in project_files() if f.startswith(str(folder))]


def test_what_lies_beside_a_project_is_its_own(folder: Path) -> None:
    files = package(folder, "aot_tune_test_own")
    (folder / "aot_tune_test_single.py").write_text("")
    importlib.import_module("aot_tune_test_single")
    assert own(folder) == [*files, str(folder / "aot_tune_test_single.py")]
    assert not is_installed("aot_tune_test_own.below")


@pytest.mark.parametrize("where", ["site-packages", "vendored"])
def test_what_an_installer_put_somewhere_is_installed(
    folder: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install --target` makes a folder of any name."""
    (folder / where / "anything-1.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(folder / where)
    package(folder / where, "aot_tune_test_installed")
    assert own(folder) == []
    assert is_installed("aot_tune_test_installed.below.one")


def test_all_code_of_the_package_counts_and_nothing_else_does() -> None:
    """A build folder that is there is built anew when any of it changes."""
    others = {p for p in PACKAGE.rglob("*") if p.is_file() and "__pycache__" not in p.parts} - set(package_code())
    parts = {p.relative_to(PACKAGE).parts for p in others}
    assert {p for p in parts if p[:2] not in (("cli", "project"), ("report", "page"))} == {("py.typed",)}
