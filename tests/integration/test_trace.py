"""AOT_TUNE_TRACE with a package that CMake built: what Python and C programs call ends up in one file, as problems."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from environments import ROOT, run
from project import Project
from traces import read_trace

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "tiny.h"

static float x[8192], y[8192];

/* CALLS N: as many calls of N elements. */
int main(int argc, char** argv) {
  int64_t n = argc > 2 ? atol(argv[2]) : 0;
  for (int64_t k = 0; k < atol(argv[1]); ++k) {
    int64_t stride = 1 + k % 2;
    DLTensor in = {x, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, &n, &stride, 0}, out = in;
    out.data = y;
    out.strides = NULL;
    if (tiny_twice(&in, &out, NULL) != 0) return puts(tiny_last_error()), 1;
  }
  return 0;
}
"""


@pytest.fixture(scope="module")
def project(faced: Project) -> Project:
    return faced


@pytest.fixture(scope="module")
def program(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, built = tmp_path_factory.mktemp("program"), project.folder / "cmake"
    (folder / "calls.c").write_text(PROGRAM)
    include = [f"-I{path.parent}" for path in built.rglob("tiny.h")] + [f"-I{ROOT / 'aot_tune/runtime/include'}"]
    link = [f"-L{built}", "-ltiny", f"-Wl,-rpath,{built}"]
    command = ["gcc", "-std=gnu99", "-Wall", "-Werror", *include, folder / "calls.c", *link, "-o", folder / "calls"]
    subprocess.run(list(map(str, command)), check=True)
    return folder / "calls"


def traced(project: Project, file: Path, *argv: object) -> None:
    """Run a program that says nothing."""
    env = {**os.environ, "PYTHONPATH": str(project.folder / "cmake"), "AOT_TUNE_TRACE": str(file)}
    assert run(argv, env=env) == ""


def python(project: Project, file: Path, code: str) -> None:
    traced(project, file, sys.executable, "-c", "import face, numpy as np\n" + code)


def test_programs_in_python_and_c(project: Project, program: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    python(project, file, "for n in (100, 100, 0): face.twice(np.ones(n, np.float32))")
    traced(project, file, program, 5, 100)
    told = read_trace(file)
    first, second = told.counts[:-2], told.counts[-2:]
    assert sum(line["calls"] for line in first if line["dims"] == {"N": 100}) == 2  # where they lie is numpy's matter
    assert [line["calls"] for line in first if line["dims"] == {"N": 0}] == [1]
    assert [(line["dims"], line.get("strides"), line["calls"]) for line in second] == [
        ({"N": 100}, None, 3),
        ({"N": 100}, {"x": [2]}, 2),
    ]
    manifest = (next((project.folder / "cmake").rglob("manifest.json"))).read_bytes()
    assert {h["build"] for h in told.headers} == {hashlib.sha256(manifest).hexdigest()}
    assert {(h["library"], h["prefix"]) for h in told.headers} == {("tiny", "tiny")}
    assert abs(told.headers[0]["begun"] - time.time()) < 600


def test_a_trace_of_several_processes_is_read_by_all_that_take_workloads(
    project: Project, program: Path, tmp_path: Path
) -> None:
    """By the command, which compares it with the very build, and by a build that tunes what was called."""
    file = tmp_path / "trace.jsonl"
    traced(project, file, program, 3, 4096)
    python(project, file, "for n in (512, 0): face.twice(np.ones(n, np.float32))")
    with file.open("a") as trace:
        trace.write('{"others": 7}\n')
    assert len(read_trace(file).headers) == 2
    templates = ["--templates", str(project.templates)]
    said = project.ask("workload", "show", *templates, file)
    assert "twice: " in said
    assert "4096" in said
    library = next((project.folder / "cmake").rglob("manifest.json")).parent
    said = project.ask("workload", "coverage", *templates, "--library", library, file)
    assert "another build" not in said
    assert "library tiny, build " in said
    project.configure(build="traced", AOT_TUNE_WORKLOAD=str(file), AOT_TUNE_MODE="generic")
    (stated,) = json.loads((project.folder / "traced" / "plan.json").read_bytes())["workload"]["operators"].values()
    assert {p["problem"]["dims"]["N"] for p in stated["problems"]} == {4096, 512}
