"""Another family of devices is one more file of the runtime, and nothing else."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import linked

from aot_tune.link import DecisionNode, TargetTable, generate
from aot_tune.support.installed_paths import RUNTIME

BACKEND = """
#include <cstdlib>
#include "runtime.h"
namespace aot_tune {
namespace {
int32_t level(int32_t id) noexcept { return id == 9 ? -fail(AOT_TUNE_ERROR_DEVICE, "toy 9 is broken") : 10 + id; }
int32_t workspace(int32_t id, void* stream, size_t size, Workspace* taken) noexcept {
  alignas(64) static char memories[4096];
  taken->memory = id == 0 && stream != nullptr && size <= sizeof memories ? memories : nullptr;
  return taken->memory != nullptr ? AOT_TUNE_OK : fail(AOT_TUNE_ERROR_MEMORY, "no toy memory");
}
}  // namespace
extern const Backend backend_toy;
const Backend backend_toy = {"toy", 12, level, workspace};
}  // namespace aot_tune
"""

PROGRAM = """
#include <cstdio>
#include <initializer_list>
#include "aot_tune/ops.h"
int main() {
  float x[4] = {1, 1, 1, 1}, y[4] = {2, 2, 2, 2}, z[4];
  int64_t shape[2] = {2, 2};
  int stream = 0;
  for (int type : {1, 12, 13}) {
    for (int id : {0, 1, 9}) {
      DLTensor a{x, {static_cast<DLDeviceType>(type), id}, 2, {2, 32, 1}, shape, nullptr, 0}, b = a, out = a;
      b.data = y;
      out.data = z;
      z[0] = -1;
      aot_tune_exec exec{&stream, nullptr, 0};
      const int status = aot_tune_gemm(&a, &b, nullptr, nullptr, &out, 0, &exec);
      std::printf("%d:%d %d %g %s\\n", type, id, status, z[0], status != 0 ? aot_tune_last_error() : "");
    }
  }
}
"""


def test_a_family_of_its_own(built: linked.Built, tmp_path: Path) -> None:
    gemm, norm = built.spec.operators
    toy = tuple(
        linked.variant(tmp_path, linked.GEMM, name, target=target, level=level, generic=generic, mark=mark, scratch=200)
        for name, target, level, generic, mark in (
            ("toy_plain", "toy-1", 0, True, "100"),
            ("toy_fast", "toy-11", 11, False, "200"),
        )
    )
    variants = (*(v for v in gemm.variants if v.generic), *toy)
    table = TargetTable(target="toy-11", level=11, nodes=(DecisionNode(leaf=(2,)),))
    operators = (dataclasses.replace(gemm, variants=variants, tables=(table,)), norm)
    made = generate(dataclasses.replace(built.spec, operators=operators), tmp_path / "out")
    (tmp_path / "toy.cpp").write_text(BACKEND)
    (tmp_path / "program.cpp").write_text(PROGRAM)
    sources = [tmp_path / "program.cpp", tmp_path / "toy.cpp", made.dispatch]
    objects = sorted((built.library.parent / "library").glob("[!0]*.o"))  # the runtime's
    assert len(objects) >= len(linked.runtime_sources()) - 1
    flags = ["-std=c++17", f"-I{tmp_path / 'out'}", f"-I{RUNTIME}", f"-I{RUNTIME / 'include'}"]
    wrapped = ["-Wl,--wrap=GOMP_parallel", "-fopenmp"]
    subprocess.run(["g++", *flags, *sources, *objects, made.archive, *wrapped, "-o", tmp_path / "program"], check=True)
    out = subprocess.run([str(tmp_path / "program")], check=True, capture_output=True, text=True).stdout
    assert [line.rstrip() for line in out.splitlines()] == [
        "1:0 0 4",
        "1:1 0 4",
        "1:9 0 4",
        "12:0 0 104",  # level 10: no table, so the family's generic variant, in the backend's workspace
        "12:1 10 -1 no toy memory",
        "12:9 4 -1 toy 9 is broken",
        *(
            f"13:{i} 4 -1 gemm: tensors are on DLPack device 13:{i}, for which this library has no variants; "
            "AOT_TUNE_TARGETS of its build chooses its devices"
            for i in (0, 1, 9)
        ),
    ]
