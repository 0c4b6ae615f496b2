"""What link writes, in full: a change of generated code shows in review. UPDATE_GOLDEN=1 writes the files anew."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sysconfig
from pathlib import Path

import linked
import linked_cuda
import pytest
from places import GOLDEN as ALL_GOLDEN

from aot_tune.link import (
    DecisionNode,
    LibrarySpec,
    LinkedVariant,
    OperatorTable,
    SeenCalls,
    TargetTable,
)
from aot_tune.link.emit.dispatch import render_dispatch
from aot_tune.link.emit.header import render_header
from aot_tune.link.emit.python_module import render_module
from aot_tune.link.emit.python_stub import render_stub
from aot_tune.link.manifest import render_manifest
from aot_tune.spec import problem, stride
from aot_tune.support.installed_paths import BINDING, RUNTIME

GOLDEN = ALL_GOLDEN / "link"


def golden_spec() -> LibrarySpec:
    def variant(name: str, level: int, digit: str, **more: object) -> LinkedVariant:
        return LinkedVariant(
            name=name,
            symbol=f"aot_tune_{name}",
            kernel=name,
            target="cpu-x86-64" + f"-v{level}" * (level > 1),
            level=level,
            object_path="",
            object_digest=digit * 64,
            **more,  # type: ignore[arg-type]
        )

    gemm = OperatorTable(
        operator=linked.gemm_operator(),
        variants=(
            variant("plain", 1, "1", generic=True),
            variant("packed", 4, "2", requires=(stride("b", 1) == 1,), config={"MR": 6, "PACK": True}),
        ),
        tables=(
            TargetTable(
                target="cpu-x86-64-v4",
                level=4,
                nodes=(
                    DecisionNode(fact="alignment.bias", threshold=16, below=1, above=2),
                    DecisionNode(leaf=(0,)),
                    DecisionNode(leaf=(1, 0)),
                ),
                tuned=(problem(M=16, N=64, K=64, present=("bias",), attributes={"activation": "relu"}),),
                seen=(SeenCalls(facts=(), dims={"M": (1, 64), "N": (64, 64), "K": (32, 4096)}),),
                processors=16,
            ),
        ),
    )
    norm = OperatorTable(operator=linked.norm_operator(), variants=(variant("norm", 1, "3", generic=True),))
    return LibrarySpec(operators=(gemm, norm), tools={"cxx": "1.0"}, devices=({"name": "a cpu"},), policy={"rounds": 3})


def cuda_spec() -> LibrarySpec:
    """One operator for CPUs in f32 and for CUDA in f32 and bf16."""
    rows = [("plain_cpu", {"target": "cpu-x86-64", "generic": True}), *linked_cuda.LAYOUT.items()]
    variants = {
        name: LinkedVariant(
            name=name,
            symbol=f"aot_tune_{name}",
            kernel=name.partition("_")[0],
            target=str(row["target"]),
            level=linked_cuda.level_of(str(row["target"])),
            last=int(str(row.get("last", 0))),
            dtypes={"T": str(row.get("dtype", "f32"))},
            requires=row.get("requires", ()),  # type: ignore[arg-type]
            generic=bool(row.get("generic")),
            notes=bool(row.get("notes")),
            object_path="",
            object_digest=str(index) * 64,
        )
        for index, (name, row) in enumerate(rows)
    }
    plain = variants.pop("plain_cpu")
    return LibrarySpec(operators=(linked_cuda.table(plain, variants),), header="aot_tune/cuda_ops.h", module="cuda_ops")


def rendered() -> dict[str, str]:
    """One of each kind; the dispatch is of two families and two dtypes."""
    spec = golden_spec()
    header = render_header(spec)
    return {
        "ops.h": header,
        "dispatch.cpp": render_dispatch(cuda_spec(), "{}\n"),
        "module.cpp": render_module(spec),
        "ops.pyi": render_stub(spec),
        "manifest.json": render_manifest(spec, {spec.header: header}),
    }


@pytest.mark.parametrize("name", sorted(rendered()))
def test_golden(name: str) -> None:
    text = rendered()[name]
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.mkdir(parents=True, exist_ok=True)
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text(), "see the difference, then run with UPDATE_GOLDEN=1"


def test_text_that_c_could_misread(tmp_path: Path) -> None:
    odd = 'ends "early" \\ ??/ and */ // \n\t é %s'
    operator = dataclasses.replace(linked.gemm_operator(), documentation=odd)
    table = dataclasses.replace(golden_spec().operators[0], operator=operator)
    spec = dataclasses.replace(golden_spec(), operators=(table,))
    (tmp_path / "aot_tune").mkdir()
    (tmp_path / "aot_tune" / "ops.h").write_text(render_header(spec))
    (tmp_path / "dispatch.cpp").write_text(render_dispatch(spec, odd))
    (tmp_path / "module.cpp").write_text(render_module(spec))
    folders = (tmp_path, RUNTIME, RUNTIME / "include", BINDING)
    flags = ["-std=c++17", "-trigraphs", "-Wall", "-Wextra", "-Werror", *(f"-I{f}" for f in folders)]
    flags += [f"-I{sysconfig.get_paths()['include']}", "-fsyntax-only"]
    for name in ("dispatch.cpp", "module.cpp"):
        subprocess.run(["g++", *flags, str(tmp_path / name)], check=True)
    compile(render_stub(spec), "ops.pyi", "exec")


HEADER_USE = """
#include "aot_tune/ops.h"
int main(void) {
  DLTensor t;
  aot_tune_exec exec = {NULL, NULL, 0};
  t.ndim = 0;
  (void)exec;
  return (int)t.ndim + AOT_TUNE_GEMM_ACTIVATION_NONE + aot_tune_last_error()[0];
}
"""
OWN_DLPACK = """
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_
#include <stdint.h>
typedef enum { kDLCPU = 1 } DLDeviceType;
typedef struct { DLDeviceType device_type; int32_t device_id; } DLDevice;
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
typedef struct { void* data; DLDevice device; int32_t ndim; DLDataType dtype; int64_t *shape, *strides;
                 uint64_t byte_offset; } DLTensor;
#endif
"""


@pytest.mark.parametrize("compiler", [["gcc", "-std=c11", "-x", "c"], ["g++", "-std=c++17", "-x", "c++"]])
@pytest.mark.parametrize("dlpack", ["none", "before", "findable"])
def test_the_header_is_c_and_cpp(tmp_path: Path, compiler: list[str], dlpack: str) -> None:
    (tmp_path / "aot_tune").mkdir()
    (tmp_path / "aot_tune" / "ops.h").write_text(render_header(golden_spec()))
    if dlpack == "findable":
        (tmp_path / "dlpack").mkdir()
        (tmp_path / "dlpack" / "dlpack.h").write_text(OWN_DLPACK)
    after = "#include <dlpack/dlpack.h>\n" if dlpack == "findable" else ""
    text = (OWN_DLPACK if dlpack == "before" else "") + HEADER_USE.replace("int main", after + "int main")
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{tmp_path}"]
    flags += [f"-I{RUNTIME / 'include'}", "-"]
    subprocess.run([*compiler, *flags], input=text, text=True, check=True)
