"""A build of the inputs of an earlier one takes its files; whatever changes, by however little, is built anew."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from environments import environment, run
from project import Project
from record_texts import rewrite

TAKEN = "all inputs are those of the build of "
OWN = {"tuned", "plan.json", "paths.json", "plan.cmake", "clock.json", "headers.d"}
"""Files in the folder of a build that are not what it makes."""


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Built once from a record, with a header that a candidate includes and a module that the operator imports."""
    made = Project.make(tmp_path_factory.mktemp("repeat") / "project")
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
    run(made.command("record", made.folder / "tuning", "--library", "tiny"), env=environment(**made.env))
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
    recorded = run(project.command("record", project.folder / "again", "--library", "tiny"), env=project.environment())
    assert "twice" in recorded


def test_files_that_are_there_already_keep_their_time(project: Project) -> None:
    built(project)
    before = {p.name: p.stat().st_mtime_ns for p in (project.folder / "build").iterdir() if p.name not in OWN}
    assert TAKEN in project.build()
    assert {n: (project.folder / "build" / n).stat().st_mtime_ns for n in before} == before


def in_file(path: str, old: str, new: str) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        file = project.folder / path
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return change


def less_of_the_record(project: Project) -> None:
    """Take a measurement out of the record: that of the slow config."""
    (file,) = (project.folder / "tuning").rglob("*.jsonl")
    slow = re.search(r'"id":"(\w+)",.*"TIMES":16,', file.read_text())
    assert slow is not None
    line = re.compile(rf'{{"measurement":.*"candidate":"{slow[1]}".*\n')
    assert len(line.findall(file.read_text())) == 1
    rewrite(file, lambda text: line.sub("", text))


def gone(pattern: str) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        found = list((project.folder / "cache").glob(pattern))
        assert found
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


