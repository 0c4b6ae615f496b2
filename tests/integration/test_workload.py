"""A workload that the user states in a file is what is tuned, whatever the operators declare."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from environments import Builder, Built, members, run
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


def test_a_file_beside_what_is_declared_by_the_environment(project: Project) -> None:
    """A relative path of the environment is the current folder's; a weight is shown, the repeat takes what is there."""
    written(project.folder / "more.jsonl", twice(5000, weight=8), twice(20000, weight=2))
    relative = os.path.relpath(project.folder / "more.jsonl", tempfile.gettempdir())
    stated = {"AOT_TUNE_WORKLOAD": f"+{relative}"}
    said = project.configure(**stated)
    assert "workload more.jsonl: 2 problems added to the declared ones" in said
    said = project.build(**stated)
    assert tuned(project, "build") == ["N=20000", "N=60000", "N=5000"]
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
    assert "nothing compiled or chosen, 0 measurements made" in project.build("again", **stated)
    written(moved / "more.jsonl", twice(5000, weight=9), twice(20000, weight=2))
    project.configure(**stated, build="again")
    said = project.build("again", **stated)
    assert "nothing compiled or chosen" not in said
    assert ": 0 measurements made" in said


def test_what_the_record_does_not_have_is_a_miss(project: Project) -> None:
    """A problem of the file that it has is found, however the line is written."""
    project.configure()
    project.build()
    run(project.command("record", project.folder / "tuning", "--library", "tiny"), env=project.environment())
    database = ("--database", project.folder / "tuning")
    file = written(project.folder / "w.jsonl", twice(60000, order={"x": [0]}, alignment={"x": 64}))
    replay = {"AOT_TUNE_MODE": "replay", "AOT_TUNE_WORKLOAD": str(file)}
    project.configure(*database, build="replay", **replay)
    project.build("replay", **replay)
    assert tuned(project, "replay") == ["N=60000"]
    written(file, twice(60000), twice(61234))
    project.configure(*database, build="replay", **replay)
    said = project.build("replay", status=1, **replay)
    assert "operator 'twice' on " in said
    assert "1 problem is not in the database" in said
    assert "why: N=61234\n" in said
    auto = {"AOT_TUNE_MODE": "auto", "AOT_TUNE_WORKLOAD": str(file), "SKBUILD_STATE": "editable"}  # measures nothing
    project.configure(*database, build="auto", **auto)
    said = project.build("auto", **auto)
    assert "NOT TUNED for " in said
    assert "1 problem is not in the database" in said


def test_the_argument_of_the_function_and_what_wins_over_it(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "project", arguments="MODE generic WORKLOAD one.jsonl +sub/two.jsonl")
    written(project.folder / "one.jsonl", twice(5000))
    (project.folder / "sub").mkdir()
    written(project.folder / "sub" / "two.jsonl", twice(6000), twice(7000))
    said = project.cmake()
    assert "workload one.jsonl: 1 problem\n" in said
    assert "workload two.jsonl: 2 problems added to the declared ones\n" in said
    one = written(tmp_path / "three, or more.jsonl", twice(8000))
    said = project.cmake(AOT_TUNE_WORKLOAD=str(one))
    assert "workload three, or more.jsonl: 1 problem\n" in said
    assert "one.jsonl" not in said
    said = project.cmake("-DAOT_TUNE_WORKLOAD=one.jsonl;+sub/two.jsonl", AOT_TUNE_WORKLOAD=str(one))
    assert "workload one.jsonl" in said
    assert "three" not in said
    said = " ".join(project.cmake("-DAOT_TUNE_WORKLOAD=sub/none.jsonl", status=1).split())
    assert f"{project.folder}/sub/none.jsonl: the workload's file cannot be read why: No such file" in said


