"""Kernels that work in place on a GPU: right ones are timed on what they were verified on, wrong ones are not kept."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from building import Library, build_project
from environments import environment, run

ADD_NORM = """
from aot_tune.spec import Baseline, Kernel, Operator, Parameter, Tensor, dims, problem

R, D = dims("R D")


def reference(xp, call):
    residual = 2 * call.residual + call.x
    return {"x": residual / xp.sqrt(xp.mean(residual * residual, axis=-1, keepdims=True) + 1e-5),
            "residual": residual}


def in_torch(torch, call):
    def step():
        call.residual.mul_(2).add_(call.x)
        torch.mul(call.residual, torch.rsqrt(call.residual.square().mean(-1, keepdim=True) + 1e-5), out=call.x)

    return step


operator = Operator(
    name="add_norm",
    dims=("R", "D"),
    tensors=(Tensor("x", (R, D), inout=True), Tensor("residual", (R, D), inout=True)),
    reference=reference,
    flops=5 * R * D,
    workload=(problem(R=16, D=1024), problem(R=4096, D=4096)),
    baselines=(Baseline("torch", "torch", in_torch),),
    kernels=(
        Kernel("generic", "add_norm/rows.cu.j2", backend="nvcc", generic=True),
        Kernel(
            "rows", "add_norm/rows.cu.j2", backend="nvcc", parameters=(Parameter("HOW", ("right", "idle", "more")),)
        ),
    ),
)
"""
ADD_NORM_ROWS = """
{% set how = HOW | default("right") %}
{{ prelude() }}
namespace {

// That what it is given was not restored shows in numbers that grow.
__global__ void add_norm(const __grid_constant__ Arguments args) {
  __shared__ float sums[256];
  const int64_t r = blockIdx.x;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < {{ dim("D") }}; i += 256) {
    const float old = {{ load("residual", ["r", "i"]) }};
    if (fabsf(old) > 1e6f && isfinite(old)) __trap();
    const float value = old * 2 + {{ load("x", ["r", "i"]) }} * {{ "2" if how == "more" else "1" }};
    {{ store("residual", ["r", "i"], "value") if how != "idle" else "" }}
    sum += value * value;
  }
  sums[threadIdx.x] = sum;
  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  __syncthreads();
  const float scale = rsqrtf(sums[0] / static_cast<float>({{ dim("D") }}) + 1e-5f);
  for (int64_t i = threadIdx.x; i < {{ dim("D") }}; i += 256) {
    {{ store("x", ["r", "i"], load("residual", ["r", "i"]) ~ " * scale") }}
  }
}

}  // namespace
{{ kernel_signature("preload") }} {
  cudaFuncAttributes a;
  return cudaFuncGetAttributes(&a, add_norm);
}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  const Arguments args = {{ pack() }};
  add_norm<<<static_cast<unsigned>(args.dim_R), 256, 0, static_cast<cudaStream_t>(stream)>>>(args);
  return cudaGetLastError();
}
"""

CALLS = """
import torch
import ops

for rows, width in ((16, 1024), (7, 333)):
    x, residual = (torch.randn(rows, width, device="cuda") for _ in range(2))
    wide = 2 * residual.double() + x.double()
    for _ in range(3):
        a, b = x.clone(), residual.clone()
        assert ops.add_norm(a, b) is None
        assert (b - wide).abs().max() < 1e-5
        assert (a - wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()).abs().max() < 1e-4
    graph = torch.cuda.CUDAGraph()
    a, b = x.clone(), residual.clone()
    with torch.cuda.graph(graph):
        ops.add_norm(a, b)
    a.copy_(x), b.copy_(residual)
    graph.replay()
    assert (b - wide).abs().max() < 1e-5
    try:
        ops.add_norm(x, x)
    except ops.ArgumentValueError as error:
        assert "overlaps" in str(error), error
    else:
        raise SystemExit("memory that overlaps was taken")
print("all is right")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, import_path: str) -> Library:
    folder = tmp_path_factory.mktemp("in_place")
    own = folder / "templates" / "add_norm"
    own.mkdir(parents=True)
    (own / "operator.py").write_text(ADD_NORM)
    (own / "rows.cu.j2").write_text(ADD_NORM_ROWS)
    return build_project(folder, folder / "templates", import_path)


def test_right_kernels_are_timed_on_what_they_were_verified_on(library: Library) -> None:
    """One that is not given what it reads and writes as it was would trap after some twenty calls."""
    kept: Any = library.variants()
    assert {v["kernel"] for v in kept["add_norm"]} <= {"generic", "rows"}
    assert re.search(r"R=4096 D=4096 .*torch", library.log)
    assert "crashed" not in library.log


@pytest.mark.parametrize("how", ["idle", "more"])
def test_wrong_kernels_are_dropped(library: Library, how: str) -> None:
    words = rf"dropped rows HOW={how}: wrong-result( on 2 problems)?: (x|residual)\[\d+, \d+\]: got"
    assert re.search(words, library.log), library.log


def test_calls_change_tensors_in_place(library: Library, tmp_path: Path) -> None:
    script = tmp_path / "calls.py"
    script.write_text(CALLS)
    given = environment(PYTHONPATH=f"{library.module.parent}:{library.import_path}")
    assert run([sys.executable, "-B", script], env=given) == "all is right\n"
