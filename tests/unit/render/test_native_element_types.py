"""Functions of the author's with tensors of f8 and scalars of all kinds: their types, and values that do not fit."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from authors import FIELDS, OnHost, project, rendered

SCALARS = '(Scalar("flag", "bool"), Scalar("small", "i8"), Scalar("seed", "u64"), Scalar("count", "u16"))'
SOURCE = """
template <typename T>
__global__ void tell(float* out, const T* x, bool flag, signed char small, SEED seed, int count) {
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


def made(folder: Path, seed: str, dtype: str = "f32", target: str = "cuda-sm_90a") -> Any:
    fields = FIELDS.replace('(Scalar("factor"),)', SCALARS).replace(
        'Tensor("x", (R, D))', f'Tensor("x", (R, D), "{dtype}")'
    )
    fields = fields.replace("call.x * call.factor", "call.x")
    own = project(folder, KERNELS, {"own.cu": SOURCE.replace("SEED", seed)}, fields=fields)
    return rendered(own, "generic", target)[1]


def passed(folder: Path, seed_type: str, seed: int) -> tuple[int, list[float]]:
    call = OnHost(folder / "host", made(folder, seed_type))
    out = np.zeros((1, 4), np.float32)
    scalars = (ctypes.c_bool(False), ctypes.c_int8(-7), ctypes.c_uint64(seed), ctypes.c_uint16(65535))
    return call((np.zeros((1, 4), np.float32), out), *scalars), out[0].tolist()


def test_scalars_of_all_kinds_are_passed(tmp_path: Path) -> None:
    assert passed(tmp_path, "unsigned long long", 2**64 - 1) == (0, [2, -7, 15, 65535])


@pytest.mark.parametrize(("seed", "code"), [(2**63 - 1, 0), (2**63, -100)])
def test_a_number_that_a_parameter_does_not_hold_goes_to_the_next_variant(tmp_path: Path, seed: int, code: int) -> None:
    assert passed(tmp_path, "long long", seed)[0] == code
