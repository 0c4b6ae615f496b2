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
from traces import late_clock, problem_of, read_trace

from aot_tune.spec import problem
from aot_tune.spec.load_operators import load_operator

PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tiny.h"

static float x[8192], y[8192];

static int call(int64_t n, int64_t stride) {
  DLTensor in = {x, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, &n, &stride, 0}, out = in;
  out.data = y;
  out.strides = NULL;
  return tiny_twice(&in, &out, NULL);
}

/* CALLS N STEP...: as many calls of N elements, and again behind each step. */
int main(int argc, char** argv) {
  void (*ahead)(long) = (void (*)(long))dlsym(RTLD_DEFAULT, "clock_ahead");
  const long calls = atol(argv[1]), n = atol(argv[2]);
  for (int i = 3; i <= argc; ++i) {
    for (long k = 0; k < calls; ++k) {
      if (call(n, 1 + k % 2) != 0) return puts(tiny_last_error()), 1;
    }
    if (i == argc) break;
    if (strncmp(argv[i], "ahead", 5) == 0) ahead(atol(argv[i] + 5));
    if (strcmp(argv[i], "fork") == 0 && fork() == 0) return call(n, 1);
    if (strcmp(argv[i], "wait") == 0) puts("waiting"), fflush(stdout), pause();
  }
  return 0;
}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The tiny project's library, its module `face`, and the program `calls`."""
    made = Project.make(tmp_path_factory.mktemp("trace") / "project", arguments="MODULE face")
    made.cmake(AOT_TUNE_MODE="generic")
    made.make_all(AOT_TUNE_MODE="generic")
    (made.folder / "calls.c").write_text(PROGRAM)
    built = made.folder / "cmake"
    include = [f"-I{path.parent}" for path in built.rglob("tiny.h")] + [f"-I{ROOT / 'aot_tune/runtime/include'}"]
    link = [f"-L{built}", "-ltiny", f"-Wl,-rpath,{built}", "-ldl"]
    source = str(made.folder / "calls.c")
    command = ["gcc", "-std=gnu99", "-Wall", "-Werror", *include, source, *link, "-o", str(made.folder / "calls")]
    subprocess.run(command, check=True)
    late_clock(made.folder)
    return made


def start(project: Project, argv: list[object], file: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(project.folder / "cmake"), "AOT_TUNE_TRACE": str(file)}
    env["LD_PRELOAD"] = str(project.folder / "libclock.so")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([str(a) for a in argv], env=env, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def calls(project: Project, file: Path, *arguments: object) -> str:
    """What the C program says on stderr."""
    process = start(project, [project.folder / "calls", *arguments], file)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    return said


def python(project: Project, file: Path, code: str) -> str:
    process = start(project, [sys.executable, "-c", "import face, numpy as np\n" + code], file)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    return said


def test_programs_in_python_and_c(project: Project, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    assert python(project, file, "for n in (100, 100, 0): face.twice(np.ones(n, np.float32))") == ""
    assert calls(project, file, 5, 100) == ""
    traced = read_trace(file)
    first, second = traced.counts[:-2], traced.counts[-2:]
    assert sum(line["calls"] for line in first if line["dims"] == {"N": 100}) == 2  # where they lie is numpy's matter
    assert [line["calls"] for line in first if line["dims"] == {"N": 0}] == [1]
    assert [(line["dims"], line.get("strides"), line["calls"]) for line in second] == [
        ({"N": 100}, None, 3),
        ({"N": 100}, {"x": [2]}, 2),
    ]
    manifest = (next((project.folder / "cmake").rglob("manifest.json"))).read_bytes()
    assert {h["build"] for h in traced.headers} == {hashlib.sha256(manifest).hexdigest()}
    assert {(h["library"], h["prefix"]) for h in traced.headers} == {("tiny", "tiny")}
    assert abs(traced.headers[0]["begun"] - time.time()) < 600


def test_its_problems_are_a_workload(project: Project, tmp_path: Path) -> None:
    """A project's operator takes them, and what was traced of calls of them is the same again."""
    file = tmp_path / "trace"
    calls(project, file, 2, 4096)
    calls(project, file, 2, 64)
    problems = [problem_of(line) for line in read_trace(file).counts]
    assert [p.dims for p in problems] == [{"N": 4096}] * 2 + [{"N": 64}] * 2
    assert problems[0] == problem(N=4096, alignment=problems[0].alignment)
    stated = ", ".join(map(repr, problems))
    text = project.operator.read_text().replace("workload=(problem(N=20000), problem(N=60000))", f"workload=({stated})")
    folder = tmp_path / "templates" / "twice"
    folder.mkdir(parents=True)
    for path in project.operator.parent.glob("*.j2"):
        (folder / path.name).write_text(path.read_text())
    (folder / "operator.py").write_text(text.replace("import Kernel,", "import Kernel, Problem,"))
    assert load_operator(folder).workload == tuple(problems)


def test_a_trace_of_several_processes_is_read_by_all_that_take_workloads(project: Project, tmp_path: Path) -> None:
    """By the command, which compares it with the very build, and by a build that tunes what was called."""
    file = tmp_path / "trace.jsonl"
    calls(project, file, 3, 4096)
    python(project, file, "for n in (512, 0): face.twice(np.ones(n, np.float32))")
    with file.open("a") as trace:
        trace.write('{"others": 7}\n')
    assert len(read_trace(file).headers) == 2
    templates = ["--templates", str(project.templates)]
    said = run(project.command("workload", "show", *templates, file), env=project.environment())
    assert "twice: " in said
    assert "4096" in said
    library = next((project.folder / "cmake").rglob("manifest.json")).parent
    said = run(
        project.command("workload", "coverage", *templates, "--library", library, file), env=project.environment()
    )
    assert "another build" not in said
    assert "library tiny, build " in said
    project.configure(build="traced", AOT_TUNE_WORKLOAD=str(file), AOT_TUNE_MODE="generic")
    (stated,) = json.loads((project.folder / "traced" / "plan.json").read_bytes())["workload"]["operators"].values()
    assert {p["problem"]["dims"]["N"] for p in stated["problems"]} == {4096, 512}
