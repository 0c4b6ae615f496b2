"""Libraries and candidates as the worker loads them, and what it makes of their codes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aot_tune.bench.worker.loaded_objects import Arguments, LaunchError, LoadError, load
from aot_tune.spec import Kernel, Operator, Tensor, dims, problem

SOURCE = """
#include <cstddef>
#include <cstdint>
#include <cstring>
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT int32_t lib_copy(void*, void*, void*) { return 0; }
EXPORT int32_t lib_copy_workspace(void*, void*, size_t* size) { *size = 64; return 0; }
EXPORT int32_t lib_copy_explain(void*, void*, void*, char* text, size_t room) {
  std::strncpy(text, "variant: rows\\n", room);
  return EXPLAINED;
}
EXPORT const char* lib_last_error() { return "no device"; }
"""
(N,) = dims("N")
OPERATOR = Operator(
    name="copy",
    dims=("N",),
    tensors=(Tensor("x", (N,)), Tensor("out", (N,), output=True)),
    reference=lambda xp, call: {"out": call.x},
    flops=N,
    workload=(problem(N=1),),
    kernels=(Kernel("generic", "copy/generic.cpp.j2", generic=True),),
)


@pytest.fixture(autouse=True)
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What loading sets in the environment is undone."""
    monkeypatch.setenv("AOT_TUNE_FORCE", "")


def arguments() -> Arguments:
    return Arguments(OPERATOR, {"x": 64, "out": 128}, {"x": (1,), "out": (1,)}, {"x": (1,), "out": (1,)}, {}, {})


def library(folder: Path, explained: int) -> Path:
    (folder / "lib.cpp").write_text(SOURCE.replace("EXPLAINED", str(explained)))
    path = folder / "lib.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", path, folder / "lib.cpp"], check=True, timeout=60)
    return path


def test_a_library_that_answers_with_the_variant_is_taken(tmp_path: Path) -> None:
    loaded = load(library(tmp_path, 0), "lib_copy", "copy:rows")
    assert loaded.workspace_bytes(arguments()) == 64


def test_a_library_that_answers_with_another_variant_is_refused(tmp_path: Path) -> None:
    loaded = load(library(tmp_path, 0), "lib_copy", "copy:columns")
    with pytest.raises(LaunchError, match="lib_copy answers with rows, not with columns"):
        loaded.workspace_bytes(arguments())


def test_the_code_of_a_library_that_cannot_explain_is_told_with_its_words(tmp_path: Path) -> None:
    loaded = load(library(tmp_path, 7), "lib_copy", "copy:rows")
    with pytest.raises(LaunchError, match="lib_copy_explain returned 7: no device"):
        loaded.workspace_bytes(arguments())


def test_a_function_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"lib\.so lacks a function: .*other_workspace"):
        load(library(tmp_path, 0), "other")


def test_what_a_candidate_refuses_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "one.cpp").write_text(
        "#include <cstddef>\n#include <cstdint>\n"
        'extern "C" int32_t one_workspace(void*, void*, size_t*) { return -100; }\n'
        'extern "C" int32_t one_launch(void*, void*, void*) { return 0; }\n'
    )
    path = tmp_path / "one.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", path, tmp_path / "one.cpp"], check=True, timeout=60)
    with pytest.raises(LaunchError, match=r"one_workspace returned -100 \(it cannot serve this call: .*does not fit"):
        load(path, "one").workspace_bytes(arguments())
