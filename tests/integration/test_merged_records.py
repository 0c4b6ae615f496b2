"""Records of two builds that measured different problems and kernels, merged: a build replays them as one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from environments import run
from project import Project

WORKLOAD = "workload=(problem(N=20000), problem(N=60000)),"
OTHER = "workload=(problem(N=20000), problem(N=40000)),"
BOTH = "workload=(problem(N=20000), problem(N=40000), problem(N=60000)),"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose folder `tuning` has the merged records of `one` and `two`."""
    made = Project.make(tmp_path_factory.mktemp("merged") / "project")
    made.change("(1, 4, 16, 64, 256)", "(1, 64)")
    record(made, "one")
    shutil.rmtree(made.folder / "cache")
    made.change(WORKLOAD, OTHER)
    record(made, "two")
    made.change(OTHER, BOTH)
    records(made, "merge", made.folder / "one", made.folder / "two", "-o", made.folder / "tuning")
    return made


def record(project: Project, folder: str) -> None:
    project.configure(build=folder + "_build")
    project.build(folder + "_build")
    run(project.command("record", "--library", "tiny", project.folder / folder), env=project.environment())


def records(project: Project, *words: object, status: int = 0) -> str:
    return run(project.command("records", *words), env=project.environment(), status=status)


def test_a_replay_takes_what_both_measured(project: Project) -> None:
    project.configure("--database", project.folder / "tuning", build="replay", AOT_TUNE_MODE="replay")
    said = project.build("replay", AOT_TUNE_MODE="replay")
    assert "measurements made" not in said or " 0 measurements made" in said
    (operator,) = project.manifest("replay")["operators"]
    assert {v["kernel"] for v in operator["variants"]} == {"generic", "loop"}


def test_check_holds_them_to_the_tree(project: Project) -> None:
    given = ("check", "--render", "--templates", project.templates)
    assert "1 record: all is well" in records(project, *given, project.folder / "tuning")
    said = records(project, *given, project.folder / "one", status=1)
    assert "1 of 3 problems of the workload: 'N=40000'" in said


def test_a_build_names_the_line_that_was_changed_by_hand(project: Project) -> None:
    other = project.folder / "changed"
    shutil.copytree(project.folder / "tuning", other)
    (path,) = other.rglob("*.jsonl")
    path.write_text(path.read_text().replace('"bitwise":true', '"bitwise":false', 1))
    said = project.configure("--database", other, build="changed_build", AOT_TUNE_MODE="replay", status=1)
    assert f"{path}:" in said
    assert "has another digest than its line and its measurements give" in said
    assert "fix: restore the file, for example by `git checkout -- FILE`" in said


def test_what_a_change_of_a_kernel_voids_is_pruned(project: Project) -> None:
    folder = Path(shutil.copytree(project.folder, project.folder.parent / "other"))
    template = folder / "templates" / "twice" / "loop.cpp.j2"
    template.write_text(template.read_text().replace("int t = 0", "int t = 0 + 0"))
    said = records(project, "prune", folder / "tuning", "--templates", folder / "templates")
    assert "2 candidates dropped\n  2 of other sources" in said
    said = records(project, "diff", project.folder / "tuning", folder / "tuning")
    assert "candidates that were removed: loop: 2" in said
