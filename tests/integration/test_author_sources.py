"""A project whose kernels are functions of its own sources, with what CMake says of folders, flags and libraries."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import ROOT, environment, run

LISTS = """
cmake_minimum_required(VERSION 3.25)
project(own LANGUAGES CXX)
include("{root}/cmake/aot_tune_add_library.cmake")
add_library(half SHARED lib/half.cpp)
target_compile_definitions(half PRIVATE HALF=0.5f)
target_include_directories(half INTERFACE lib)
add_library(weights STATIC lib/weights.cpp)
set_target_properties(weights PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_compile_definitions(weights PRIVATE FILE="${{CMAKE_SOURCE_DIR}}/lib/weights.bin")
aot_tune_add_library(own TEMPLATES templates MODULE ops LINK_LIBRARIES half weights INCLUDE_DIRECTORIES include
  COMPILE_DEFINITIONS SHIFT=2 COMPILE_OPTIONS -fno-tree-vectorize $<$<COMPILE_LANGUAGE:CUDA>:--use_fast_math>)
target_include_directories(own PRIVATE late)
"""
OPERATOR = """
from aot_tune.spec import *

N, = dims("N")
halve = {"n": N}
operator = Operator(
    name="halve",
    dims=("N",),
    tensors=(Tensor("x", (N,)), Tensor("out", (N,), output=True)),
    legal=(stride("x", 0) == 1, stride("out", 0) == 1),
    reference=lambda xp, call: {"out": call.x / 2},
    flops=N,
    workload=(problem(N=1000),),
    kernels=(
        Kernel("steps", function=Launcher("csrc/halve.cpp:halve", halve), parameters=(Parameter("STEP", (2, 4)),)),
        Kernel("generic", function=Launcher("csrc/halve.cpp:halve", halve, macros={"STEP": 1}), generic=True),
    ),
)
"""
TRIPLE = """
from aot_tune.spec import *

N, = dims("N")
operator = Operator(
    name="triple",
    dims=("N",),
    tensors=(Tensor("x", (N,)), Tensor("out", (N,), output=True)),
    legal=(stride("x", 0) == 1, stride("out", 0) == 1),
    reference=lambda xp, call: {"out": 3 * call.x},
    flops=N,
    workload=(problem(N=1000),),
    kernels=(Kernel("generic", function=Launcher("lib/half.h:triple", {"n": N}), generic=True),),
)
"""
SOURCE = """
#include "half.h"
#include "late.h"
#include "sub/early.h"
// {{1, 2}, {3, 4}} is C++
static const int pairs[2][2] = {{1, 2}, {3, 4}};
namespace ops {
void halve(const float* x, float* out, int n) {
  for (int i = 0; i < n; i += STEP)
    for (int j = i; j < i + STEP && j < n; ++j)
      out[j] = own_half(x[j]) * own_weights[j] * SHIFT / (2 * LATE * EARLY * pairs[0][0]);
}
}  // namespace ops
"""
FILES = {
    "templates/halve/operator.py": OPERATOR,
    "templates/triple/operator.py": TRIPLE,
    "csrc/halve.cpp": SOURCE,
    "include/sub/early.h": "#define EARLY 1\n",
    "late/late.h": "#define LATE 2\n",
    "lib/weights.cpp": 'asm(".section .rodata\\n.global own_weights\\nown_weights: .incbin \\"" FILE "\\"\\n.text");\n',
    "lib/weights.bin": "\0\0\0\x40" * (1 << 20),  # of 2.0
    "lib/half.h": 'extern "C" { float own_half(float x); extern const float own_weights[]; }\n'
    "void triple(const float* x, float* out, long n);\n",
    "lib/half.cpp": 'extern "C" float own_half(float x) { return x * HALF; }\n'
    "void triple(const float* x, float* out, long n) { for (long i = 0; i < n; ++i) out[i] = 3 * x[i]; }\n",
}
USE = """
import numpy as np, ops
x = np.linspace(-3, 5, 1000, dtype="f4")
assert (ops.halve(x) == x / 2).all()
assert (ops.triple(x) == 3 * x).all()
try:
    ops.halve(x[::2])
except ValueError as error:
    print(error)
"""
SHARES = (
    USE
    + """
import ctypes, re, subprocess, sys
from pathlib import Path
x = np.ones(1 << 20, "f4")
assert (ops.halve(x) == x / 2).all()  # it reads all weights
if len(sys.argv) > 1:
    subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
else:
    parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    (weights,) = [p for p in parts if "/libown.so" in p and int(re.search(r"Size: +([0-9]+)", p)[1]) >= 4096]
    kinds = r"^(?:Rss|Shared_Clean|Shared_Dirty|Anonymous): +([0-9]+)"
    print(weights.split()[1], *re.findall(kinds, weights, re.MULTILINE))
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("own")
    for name, text in {**FILES, "CMakeLists.txt": LISTS.format(root=ROOT)}.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    run(
        ["cmake", "-G", "Ninja", "-S", made, "-B", made / "build", f"-DPython_EXECUTABLE={sys.executable}"],
        env=env(made),
    )
    return made


def env(folder: Path) -> dict[str, str]:
    own = {"AOT_TUNE_CACHE_DIR": str(folder / "cache"), "AOT_TUNE_SURVEY": "0", "AOT_TUNE_OLDER_CPUS": "0"}
    return environment(**own, PYTHONPATH=str(ROOT))


def build(folder: Path, status: int = 0) -> str:
    return run(["cmake", "--build", folder / "build"], env=env(folder), status=status)


def test_sources_headers_and_libraries_of_a_project(folder: Path) -> None:
    """Built, tuned, called; then a header that only the compiler found changes, and with it the result."""
    said = build(folder)
    assert "dropped candidates" not in said
    assert re.search(r"\d variants? verified inside the library", said)
    told = run([sys.executable, "-c", USE], env=environment(PYTHONPATH=str(folder / "build")))
    assert "stride" in told
    # constants of a linked library are in ours, and two processes that use them have one copy of them
    told = run([sys.executable, "-c", SHARES, SHARES], env=environment(PYTHONPATH=str(folder / "build")))
    (kilobytes,) = re.findall(r"^r--p (\d+) (\d+) (\d+) (\d+)$", told, re.MULTILINE)
    resident, shared, on_its_way_to_the_disk, copied = map(int, kilobytes)
    assert resident == shared + on_its_way_to_the_disk >= 4096 > copied == 0
    assert "ninja: no work to do" in build(folder)
    (folder / "include/sub/early.h").write_text("#define EARLY 3\n")
    assert "wrong-result" in build(folder, status=1)


def test_what_may_not_be_given_is_told_before_anything_is_compiled(folder: Path, forks: Callable[..., str]) -> None:
    command = [sys.executable, "-m", "aot_tune.cli.main", "configure", "--name", "own", "--prefix", "own"]
    command += ["--header", "own.h", "--directory", folder / "other", "--templates", folder / "templates"]
    for argument, said in (
        ("--compile-option=-march=native", "COMPILE_OPTIONS: option '-march=native' is not allowed"),
        ("--compile-option=-fpack-struct", "it changes the ABI"),
        ("--compile-option=-flto=auto", "a link has nothing left to optimise"),
        ("--compile-option=--coverage", "this option changes what it makes"),
        ("--compile-option=$<IF:1,-O2,-O3>", "the only generator expression that is understood"),
        ("--include-directory=/nowhere/at/all", "which is not a folder"),
        ("--link-library=no_such_library", "LINK_LIBRARIES: library 'no_such_library' is not found"),
    ):
        told = forks([*command, argument], env=env(folder), status=1)
        assert said in told
        assert "fix:" in told
        assert not os.path.lexists(folder / "other")
