"""Whole builds of operators whose dims come from integers, outputs and expressions, with values by functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cuda_project import FAKE, Made, build
from environments import environment, run
from project import Project
from triton_record import why_no_triton

TOP = """
from aot_tune.spec import Kernel, Operator, Parameter, Scalar, Tensor, dims, parameter, problem, stride

M, N, K = dims("M N K")
operator = Operator(
    name="top",
    dims=("M", "N", "K"),
    tensors=(Tensor("x", (M, 2 * N), read=M * K), Tensor("out", (M, K), output=True)),
    scalars=(Scalar("count", "i64", binds="K"),),
    legal=(K <= N,),
    reference=lambda xp, call: {"out": call.x[:, : call.count]},
    flops=M * K,
    workload=(problem(M=64, N=512, K=64),),
    kernels=(
        Kernel("generic", "top/generic.cpp.j2", generic=True),
        Kernel(
            "unrolled",
            "top/unrolled.cpp.j2",
            parameters=(Parameter("U", (4, 8)),),
            requires=(K % parameter("U") == 0, stride("x", 1) == 1, stride("out", 1) == 1),
        ),
    ),
)
"""

# The generic one takes long, so that there is no doubt which one is kept.
TOP_GENERIC = """{{ prelude() }}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  for (int t = 0; t < 20; ++t) {
    for (int64_t i = 0; i < {{ dim("M") }}; ++i) {
      for (int64_t j = 0; j < {{ dim("K") }}; ++j) {
        {{ store("out", ["i", "j"], load("x", ["i", "j"])) }}
      }
    }
    asm volatile("" ::: "memory");
  }
  return 0;
}
"""

TOP_UNROLLED = """{{ prelude() }}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  for (int64_t i = 0; i < {{ dim("M") }}; ++i) {
    for (int64_t j = 0; j < {{ dim("K") }}; j += {{ U }}) {
{{ unroll(U) }}
      for (int64_t u = 0; u < {{ U }}; ++u) {
        {{ store("out", ["i", "j + u"], load("x", ["i", "j + u"])) }}
      }
    }
  }
  return 0;
}
"""

PAGED = """
from aot_tune.spec import Kernel, Operator, Tensor, drawn, dims, integers, parameter, problem

B, P = dims("B P")


