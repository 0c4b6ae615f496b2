"""A workload that the user states in a file is what is tuned, whatever the operators declare."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from environments import run
from project import Project


def written(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def twice(n: int, **more: Any) -> dict[str, Any]:
    return {"operator": "twice", "dims": {"N": n}, **more}


def tuned(project: Project, build: str) -> list[str]:
    """The problems of a build's report."""
    report = json.loads((project.folder / build / "report.json").read_bytes())
    return [row["problem"] for one in report["operators"] for row in one["problems"]]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.make(tmp_path / "project", arguments="MODULE ops", AOT_TUNE_EFFORT="quick")


def test_a_file_is_what_is_tuned_and_its_change_is_seen(project: Project) -> None:
    """Through CMake: a relative path of the cache variable is the project's."""
    file = written(project.folder / "serving.jsonl", twice(5000, weight=3), twice(7000))
    project.cmake(f"-DAOT_TUNE_WORKLOAD={file.name}", "-DAOT_TUNE_MODE=auto")
    assert "workload serving.jsonl: 2 problems" in project.make_all()
    assert tuned(project, "cmake/aot_tune/tiny") == ["N=5000", "N=7000"]
    code = "import numpy as np, ops; print([ops.is_tuned('twice', np.ones(n, 'f4')) for n in (5000, 7000, 20000)])"
    asked = [sys.executable, "-c", code]
    env = project.environment(PYTHONPATH=str(project.folder / "cmake"))
    assert run(asked, env=env) == "[True, True, False]\n"
    assert "no work to do" in project.make_all()
    written(file, twice(20000))
    assert "workload serving.jsonl: 1 problem" in project.make_all()
    assert tuned(project, "cmake/aot_tune/tiny") == ["N=20000"]
    assert run(asked, env=env) == "[False, False, True]\n"
