"""Two libraries that CMake built, used from C++ and Python: CPU levels, rules of a file, a warning, threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from project import Project

PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include "other.h"
#include "tiny.h"

static const char* last = "none";
extern "C" __attribute__((visibility("default"))) void served(const char* kernel) { last = kernel; }

// LIBRARY N FLAVOUR ...: the kernel that ran, and what explain() tells of why; or the error.
int main(int count, char** values) {
  for (int i = 1; i + 2 < count; i += 3) {
    const bool tiny = std::strcmp(values[i], "tiny") == 0;
    int64_t n = std::atol(values[i + 1]);
    const int32_t flavour = std::atoi(values[i + 2]);
    std::vector<float> from(n, 1.0f), to(n);
    DLTensor x = {from.data(), {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, &n, nullptr, 0}, y = x;
    y.data = to.data();
    last = "none";
    const int32_t status = tiny ? tiny_twice(&x, &y, flavour, nullptr) : other_twice(&x, &y, flavour, nullptr);
    if (status != AOT_TUNE_OK || to[n - 1] != 2.0f) {
      std::printf("%d %s\\n", status, tiny ? tiny_last_error() : other_last_error());
      continue;
    }
    char text[4096];
    if (tiny) tiny_twice_explain(&x, &y, flavour, nullptr, text, sizeof text);
    else other_twice_explain(&x, &y, flavour, nullptr, text, sizeof text);
    std::printf("%s", last);
    for (char* line = std::strtok(text, "\\n"); line != nullptr; line = std::strtok(nullptr, "\\n")) {
      for (const char* key : {"override: ", "why: ", "threads: "}) {
        if (std::strncmp(line, key, std::strlen(key)) == 0) std::printf(" | %s", line);
      }
    }
    std::puts("");
  }
}
"""
TELLS = """
extern "C" void served(const char* kernel) __attribute__((weak));
"""
NAMED = "why: named by a rule of AOT_TUNE_OVERRIDE"
RANKED = "why: first of the variants ranked for such calls whose guards hold"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The libraries tiny, tuned on one thread, and other, with generic variants alone; `program` calls both."""
    made = Project.make(tmp_path_factory.mktemp("override") / "project", arguments="MODULE face", AOT_TUNE_THREADS="1")
    made.env["AOT_TUNE_TARGETS"] = "cpu-x86-64-v2;native"
    lists = made.folder / "CMakeLists.txt"
    text = lists.read_text() + "aot_tune_add_library(other TEMPLATES templates MODE generic)\n"
    text += "add_executable(program program.cpp)\ntarget_link_libraries(program PRIVATE tiny other)\n"
    lists.write_text(text + "set_target_properties(program PROPERTIES ENABLE_EXPORTS ON)\n")
    (made.folder / "program.cpp").write_text(PROGRAM)
    made.change("import Kernel,", "import Attribute, Kernel,")
    made.change("    reference=", '    attributes=(Attribute("flavour", ("plain", "sweet")),),\n    reference=')
    for name in ("generic", "loop"):
        made.change("{{ prelude() }}", "{{ prelude() }}" + TELLS, f"{name}.cpp.j2")
        tell = f'{{\n  if (served != nullptr) served("{name}");\n  for ('
        made.change("{\n  for (", tell, f"{name}.cpp.j2")
    # a loop of threads, so that their number matters
    made.change("{{ unroll(UNROLL) }}", "#pragma omp parallel for if (n > 100000)", "loop.cpp.j2")
    made.change("  for (int t = 0;", '  const int64_t n = {{ dim("N") }};\n  for (int t = 0;', "loop.cpp.j2")
    made.cmake()
    made.make_all()
    return made


def program(project: Project, *arguments: object, **environment: str) -> tuple[list[str], str]:
    """Lines of the C++ program, and what it says on stderr."""
    argv = [str(project.folder / "cmake" / "program"), *map(str, arguments)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=env)
    return done.stdout.splitlines(), done.stderr


def python(project: Project, code: str, **environment: str) -> tuple[list[str], str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(project.folder / "cmake"), **environment}
    argv = [sys.executable, "-c", "import face, numpy as np\n" + code]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=env)
    return done.stdout.splitlines(), done.stderr


def test_each_cpu_is_served_by_what_was_tuned_for_it(project: Project) -> None:
    code = "told = face.explain('twice', N=20000); print(told['target'], told['kernel'])"
    best = python(project, code)[0][0]
    for level, told in (("1", "cpu-x86-64 generic"), ("2", "cpu-x86-64-v2 loop"), ("x86-64-v2", "cpu-x86-64-v2 loop")):
        assert python(project, code, AOT_TUNE_CPU_LEVEL=level)[0] == [told]
    assert best not in ("cpu-x86-64 generic", "cpu-x86-64-v2 loop")


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "rules"
    file.write_text(
        """\
