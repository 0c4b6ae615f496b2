"""Records of two builds that measured different problems and kernels, merged: a build replays them as one."""

from __future__ import annotations

import shutil

import pytest
from project import Project

WORKLOAD = "workload=(problem(N=20000), problem(N=60000)),"
OTHER = "workload=(problem(N=20000), problem(N=40000)),"
BOTH = "workload=(problem(N=20000), problem(N=40000), problem(N=60000)),"


@pytest.fixture(scope="module")
def project(tuned_once: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose folder `merged` has the merged records of `tuning` and `two`."""
    made = tuned_once.copied(tmp_path_factory.mktemp("merged") / "project")
    made.change(WORKLOAD, OTHER)
    made.configure(build="two_build")
    made.build("two_build")
    made.record("two")
    made.change(OTHER, BOTH)
    made.ask("records", "merge", made.folder / "tuning", made.folder / "two", "-o", made.folder / "merged")
    return made


def test_a_replay_takes_what_both_measured(project: Project) -> None:
    project.configure("--database", project.folder / "merged", build="replay", AOT_TUNE_MODE="replay")
    said = project.build("replay", AOT_TUNE_MODE="replay")
    assert "measurements made" not in said or " 0 measurements made" in said
    (operator,) = project.manifest("replay")["operators"]
    assert {v["kernel"] for v in operator["variants"]} == {"generic", "loop"}


def test_a_build_names_the_line_that_was_changed_by_hand(project: Project) -> None:
    other = project.folder / "changed"
    shutil.copytree(project.folder / "merged", other)
    (path,) = other.rglob("*.jsonl")
    path.write_text(path.read_text().replace('"bitwise":true', '"bitwise":false', 1))
    said = project.configure("--database", other, build="changed_build", AOT_TUNE_MODE="replay", status=1)
    assert f"{path}:" in said
    assert "has another digest than its line and its measurements give" in said
    assert "fix: restore the file, for example by `git checkout -- FILE`" in said