def test_mistakes_are_told_before_anything_is_compiled(project: Project) -> None:
    file = written(project.folder / "w.jsonl", twice(5000, weight=-1), twice(1 << 50), twice(6000, dtypes={"T": "f32"}))
    said = project.configure(AOT_TUNE_WORKLOAD=str(file), status=1)
    assert f"{file}:1: weight -1 is not a positive number" in said
    assert f"{file}:3: operator 'twice'" in said
    written(file, twice(5000), twice(1 << 50))
    said = project.configure(AOT_TUNE_WORKLOAD=str(file), status=1)
    assert f"{file}:2: operator 'twice': problem 'N={1 << 50}' needs {8 << 20}.0 GiB for its tensors" in said
    assert " GiB\n" in said
    project.change("problem(N=60000)", "problem(N=1 << 50)")
    said = project.configure(status=1)
    assert f"aot-tune: operator 'twice': problem 'N={1 << 50}' needs {8 << 20}.0 GiB for its tensors" in said
    assert project.compiler.candidates() == 0
    project.configure(AOT_TUNE_MODE="generic")  # nothing is measured


def test_a_problem_in_a_dtype_of_other_devices_is_no_fault(project: Project) -> None:
    """The file is for all targets: what no kernel for the CPU takes is told, and the rest is tuned."""
    project.change(
        'Tensor("x", (N,)), Tensor("y", (N,), output=True)',
        'Tensor("x", (N,), "T"), Tensor("y", (N,), "T", output=True)',
    )
    project.change("    flops=N,", '    flops=N,\n    dtypes={"T": ("f32", "f64")},')
    for kernel in ("generic", "loop"):
        project.change(f'"twice/{kernel}.cpp.j2",', f'"twice/{kernel}.cpp.j2", dtypes={{"T": ("f32",)}},')
    f64, f32 = {"dtypes": {"T": "f64"}}, {"dtypes": {"T": "f32"}}
    file = written(project.folder / "w.jsonl", twice(5000, **f64), twice(6000, **f32))
    project.configure(AOT_TUNE_WORKLOAD=str(file))
    said = project.build(AOT_TUNE_WORKLOAD=str(file))
    assert "no kernel of twice for cpu takes 1 of 2 problems, such as 'N=5000 T=f64'" in said
    assert tuned(project, "build") == ["N=6000"]
    written(file, twice(5000, **f64))
    project.configure(AOT_TUNE_WORKLOAD=str(file))
    assert "takes 1 of 1 problems" in project.build(AOT_TUNE_WORKLOAD=str(file))
    assert tuned(project, "build") == []


@pytest.fixture
def own_records(built: Built, cache: Path, tmp_path: Path) -> Iterator[None]:
    """What the last build recorded is, after the test, what it was before: other tests take it for the session's."""
    del built
    shutil.copytree(cache / "recorded", tmp_path / "recorded")
    yield
    shutil.rmtree(cache / "recorded")
    shutil.copytree(tmp_path / "recorded", cache / "recorded")


@pytest.mark.usefixtures("own_records")
def test_bundled_operators_in_an_isolated_build(builder: Builder, built: Built, source: Path, tmp_path: Path) -> None:
    """By pip's own option, and nothing is edited; operators that the file does not name keep what they declare."""
    lines = [{"operator": "softmax", "dims": {"R": r, "D": 96}, "dtypes": {"T": "f32"}, "calls": r} for r in (3, 40)]
    file = written(tmp_path / "serving.jsonl", {"trace": {"library": "ops", "prefix": "aot_tune"}}, *lines)
    option = f"cmake.define.AOT_TUNE_WORKLOAD={file}"
    made = replace(builder, out=tmp_path / "wheels", options=("-C", option)).build(source)
    assert "workload serving.jsonl: 2 problems" in made.log
    before, after = (_problems(wheel) for wheel in (built.wheel, made.wheel))
    assert set(after["softmax"].values()) == {("R=3 D=96", "R=40 D=96")}
    assert {n: found for n, found in after.items() if n != "softmax"} == {
        n: found for n, found in before.items() if n != "softmax"
    }
    inside = members(made.wheel)
    assert not [name for name, data in inside.items() if str(tmp_path).encode() in data]
    report = json.loads(inside["aot_tune/share/aot_tune/ops/report.json"])
    assert report["workload"] == ["serving.jsonl: 2 problems"]
    assert {row["weight"] for o in report["operators"] for row in o["problems"]} == {1, 3, 40}


def _problems(wheel: Path) -> dict[str, dict[str, tuple[str, ...]]]:
    """The problems of a wheel's report by operator and target."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for one in json.loads(members(wheel)["aot_tune/share/aot_tune/ops/report.json"])["operators"]:
        found.setdefault(one["operator"], {})[one["target"]] = tuple(row["problem"] for row in one["problems"])
    return found
