"""A build of the inputs of an earlier one takes its files; whatever changes, by however little, is built anew."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from project import Project

TAKEN = "all inputs are those of the build of "
OWN = {"tuned", "plan.json", "paths.json", "plan.cmake", "clock.json", "headers.d"}
"""Files in the folder of a build that are not what it makes."""


@pytest.fixture(scope="module")
def first(forks: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Built once from a record, with a header that a candidate includes and a module that the operator imports."""
    made = Project.make(tmp_path_factory.mktemp("repeat") / "project")
    made.runs = forks
    made.env["PYTHONPATH"] += f":{made.folder / 'lib'}"
    (made.folder / "lib").mkdir()
    (made.folder / "lib" / "sizes_elsewhere.py").write_text("SIZE = 20000\n")
    (made.folder / "factor.h").write_text("#define FACTOR 1\n")
    made.change("from aot_tune.spec", "from sizes_elsewhere import SIZE\nfrom aot_tune.spec")
    made.change("problem(N=20000), problem(N=60000)", "problem(N=SIZE),")
    made.change("(1, 4, 16, 64, 256)", "(1, 16)")
    made.change("{{ prelude() }}", f'{{{{ prelude() }}}}\n#include "{made.folder / "factor.h"}"', "loop.cpp.j2")
    made.configure()
    made.build()
    made.record()
    shutil.rmtree(made.folder / "cache")
    configure(made)
    said = made.build()
    assert " 0 measurements made" in said  # the record has them
    assert TAKEN not in said
    return made


def configure(project: Project, build: str = "build", **given: str) -> None:
    project.configure("--database", project.folder / "tuning", build=build, **given)


@pytest.fixture
def project(first: Project, tmp_path: Path) -> Project:
    """The same project, in a folder of its own: nothing of the first one's is touched, but for what candidates see."""
    made = replace(first, folder=tmp_path / "project", env=dict(first.env))
    shutil.copytree(first.folder, made.folder)
    shutil.rmtree(made.folder / "build")
    made.env["AOT_TUNE_CACHE_DIR"] = str(made.folder / "cache")
    made.env["PYTHONPATH"] = first.env["PYTHONPATH"].replace(str(first.folder), str(made.folder))
    made.compiler.clear()
    return made


def built(project: Project, **given: str) -> str:
    configure(project, **given)
    return project.build(**given)


def made_files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name not in OWN}


def test_the_same_inputs_give_the_same_files_at_once(first: Project, project: Project) -> None:
    """In another folder, from a cache that was copied to another place."""
    assert re.search(rf"{TAKEN}\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d, .* 0 measurements made", built(project))
    assert made_files(project.folder / "build") == made_files(first.folder / "build")
    assert project.compiler.candidates() == 0
    before = {p.name: p.stat().st_mtime_ns for p in (project.folder / "build").iterdir() if p.name not in OWN}
    assert TAKEN in project.build()  # files that are there already keep their time
    assert {n: (project.folder / "build" / n).stat().st_mtime_ns for n in before} == before
    project.record("again")
    assert list((project.folder / "again").rglob("twice.jsonl"))


def change(project: Project, path: str, old: str, new: str) -> None:
    file = project.folder / path
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_any_change_is_built_anew(first: Project, project: Project) -> None:
    """A byte of a template, a problem, a text beside the record; and then what was built now is taken."""
    (project.folder / "tuning" / "NOTES.md").write_text("the notes")
    for path, old, new in (
        ("templates/twice/loop.cpp.j2", "return 0;", "volatile int none = 0; return none;"),
        ("lib/sizes_elsewhere.py", "20000", "20001"),
        ("tuning/NOTES.md", "the", "The"),
    ):
        change(project, path, old, new)
        said = built(project)
        assert TAKEN not in said
        assert re.search(r": \d+ measurements made, \d+ known from before", said)
        assert project.winners() != first.winners()  # the code of the template has changed
    assert project.compiler.candidates() > 0
    assert TAKEN in built(project)


def test_a_header_that_a_candidate_includes(first: Project, project: Project) -> None:
    header = first.folder / "factor.h"
    before = header.read_text()
    try:
        header.write_text("#define FACTOR 2\n")
        said = built(project)
    finally:
        header.write_text(before)
    assert f"{header} changed since the build of" in said
    assert TAKEN not in said
    assert project.compiler.candidates() > 0


def test_measurements_of_the_cache(project: Project) -> None:
    """Without a record they decide: a cache that lost them, and builds that ask for new ones."""
    shutil.rmtree(project.folder / "tuning")
    (project.folder / "tuning").mkdir()
    assert " 0 measurements made" not in built(project)
    assert TAKEN in built(project)
    project.compiler.clear()
    for path in (project.folder / "cache" / "measurements").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    said = built(project)
    assert "measurements in the cache changed since the build of" in said
    assert " 0 measurements made" not in said
    assert project.compiler.candidates() == 0

    said = built(project, AOT_TUNE_MODE="tune")
    assert TAKEN not in said
    assert " 0 measurements made" not in said
    assert TAKEN in built(project)  # of the build that measured anew, or nothing in the cache has changed


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a bit of an archive": lambda f: flip(f / "files" / "variants.a"),
    "a bit of the record": lambda f: flip(f / "build.json"),
    "a link": lambda f: (f / "files" / "tiny.h").rename(f / "h") and (f / "files" / "tiny.h").symlink_to(f / "h"),
    "a file that others may write": lambda f: (f / "files" / "dispatch.cpp").chmod(0o666),
}


def test_damage_costs_an_ordinary_build(first: Project, project: Project) -> None:
    for damage in DAMAGE.values():
        (folder,) = (project.folder / "cache" / "builds").iterdir()
        damage(folder)
        said = built(project)
        assert f"kept build {folder} is not used: " in said
        assert TAKEN not in said
        assert made_files(project.folder / "build") == made_files(first.folder / "build")
    assert TAKEN in built(project)  # it was mended


def test_a_crash_that_is_tried_again_keeps_nothing(project: Project) -> None:
    """A candidate that was killed from outside may work the next time."""
    project.change("{{ prelude() }}", "{{ prelude() }}\n#include <csignal>", "loop.cpp.j2")
    project.change("for (int t = 0;", "if ({{ TIMES }} == 16) raise(SIGKILL);\n  for (int t = 0;", "loop.cpp.j2")
    for _ in range(2):
        said = built(project)
        assert TAKEN not in said
        assert re.search(
            r"an unchanged build will do some of the work again: \d+ measurements will be made again", said
        )


def test_through_cmake_until_a_module_of_the_project_changes(project: Project) -> None:
    """One that lies outside the folder of the operators, of which CMake knows by what the configure imported."""
    change(project, "CMakeLists.txt", "TEMPLATES templates", "TEMPLATES templates DATABASE tuning")
    project.cmake()
    project.make_all()
    for made in ("libtiny.so.1", "aot_tune/tiny/tuned"):
        (project.folder / "cmake" / made).unlink()
    said = project.make_all()
    assert TAKEN in said
    assert "libtiny.so.1: its variants were verified before on this machine" in said
    assert "no work to do" in project.make_all()
    change(project, "lib/sizes_elsewhere.py", "20000", "20000  # as before")
    said = project.make_all()
    assert "Re-running CMake" in said
    assert " 0 measurements made" in said
    assert TAKEN not in said
    assert "no work to do" in project.make_all()
