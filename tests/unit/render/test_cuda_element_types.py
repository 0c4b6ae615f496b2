"""Element types and scalars in CUDA templates: what is rendered, that nvcc takes it, and what conversions give."""

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvcc_sources import MISSING, TOOLCHAIN
from small_operators import make_operator

from aot_tune.compile import target_by_name
from aot_tune.render import Renderer, candidate_for
from aot_tune.spec import Kernel, Operator, Scalar, Tensor, dims, dtype

(N,) = dims("N")
KERNEL = """
{{ prelude() }}

namespace {

__global__ void convert(const __grid_constant__ Arguments args) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= {{ dim("N") }} || !args.flag) return;
  const float value = {{ load("x", ["i"]) }};
  {{ store("wide", ["i"], "value") }}
  {{ store("rounded", ["i"], load("wide", ["i"])) }}
  const uint64_t key = {{ load("keys", ["i"]) }};
  const int16_t step = {{ load("steps", ["i"]) }};
  {{ store("sums", ["i"], "key + static_cast<uint64_t>(step) + args.seed") }}
}

}  // namespace

{{ no_workspace() }}

{{ kernel_signature("preload") }} {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, convert);
}

{{ kernel_signature("launch") }} {
  const Arguments args = {{ pack() }};
  convert<<<1, 256, 0, static_cast<cudaStream_t>(stream)>>>(args);
  return cudaGetLastError();
}
"""
# The conversions that kernels call, on the host: they are of both.
ON_HOST = """
extern "C" __attribute__((visibility("default"))) void widen(const uint8_t* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_float(reinterpret_cast<const TYPE*>(from)[i]);
}
extern "C" __attribute__((visibility("default"))) void narrow(const float* from, uint8_t* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) reinterpret_cast<TYPE*>(to)[i] = from_float<TYPE>(from[i]);
}
"""
FORMATS = ("f8e4m3", "f8e5m2")


def operator(format_: str) -> Operator:
    """An operator of one floating dtype beside f32 and integers, with scalars of few bits."""
    tensors = (
        Tensor("x", (N,), format_),
        Tensor("keys", (N,), "u64"),
        Tensor("steps", (N,), "i16"),
        Tensor("wide", (N,), output=True),
        Tensor("rounded", (N,), format_, output=True),
        Tensor("sums", (N,), "u64", output=True),
    )
    scalars = (Scalar("flag", "bool", True), Scalar("seed", "u8", 3))
    generic = Kernel("generic", "convert.cu.j2", generic=True)
    return make_operator(name="convert", extents="N", tensors=tensors, scalars=scalars, kernels=(generic,))


def source(folder: Path, format_: str, target: str = "cuda-sm_90a") -> str:
    (folder / "convert.cu.j2").write_text(KERNEL)
    op, one = operator(format_), target_by_name(target)
    return Renderer([folder]).render(op, candidate_for(op, op.kernel("generic"), {}, one), one).source


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("format_", FORMATS)
def test_conversions_are_torch_s(tmp_path: Path, format_: str) -> None:
    """Also for GPUs that have no instructions for it."""
    torch: Any = pytest.importorskip("torch")
    theirs = getattr(torch, dtype(format_).torch)
    text = source(tmp_path, format_) + ON_HOST.replace("TYPE", dtype(format_).cuda)
    (tmp_path / "candidate.cu").write_text(text)
    command = [*TOOLCHAIN.toolkit().command, "-std=c++17", "-arch=sm_80", "-shared", "-Xcompiler", "-fPIC"]
    subprocess.run([*command, "candidate.cu", "-o", "one.so"], cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "one.so"))
    patterns = np.arange(256, dtype=np.uint8)
    values = torch.from_numpy(patterns).view(theirs).float().numpy()
    wide = np.zeros(256, np.float32)
    library.widen(patterns.ctypes, wide.ctypes, ctypes.c_int64(256))
    np.testing.assert_array_equal(wide, values)
    known = np.sort(values[np.isfinite(values)])
    middle = known[:-1] / 2 + known[1:] / 2
    beside = [np.nextafter(middle, np.float32(limit)) for limit in (-np.inf, np.inf)]
    given = np.concatenate([known, middle, *beside, np.array([1e30, -1e30, np.inf, -np.inf, np.nan, -0.0], np.float32)])
    got = np.zeros(given.size, np.uint8)
    library.narrow(given.ctypes, got.ctypes, ctypes.c_int64(given.size))
    largest = float(torch.finfo(theirs).max)
    want = torch.from_numpy(given).clamp(-largest, largest).to(theirs)
    np.testing.assert_array_equal(torch.from_numpy(got).view(theirs).float().numpy(), want.float().numpy())
