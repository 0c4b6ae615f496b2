"""Inputs that are wrong, as a user gives them: what is said names file, line and remedy, by command and build alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from project import Project

OTHERS = {"trace": {"format": 1, "library": "mine", "prefix": "m", "build": "00" * 32}}


def twice(n: object = 20000, **more: Any) -> dict[str, Any]:
    return {"operator": "twice", "dims": {"N": n}, **more}


@pytest.fixture(scope="module")
def project(tuned_once: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return tuned_once.copied(tmp_path_factory.mktemp("inputs") / "project")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "w.jsonl"


def written(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def workload(project: Project, *arguments: object, status: int = 1) -> str:
    return project.ask("workload", *arguments, "--templates", project.templates, status=status)


def coverage(project: Project, file: Path, status: int = 1) -> str:
    return workload(project, "coverage", file, "--library", project.folder / "build", status=status)


def configured(project: Project, file: Path) -> str:
    """What a build says before it compiles anything; a record would answer what is right."""
    before = project.compiler.candidates()
    said = project.configure(build="bad", status=1, AOT_TUNE_WORKLOAD=str(file))
    assert project.compiler.candidates() == before
    return said


def test_a_trace_of_another_library(project: Project, file: Path) -> None:
    written(file, OTHERS, twice(calls=3))
    for said in (coverage(project, file), configured(project, file)):
        assert f"aot-tune: {file}:1: this is a trace of library 'mine' with the prefix 'm'\n  why: the " in said
        assert "is 'tiny' with the prefix 'tiny'\n  fix: name " in said


@pytest.mark.parametrize(
    ("line", "said", "fix"),
    [
        ({"operator": "twise", "dims": {"N": 5}}, "unknown operator 'twise'", "did you mean 'twice'?"),
        ({"operator": "twice", "dims": {"L": 5}}, "problem 'L=5': dim 'N' is not bound", "state N=... in place of L"),
        (twice(weight=-2), "weight -2 is not a positive number", 'write a number above 0, such as "weight": 1'),
    ],
)
def test_a_line_that_is_wrong(project: Project, file: Path, line: dict[str, Any], said: str, fix: str) -> None:
    written(file, twice(), line)
    for told in (configured(project, file), workload(project, "merge", file), workload(project, "show", file)):
        head, _, rest = told.partition("\n  why: ")
        assert head.startswith(f"aot-tune: {file}:2: ")
        assert said in head
        assert f"  fix: {fix}" in rest or fix in rest


def test_a_file_without_lines(project: Project, file: Path) -> None:
    file.touch()
    assert f"aot-tune: {file}:1: the workload's file has no problem\n  why: it is empty" in configured(project, file)
    for said in (workload(project, "merge", file), coverage(project, file)):
        assert f"aot-tune: {file}: no problem is in these files\n  why: a trace is empty if the program called " in said
        assert "fix: run the program with AOT_TUNE_TRACE again, or name other files" in said


def test_more_than_the_memory_of_the_device(project: Project, file: Path) -> None:
    written(file, twice(), twice(1 << 50))
    said = configured(project, file)
    assert (
        f"aot-tune: {file}:2: operator 'twice': problem 'N={1 << 50}' needs {8 << 20}.0 GiB for its tensors\n" in said
    )
    assert "  fix: leave the problem out of the workload, or the target out of AOT_TUNE_TARGETS, or take a" in said


def test_a_record_of_an_operator_that_has_changed(project: Project) -> None:
    (record,) = (project.folder / "tuning").rglob("twice.jsonl")
    before = project.operator.read_text()
    project.change("    flops=N,", "    flops=N,\n    tolerance=2.0,")
    given = {"AOT_TUNE_MODE": "replay", "build": "replay"}
    project.configure("--database", project.folder / "tuning", **given)
    said = project.build("replay", status=1, AOT_TUNE_MODE="replay")
    project.operator.write_text(before)
    place = record.relative_to(project.folder / "tuning")
    assert f"aot-tune: {place}:1: the record is of another version of operator 'twice': on cpu-x86-64" in said
    assert f"       {record}:1 is of digest " in said
    assert "not measured are\n       N=20000\n       N=60000\n  fix: tune on the device, run `aot-tune record " in said
    assert "or declare the operator as it was recorded, or use AOT_TUNE_MODE=auto" in said