# for both libraries
twice: N<=100 -> generic
# the other one has no such kernel
tiny.twice: 100<N<=200, flavour=sweet -> loop
tiny.twice: N=300 -> generic
"""
    )
    return file


def test_a_program_in_cpp(project: Project, rules: Path) -> None:
    calls = ["tiny", 100, 0, "tiny", 101, 0, "tiny", 200, 1, "tiny", 300, 0, "other", 100, 1, "other", 300, 0]
    assert program(project, *calls, AOT_TUNE_OVERRIDE=str(rules)) == (
        [
            f"generic | override: {rules}:2: twice: N<=100 -> generic | {NAMED}",
            f"loop | {RANKED}",
            f"loop | override: {rules}:4: tiny.twice: 100<N<=200, flavour=sweet -> loop | {NAMED}",
            f"generic | override: {rules}:5: tiny.twice: N=300 -> generic | {NAMED}",
            f"generic | override: {rules}:2: twice: N<=100 -> generic | {NAMED}",
            "generic | why: generic: no tuned variants for this level of the device",
        ],
        "",
    )
    lines, _ = program(project, *calls)
    assert [line.partition(" ")[0] for line in lines] == ["loop"] * 4 + ["generic"] * 2


def test_a_warning_and_what_it_says_to_do(project: Project, tmp_path: Path) -> None:
    """After what it says was done, the same calls are within what was measured."""
    calls = ["tiny", 20000, 0, "tiny", 30001, 1, "tiny", 300, 0, "tiny", 200, 0, "other", 7, 0]
    _, said = program(project, *calls, AOT_TUNE_WARN="unseen")
    first, second = said.splitlines()
    target = project.manifest("cmake/aot_tune/tiny")["operators"][0]["tables"][-1]["target"]
    assert first.startswith(
        f"aot_tune: tiny.twice: N=300: outside of what was measured for {target}: N is not within 20000 to 60000; what "
    )
    assert second.startswith("aot_tune: other.twice: N=7: nothing of it was measured for cpu; ")
    assert program(project, *calls)[1] == ""
    assert program(project, *calls[:6], AOT_TUNE_WARN="unseen")[1] == ""

    trace, workload = tmp_path / "calls.jsonl", tmp_path / "workload.jsonl"
    assert "AOT_TUNE_TRACE=calls.jsonl" in first
    program(project, *calls, AOT_TUNE_TRACE=str(trace))
    command = "workload merge calls.jsonl -o workload.jsonl"
    assert f"`aot-tune {command}`" in first
    words = [str(tmp_path / word) if word.endswith(".jsonl") else word for word in command.split()]
    project.ask(*words, "--templates", project.templates)
    assert "AOT_TUNE_WORKLOAD=+workload.jsonl" in first
    project.configure(build="again", AOT_TUNE_WORKLOAD=f"+{workload}")
    project.build("again")
    (*_, best) = project.manifest("again")["operators"][0]["tables"]
    assert {f"N={n}" for n in calls[1:11:3]} <= {tuned.split()[0] for tuned in best["tuned"]}