CHANGES: dict[str, Callable[[Project], None]] = {
    "a byte of a template": in_file("templates/twice/loop.cpp.j2", "return 0;", "return (0);"),
    "a problem": in_file("lib/sizes_elsewhere.py", "20000", "20001"),
    "the record's text": in_file("tuning/NOTES.md", "the", "The"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_any_change_is_built_anew(project: Project, name: str) -> None:
    if name == "the record's text":
        (project.folder / "tuning" / "NOTES.md").write_text("the notes")
        assert TAKEN not in built(project)
        assert TAKEN in built(project)
    CHANGES[name](project)
    said = built(project)
    assert TAKEN not in said
    assert re.search(r": \d+ measurements made, \d+ known from before", said)
    assert TAKEN in built(project)  # which is what was built now


def test_what_changes_the_code_of_a_template_is_in_the_library(first: Project, project: Project) -> None:
    in_file("templates/twice/loop.cpp.j2", "return 0;", "volatile int none = 0; return none;")(project)
    built(project)
    assert project.compiler.candidates() > 0
    assert project.winners() != first.winners()


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


def test_less_of_a_record_is_measured_again(project: Project) -> None:
    less_of_the_record(project)
    said = built(project)
    assert TAKEN not in said
    assert " 1 measurements made" in said


@pytest.fixture
def measured(first: Project, project: Project) -> Project:
    """The project without its record: all measurements are in the cache."""
    shutil.rmtree(project.folder / "tuning")
    (project.folder / "tuning").mkdir()
    assert " 0 measurements made" not in built(project)
    assert TAKEN in built(project)
    project.compiler.clear()
    return project


def test_measurements_that_were_removed_are_made_again(measured: Project) -> None:
    gone("measurements/*")(measured)
    said = built(measured)
    assert "measurements in the cache changed since the build of" in said
    assert " 0 measurements made" not in said
    assert measured.compiler.candidates() == 0


@pytest.mark.parametrize("given", [{"AOT_TUNE_MODE": "tune"}, {"AOT_TUNE_CACHE": "fresh"}])
def test_what_asks_for_new_measurements_gets_them(measured: Project, given: dict[str, str]) -> None:
    said = built(measured, **given)
    assert TAKEN not in said
    assert " 0 measurements made" not in said
    again = built(measured)
    assert TAKEN in again  # of the build that measured anew, or nothing in the cache has changed
    own = json.loads(made_files(measured.folder / "build")["report.json"])["mode"]
    assert own == given.get("AOT_TUNE_MODE", "auto")


def test_where_a_record_decides_what_tune_measured_does_not(project: Project) -> None:
    assert " 0 measurements made" not in built(project, AOT_TUNE_MODE="tune")
    again = built(project)
    assert "changed since the build of" in again
    assert " 0 measurements made" in again
    assert TAKEN in built(project)


def test_a_cache_that_is_only_read_gives_and_takes_nothing(measured: Project) -> None:
    room = measured.folder / "cache" / "builds"
    before = {p: p.stat().st_mtime_ns for p in room.rglob("*")}
    assert TAKEN in built(measured, AOT_TUNE_CACHE="ro")
    CHANGES["a byte of a template"](measured)
    assert TAKEN not in built(measured, AOT_TUNE_CACHE="ro")
    assert {p: p.stat().st_mtime_ns for p in room.rglob("*")} == before


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


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_costs_an_ordinary_build(first: Project, project: Project, name: str) -> None:
    (folder,) = (project.folder / "cache" / "builds").iterdir()
    DAMAGE[name](folder)
    said = built(project)
    assert f"kept build {folder} is not used: " in said
    assert TAKEN not in said
    assert made_files(project.folder / "build") == made_files(first.folder / "build")
    assert TAKEN in built(project)  # it was mended


def test_two_builds_at_once_keep_a_whole_one(first: Project, project: Project) -> None:
    gone("builds")(project)
    names = ["one", "two"]
    for name in names:
        configure(project, name)
    started = [project.start(name) for name in names]
    outputs = [p.communicate(timeout=240)[0] for p in started]
    assert [p.returncode for p in started] == [0, 0], outputs
    assert "Traceback" not in "".join(outputs)
    assert TAKEN in built(project)
    assert made_files(project.folder / "build") == made_files(first.folder / "build")
    assert not list((project.folder / "cache" / "tmp").iterdir())


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


def test_a_baseline_that_cannot_run_here_is_not_tried_again(project: Project) -> None:
    """As numpy, which has no bf16."""
    project.change("import Kernel,", "import Baseline, Kernel,")
    project.change(
        'Tensor("x", (N,)), Tensor("y", (N,), output=True)',
        'Tensor("x", (N,), "bf16"), Tensor("y", (N,), "bf16", output=True)',
    )
    project.change(
        "    flops=N,", '    baselines=(Baseline("numpy", "numpy", lambda np, call: lambda: None),),\n    flops=N,'
    )
    said = built(project)
    assert "baseline:numpy is not run: numpy cannot be used here" in said
    assert "will do some of the work again" not in said
    assert TAKEN in built(project)


def test_through_cmake_nothing_is_tuned_and_the_library_works(project: Project) -> None:
    lists = project.folder / "CMakeLists.txt"
    text = lists.read_text().replace("TEMPLATES templates", "TEMPLATES templates DATABASE tuning")
    lists.write_text(text)
    for build in ("cmake", "cmake2"):
        project.cmake(build=build)
        said = project.make_all(build)
    assert TAKEN in said
    assert "libtiny.so.1: its variants were verified before on this machine" in said
    libraries = [(project.folder / b / "libtiny.so").read_bytes() for b in ("cmake", "cmake2")]
    assert libraries[0] == libraries[1]


def test_cmake_builds_again_when_a_module_of_the_project_changes(project: Project) -> None:
    """One that lies outside the folder of the operators, of which CMake knows by what the configure imported."""
    project.cmake()
    project.make_all()
    assert "no work to do" in project.make_all()
    module = project.folder / "lib" / "sizes_elsewhere.py"
    module.write_text("SIZE = 20000  # as before\n")
    said = project.make_all()
    assert "Re-running CMake" in said
    assert " 0 measurements made" in said
    assert TAKEN not in said
    assert "no work to do" in project.make_all()
