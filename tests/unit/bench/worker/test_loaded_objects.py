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
  return 0;
}
EXPORT int32_t lib_mute(void*, void*, void*) { return 0; }
EXPORT int32_t lib_mute_workspace(void*, void*, size_t* size) { *size = 64; return 0; }
EXPORT int32_t lib_mute_explain(void*, void*, void*, char*, size_t) { return 7; }
EXPORT int32_t one_launch(void*, void*, void*) { return 0; }
EXPORT int32_t one_workspace(void*, void*, size_t*) { return -100; }
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


WRONG = (
    ("lib_copy", "copy:columns", "lib_copy answers with rows, not with columns"),
    ("lib_mute", "mute:rows", "lib_mute_explain returned 7: no device"),
    ("one", "", r"one_workspace returned -100 \(it cannot serve this call: .*does not fit"),
)


def test_what_a_library_answers_is_taken_or_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOT_TUNE_FORCE", "")  # what loading sets is undone
    (tmp_path / "lib.cpp").write_text(SOURCE)
    path = tmp_path / "lib.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", path, tmp_path / "lib.cpp"], check=True, timeout=60)
    arguments = Arguments(OPERATOR, {"x": 64, "out": 128}, {"x": (1,), "out": (1,)}, {"x": (1,), "out": (1,)}, {}, {})
    assert load(path, "lib_copy", "copy:rows").workspace_bytes(arguments) == 64
    for symbol, variant, told in WRONG:
        with pytest.raises(LaunchError, match=told):
            load(path, symbol, variant).workspace_bytes(arguments)
    with pytest.raises(LoadError, match=r"lib\.so lacks a function: .*other_workspace"):
        load(path, "other")
