"""A workload that the user states in a file is what is tuned, whatever the operators declare."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from project import Project


def written(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def twice(n: int, **more: Any) -> dict[str, Any]:
    return {"operator": "twice", "dims": {"N": n}, **more}


def problems(project: Project, build: str) -> list[str]:
    """The problems of a build's report."""
    report = json.loads((project.folder / build / "report.json").read_bytes())
    return [row["problem"] for one in report["operators"] for row in one["problems"]]


@pytest.fixture
def project(tuned_once: Project, tmp_path: Path) -> Project:
    return tuned_once.copied(tmp_path / "project", AOT_TUNE_EFFORT="quick")


def test_a_file_is_what_is_tuned_and_its_change_is_seen(project: Project) -> None:
    """Through CMake: a relative path of the cache variable is the project's."""
    file = written(project.folder / "serving.jsonl", twice(5000, weight=3), twice(7000))
    said = project.cmake(f"-DAOT_TUNE_WORKLOAD={file.name}", "-DAOT_TUNE_MODE=auto")
    assert "workload serving.jsonl: 2 problems" in said
    project.make_all()
    assert problems(project, "cmake/aot_tune/tiny") == ["N=5000", "N=7000"]
    assert "no work to do" in project.make_all()
    written(file, twice(20000))
    assert "workload serving.jsonl: 1 problem" in project.make_all()
    assert problems(project, "cmake/aot_tune/tiny") == ["N=20000"]


def test_a_file_beside_what_is_declared_by_the_environment(project: Project) -> None:
    """A relative path of the environment is the current folder's; a weight is shown, the repeat takes what is there."""
    written(project.folder / "more.jsonl", twice(5000, weight=8), twice(20000, weight=2))
    relative = os.path.relpath(project.folder / "more.jsonl", tempfile.gettempdir())
    stated = {"AOT_TUNE_WORKLOAD": f"+{relative}"}
    said = project.configure(**stated)
    assert "workload more.jsonl: 2 problems added to the declared ones" in said
    project.build(**stated)
    said = project.report()
    assert problems(project, "build") == ["N=20000", "N=60000", "N=5000"]
    weights = {w[0]: w[1] for line in said.splitlines() if (w := line.split()) and w[0].startswith("N=")}
    assert weights == {"N=20000": "3", "N=60000": "1", "N=5000": "8"}
    assert "in the mean by weight" in said
    assert str(project.folder) not in (project.folder / "build" / "plan.json").read_text().replace(
        str(project.folder / "cache"), ""
    )
    # the same problems from another place are the same build; other weights are not
    moved = project.folder / "elsewhere"
    moved.mkdir()
    (project.folder / "more.jsonl").rename(moved / "more.jsonl")
    stated = {"AOT_TUNE_WORKLOAD": f"+{moved / 'more.jsonl'}"}
    project.configure(**stated, build="again")
    assert ": 0 measurements made" in project.build("again", **stated)
    written(moved / "more.jsonl", twice(5000, weight=9), twice(20000, weight=2))
    project.configure(**stated, build="again")
    said = project.build("again", **stated)
    assert ": 0 measurements made" in said
