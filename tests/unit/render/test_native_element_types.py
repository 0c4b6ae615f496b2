"""Functions of the author's with scalars of all kinds: their types, and values that do not fit."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from authors import FIELDS, OnHost, project, rendered

SCALARS = '(Scalar("flag", "bool"), Scalar("small", "i8"), Scalar("seed", "u64"), Scalar("count", "u16"))'
SOURCE = """
template <typename T>
__global__ void tell(float* out, const T* x, bool flag, signed char small, long long seed, int count) {
  out[0] = flag ? 1 : 2;
  out[1] = small;
  out[2] = static_cast<float>(seed >> 60);
  out[3] = static_cast<float>(count + (x == nullptr));
}
"""
KERNELS = (
    '(Kernel("generic", function=CudaFunction("own.cu:tell", {}, grid=1, block=1, template={"T": DTypeOf("x")}), '
    "generic=True),)"
)


def test_scalars_of_all_kinds_are_passed_or_left_to_the_next_variant(tmp_path: Path) -> None:
    """A number that a parameter's type does not hold is for another kernel."""
    fields = FIELDS.replace('(Scalar("factor"),)', SCALARS).replace("call.x * call.factor", "call.x")
    own = project(tmp_path, KERNELS, {"own.cu": SOURCE}, fields=fields)
    call = OnHost(tmp_path / "host", rendered(own, "generic", "cuda-sm_90a")[1])
    for seed, status in ((2**63 - 1, 0), (2**63, -100)):
        out = np.zeros((1, 4), np.float32)
        scalars = (ctypes.c_bool(False), ctypes.c_int8(-7), ctypes.c_uint64(seed), ctypes.c_uint16(65535))
        assert call((np.zeros((1, 4), np.float32), out), *scalars) == status
        assert out[0].tolist() == ([0] * 4 if status else [2, -7, 7, 65535])