def lengths(rng, call):
    return rng.integers(call.least, 16 * (call.P // call.B), endpoint=True)


def table(rng, call):
    return rng.permutation(call.P)[: call.B * call.shape[1]].reshape(call.shape)


def reference(xp, call):
    at = xp.arange(16 * call.table.shape[1], dtype=call.lengths.dtype)
    rows = xp.reshape(call.pages[call.table], (call.table.shape[0], -1))
    return {"out": xp.sum(xp.where(at < call.lengths[:, None], rows, 0 * rows), axis=1)}


operator = Operator(
    name="paged",
    dims=("B", "P"),
    tensors=(
        Tensor("least", (B,), "i32", values=integers(1, 17)),
        Tensor("lengths", (B,), "i32", values=drawn(lengths)),
        Tensor("pages", (P, 16)),
        Tensor("table", (B, P // B), "i32", values=drawn(table)),
        Tensor("out", (B,), output=True),
    ),
    legal=(P >= B,),
    reference=reference,
    flops=16 * P,
    workload=(problem(B=4, P=200),),
    kernels=(
        Kernel("generic", "paged/generic.cpp.j2", generic=True),
    ),
)
"""

# A page that no table names, or a length below the least, would be a status of the kernel.
PAGED_GENERIC = """{{ prelude() }}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  for (int64_t b = 0; b < {{ dim("B") }}; ++b) {
    const int64_t length = {{ load("lengths", ["b"]) }};
    if (length < {{ load("least", ["b"]) }}) return 7;
    double sum = 0;
    for (int64_t at = 0; at < length; ++at) {
      const int64_t page = {{ load("table", ["b", "at / 16"]) }};
      if (page < 0 || page >= {{ dim("P") }}) return 8;
      sum += {{ load("pages", ["page", "at % 16"]) }};
    }
    {{ store("out", ["b"], "sum") }}
  }
  return 0;
}
"""

CALLS = """
import json
import numpy as np
import ops

x = np.random.default_rng(1).standard_normal((5, 64), np.float32)
out = ops.top(x, count=16)
assert np.array_equal(out, x[:, :16])
assert np.array_equal(ops.top(x, count=7), x[:, :7])
print(ops.explain("top", x, count=16)["kernel"], ops.explain("top", x, count=7)["kernel"])
print(ops.explain("top", x, count=7)["rejected"][0].partition(": ")[2])
for wrong in (lambda: ops.top(x, count=33), lambda: ops.top(x[:, :63].copy(), count=3), lambda: ops.top(x, count=-1)):
    try:
        wrong()
    except ops.ArgumentValueError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project.make(
        tmp_path_factory.mktemp("declared") / "project", arguments="MODULE ops", AOT_TUNE_EFFORT="quick"
    )
    files = {
        "top": {"operator.py": TOP, "generic.cpp.j2": TOP_GENERIC, "unrolled.cpp.j2": TOP_UNROLLED},
        "paged": {"operator.py": PAGED, "generic.cpp.j2": PAGED_GENERIC},
    }
    for name, texts in files.items():
        (made.templates / name).mkdir()
        for file, text in texts.items():
            (made.templates / name / file).write_text(text)
    made.cmake("-DAOT_TUNE_FILTER=top/*")
    made.make_all()
    return made


def variants(project: Project, name: str) -> list[Any]:
    manifest = json.loads((project.folder / "cmake" / "aot_tune" / "tiny" / "manifest.json").read_bytes())
    return next(o["variants"] for o in manifest["operators"] if o["name"] == name)


def test_operators_are_tuned_and_verified_with_such_dims(project: Project) -> None:
    guards = {v["config"].get("U"): v["requires"] for v in variants(project, "top") if v["kernel"] == "unrolled"}
    assert guards
    assert all(f"((K % {u}) == 0)" in requires for u, requires in guards.items())
    said = run([sys.executable, "-c", CALLS], env=environment(PYTHONPATH=str(project.folder / "cmake")))
    used, refused, *errors = said.splitlines()
    assert used == "unrolled generic"
    assert refused in ("((K % 4) == 0)", "((K % 8) == 0)")
    assert errors == [
        "top: not a call that it takes: (K <= N) must hold, and K is 33, N is 32",
        "top: tensor 'x': axis 1 has extent 63, which is (2 * N) for no N, as in [M, (2 * N)]",
        "top: 'count' is -1, wanted an extent of the dim K: 0 or more",
    ]


def test_inputs_that_depend_on_each_other_are_drawn_for_every_check(project: Project) -> None:
    """The kernel refuses others by a status, which would have ended the build."""
    assert [v["kernel"] for v in variants(project, "paged")] == ["generic"]


KERNELS = """
import triton
import triton.language as tl


@triton.jit
def masked(x, bias, out, columns, x_row, out_row, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * x_row + at, mask=at < columns, other=0.0)
        if HAS_BIAS:
            value += tl.load(bias + at, mask=at < columns, other=0.0)
        if CAUSAL:
            value = tl.where(at <= row, value, 0.0)
        tl.store(out + row * out_row + at, value, mask=at < columns)
"""

MASKED = """
from aot_tune.spec import Attribute, Kernel, Operator, Tensor, TritonFunction, attribute, dims, present, problem, stride

M, N = dims("M N")


def reference(xp, call):
    raise AssertionError("nothing is measured")


function = TritonFunction(
    "kernels.py:masked",
    {
        "columns": N,
        "x_row": stride("x", 0),
        "out_row": stride("out", 0),
        "CAUSAL": attribute("causal") == 1,
        "HAS_BIAS": present("bias"),
        "BLOCK": 256,
    },
    grid=(M,),
)
operator = Operator(
    name="masked",
    dims=("M", "N"),
    tensors=(Tensor("x", (M, N)), Tensor("bias", (N,), optional=True), Tensor("out", (M, N), output=True)),
    attributes=(Attribute("causal", ("no", "yes")),),
    legal=(stride("x", 1) == 1, stride("out", 1) == 1, stride("bias", 0) == 1),
    reference=reference,
    flops=M * N,
    workload=(problem(M=4, N=64),),
    kernels=(Kernel("generic", backend="triton", generic=True, triton=function, listed=({"num_warps": 4},)),),
)
"""

CASES = """
stub = ctypes.CDLL("libcuda.so.1")
stub.stub_log.restype = ctypes.c_char_p
x, out, bias = (OnGpu(np.zeros(shape, "f4")) for shape in ((4, 64), (4, 64), 64))
for round in range(2):
    for given, causal in ((None, "no"), (bias, "no"), (None, "yes"), (bias, "yes")):
        before = len(stub.stub_log())
        ops.masked(x, given, causal=causal, out=out)
        told = ops.explain("masked", x, given, causal=causal, out=out)
        print(told["variant"], stub.stub_log()[before:].decode().strip().replace("\\n", "; "))
"""


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("masked")
    (folder / "templates" / "masked").mkdir(parents=True)
    (folder / "templates" / "kernels.py").write_text(KERNELS)
    (folder / "templates" / "masked" / "operator.py").write_text(MASKED)
    return build(
        folder / "project",
        templates=(folder / "templates",),
        operators=("masked",),
        MODE="generic",
        TARGETS="cuda-sm_90a",
    )


@pytest.mark.skipif(bool(why_no_triton()), reason=why_no_triton())
def test_a_generic_triton_kernel_has_a_code_for_each_combination(masked: Made, tmp_path: Path) -> None:
    found = masked.variants("masked")
    assert len(found) == 4
    assert len({v["device"] for v in found.values()}) == 4
    assert all(v["generic"] for v in found.values())
    source = Path(__file__).with_name("triton_driver.cpp")
    flags = ["-std=c++17", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["g++", *flags, source, "-o", tmp_path / "libcuda.so.1"], check=True)
    path = os.pathsep.join([str(masked.folder), *(p for p in sys.path if p)])
    said = run([sys.executable, "-c", FAKE + CASES], env=environment(PYTHONPATH=path, LD_LIBRARY_PATH=str(tmp_path)))
    first, again = (said.splitlines()[i : i + 4] for i in (0, 4))
    assert {line.split()[0] for line in first} == set(found)
    for line, same in zip(first, again, strict=True):
        name, _, log = line.partition(" ")
        assert log == "load ptx; masked 4,1,1 x 128"
        assert same == f"{name} masked 4,1,1 x 128"
    guards = [found[line.split()[0]]["requires"] for line in first]
    for wanted, requires in zip(((0, 0), (1, 0), (0, 1), (1, 1)), guards, strict=True):
        assert requires == [f"(present.bias == {wanted[0]})", f"(attribute.causal == {wanted[1]})"]
