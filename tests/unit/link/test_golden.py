"""What link writes, in full: a change of generated code shows in review. UPDATE_GOLDEN=1 writes the files anew."""

import dataclasses
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import linked
import pytest
from places import GOLDEN as ALL_GOLDEN

from aot_tune.link import LibrarySpec, OperatorTable, RegimeCalls, TargetTable
from aot_tune.link.dispatch import render_dispatch
from aot_tune.link.interfaces import render_header, render_module, render_stub, render_tables
from aot_tune.link.manifest import render_manifest
from aot_tune.select import Rule
from aot_tune.select.decide import UNLIMITED
from aot_tune.spec import Kernel, Operator, Tensor, dim, problem, stride
from aot_tune.support.installed_paths import BINDING, RUNTIME

GOLDEN = ALL_GOLDEN / "link"


def variant(name: str, target: str, level: int, **more: Any) -> linked.NamedVariant:
    return linked.made_by_hand(name, target, level, digest=f"{level % 10}" * 64, **more)


def golden_spec() -> LibrarySpec:
    gemm = OperatorTable(
        operator=linked.gemm_operator(),
        variants=(
            variant("plain", "cpu-x86-64", 1, generic=True),
            variant("packed", "cpu-x86-64-v4", 4, requires=(stride("b", 1) == 1,), config={"MR": 6, "PACK": True}),
        ),
        tables=(
            TargetTable(
                target="cpu-x86-64-v4",
                level=4,
                rest=(0,),
                tuned=(problem(M=16, N=64, K=64, present=("bias",), attributes={"activation": "relu"}),),
                exact=((1, 0),),
                regimes=(RegimeCalls(dims={"M": (1, 64), "N": (64, 64), "K": (32, 4096)}),),
                processors=16,
            ),
        ),
    )
    norm = OperatorTable(operator=linked.norm_operator(), variants=(variant("norm", "cpu-x86-64", 1, generic=True),))
    return LibrarySpec(operators=(gemm, norm), tools={"cxx": "1.0"}, devices=({"name": "a cpu"},), policy={"rounds": 3})


def small_spec() -> LibrarySpec:
    """One operator of one tensor, in f32 for CPUs, and for CUDA in f32 and bf16."""
    n = dim("N")
    twice = Operator(
        name="twice",
        dims=("N",),
        tensors=(Tensor("x", (n,), "T", inout=True),),
        dtypes={"T": ("f32", "bf16")},
        reference=lambda xp, call: {},
        flops=n,
        regimes={"short": (n <= 64,)},
        workload={"cpu": (problem(N=8),), "cuda": (problem(N=8),)},
        kernels=(
            Kernel("plain", "twice/plain.cpp.j2", generic=True, dtypes={"T": ("f32",)}),
            Kernel("cuda_plain", "twice/plain.cu.j2", generic=True, backend="nvcc"),
        ),
    )
    single, half = {"dtypes": {"T": "f32"}}, {"dtypes": {"T": "bf16"}}
    variants = (
        variant("plain", "cpu-x86-64", 1, generic=True, **single),
        variant("plain_cuda", "cuda-ptx_80", 80, generic=True, **single),
        variant("plain_half", "cuda-ptx_80", 80, generic=True, **half),
        variant("vendor", "cuda-sm_90a", 90, last=90, requires=(n % 4 == 0,), **single),
    )
    table = TargetTable(
        target="cuda-sm_90a",
        level=90,
        last=90,
        rest=(3, 1, 2),
        tuned=(problem(N=8),),
        exact=((3, 1),),
        surveyed=((problem(N=400, dtypes={"T": "bf16"}), (2,)), (problem(N=4), (1, 3))),
        regimes=(
            RegimeCalls(facts=(("dtype.T", 0),), regime="short", dims={"N": (4, 8)}, rule=Rule("nearest")),
            RegimeCalls(facts=(("dtype.T", 1),), dims={"N": (400, 400)}, rule=Rule("vendor", UNLIMITED)),
        ),
    )
    return LibrarySpec(
        operators=(
            OperatorTable(operator=twice, variants=variants, tables=(table,), noting=frozenset({"aot_tune_vendor"})),
        )
    )


def rendered() -> dict[str, str]:
    """One of each kind; the dispatch is of two families and two dtypes."""
    spec = golden_spec()
    header = render_header(spec)
    return {
        "ops.h": header,
        "dispatch.cpp": render_dispatch(small_spec(), "{}\n"),
        "operator_tables.h": render_tables(spec),
        "module.cpp": render_module(spec),
        "ops.pyi": render_stub(spec),
        "manifest.json": render_manifest(spec, {spec.header: header}),
    }


@pytest.mark.parametrize(
    "name", ["ops.h", "dispatch.cpp", "operator_tables.h", "module.cpp", "ops.pyi", "manifest.json"]
)
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
    (tmp_path / "operator_tables.h").write_text(render_tables(spec))
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


@pytest.mark.parametrize("dlpack", ["none", "before", "findable"])
def test_the_header_is_c_and_cpp(tmp_path: Path, dlpack: str) -> None:
    (tmp_path / "aot_tune").mkdir()
    (tmp_path / "aot_tune" / "ops.h").write_text(render_header(golden_spec()))
    if dlpack == "findable":
        (tmp_path / "dlpack").mkdir()
        (tmp_path / "dlpack" / "dlpack.h").write_text(OWN_DLPACK)
    after = "#include <dlpack/dlpack.h>\n" if dlpack == "findable" else ""
    text = (OWN_DLPACK if dlpack == "before" else "") + HEADER_USE.replace("int main", after + "int main")
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{tmp_path}"]
    flags += [f"-I{RUNTIME / 'include'}", "-"]
    for compiler in (["gcc", "-std=c11", "-x", "c"], ["g++", "-std=c++17", "-x", "c++"]):
        subprocess.run([*compiler, *flags], input=text, text=True, check=True)
