"""A build of the inputs of an earlier one compiles and measures nothing; what changes, by however little, is anew."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from project import Project

NOTHING = " 0 measurements made"
OWN = {"tuned", "used_by", "used_by.lock", "plan.json", "paths.json", "plan.cmake", "clock.json", "headers.d"}
OWN |= {"build.jsonl"}
"""Files in the folder of a build that are not what it makes."""
COMPILED = {"dispatch.cpp", "module.cpp", "variants.a", "exports.map", "module.map"}


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
    assert NOTHING in said  # the record has them
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


def test_the_same_inputs_give_the_same_files(first: Project, project: Project) -> None:
    """In another folder, from a cache that was copied to another place."""
    assert NOTHING in built(project)
    assert made_files(project.folder / "build") == made_files(first.folder / "build")
    assert project.compiler.candidates() == 0
    before = {p.name: p.stat().st_mtime_ns for p in (project.folder / "build").iterdir() if p.name in COMPILED}
    assert len(before) > 2
    project.build()  # files that are there already keep their time: nothing is compiled or linked for them
    assert {n: (project.folder / "build" / n).stat().st_mtime_ns for n in before} == before
    project.record("again")
    assert list((project.folder / "again").rglob("twice.jsonl"))


def change(project: Project, path: str, old: str, new: str) -> None:
    file = project.folder / path
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_what_changes_is_built_anew(first: Project, project: Project) -> None:
    """A statement of a template, a size that a module says."""
    for path, old, new in (
        ("templates/twice/loop.cpp.j2", "return 0;", "volatile int none = 0; return none;"),
        ("lib/sizes_elsewhere.py", "20000", "20001"),
    ):
        change(project, path, old, new)
        assert re.search(r": [1-9]\d* measurements made, \d+ known from before", built(project))
    assert project.winners() != first.winners()  # the code of the template has changed
    assert project.compiler.candidates() > 0
    project.compiler.clear()
    assert NOTHING in built(project)
    assert project.compiler.candidates() == 0


def test_a_header_that_a_candidate_includes(first: Project, project: Project) -> None:
    header = first.folder / "factor.h"
    before = header.read_text()
    try:
        header.write_text("#define FACTOR 2\n")
        built(project)
    finally:
        header.write_text(before)
    assert project.compiler.candidates() > 0


def test_measurements_of_the_cache(project: Project) -> None:
    """Without a record they decide: a cache that lost them, and builds that ask for new ones."""
    shutil.rmtree(project.folder / "tuning")
    (project.folder / "tuning").mkdir()
    assert NOTHING not in built(project)
    assert NOTHING in built(project)
    project.compiler.clear()
    for path in (project.folder / "cache" / "measurements").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert NOTHING not in built(project)
    assert NOTHING not in built(project, AOT_TUNE_MODE="tune")
    assert NOTHING in built(project)  # by what was measured anew
    assert project.compiler.candidates() == 0


def test_a_crash_is_tried_again(project: Project) -> None:
    """A candidate that was killed from outside may work the next time."""
    project.change("{{ prelude() }}", "{{ prelude() }}\n#include <csignal>", "loop.cpp.j2")
    project.change("for (int t = 0;", "if ({{ TIMES }} == 16) raise(SIGKILL);\n  for (int t = 0;", "loop.cpp.j2")
    for _ in range(2):
        assert re.search(r": [1-9]\d* measurements made", built(project))


def test_through_cmake_until_a_module_of_the_project_changes(project: Project) -> None:
    """One that lies outside the folder of the operators, of which CMake knows by what the configure imported."""
    change(project, "CMakeLists.txt", "TEMPLATES templates", "TEMPLATES templates DATABASE tuning")
    project.cmake()
    project.make_all()
    for made in ("libtiny.so.1", "aot_tune/tiny/tuned"):
        (project.folder / "cmake" / made).unlink()
    said = project.make_all()
    assert NOTHING in said
    assert "libtiny.so.1: its variants were verified before on this machine" in said
    assert "no work to do" in project.make_all()
    change(project, "lib/sizes_elsewhere.py", "20000", "20000  # as before")
    said = project.make_all()
    assert "Re-running CMake" in said
    assert NOTHING in said
    assert "no work to do" in project.make_all()
