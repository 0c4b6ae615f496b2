"""CUDA kernels compiled for the host, and tensors for them; cuda_on_host/cuda_runtime.h stands in for CUDA."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from dltensors import tensor_of
from numpy.typing import NDArray
from places import SHARED
from precompiled import include

HOST = SHARED / "cuda_on_host"
FAULTS = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")  # what a GPU would not load
FLAGS = ["-std=c++17", "-O1", "-w", "-fPIC", "-fno-gnu-unique", "-fno-strict-aliasing", *FAULTS]


def encode(values: NDArray[np.float64], dtype: str) -> NDArray[np.uint16] | NDArray[np.uint32]:
    """Values rounded to a dtype, as bits."""
    single = values.astype(np.float32)
    if dtype == "f16":
        return single.astype(np.float16).view(np.uint16)
    bits = single.view(np.uint32)
    if dtype == "f32":
        return bits
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(single), 0x7FC0, rounded).astype(np.uint16)


def decode(bits: NDArray[np.uint16] | NDArray[np.uint32], dtype: str) -> NDArray[np.float64]:
    if dtype == "f16":
        return bits.view(np.float16).astype(np.float64)
    wide = bits if dtype == "f32" else bits.astype(np.uint32) << 16
    return wide.view(np.float32).astype(np.float64)


class Stored:
    """A tensor's memory and its view in the logical shape, which begins `skipped` elements past what is aligned."""

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: Sequence[int],
        dtype: str,
        values: np.random.Generator | None,
        skipped: int = 0,
    ):
        low = sum(min(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True)) - skipped
        count = sum(max(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True)) - low + 1
        unit = np.uint32 if dtype == "f32" else np.uint16
        size = np.dtype(unit).itemsize
        self.memory = np.full(count * size + 64, 0xFF, np.uint8)
        begin = -self.memory.ctypes.data % 64
        self.flat = self.memory[begin : begin + count * size].view(unit)
        if values is not None:
            self.flat[:] = encode(values.standard_normal(count) * 2, dtype)
        self.view = np.lib.stride_tricks.as_strided(self.flat[-low:], shape, [s * size for s in strides])
        code = (4 if dtype == "bf16" else 2, size * 8)
        self.tensor = tensor_of(self.flat.ctypes.data - low * size, (2, 0), shape, strides, code)


def shared_object(folder: Path, source: str) -> Path:
    """CUDA C++ compiled with the host's compiler, in a folder whose parent keeps what all share."""
    (folder / "kernel.cpp").write_text(source)
    flags = include(folder.parent, HOST / "cuda_runtime.h", [*FLAGS, "-I", str(HOST)])
    command = ["g++", *flags, "-shared", "kernel.cpp", "-o", "kernel.so", "-ldl"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "kernel.so"
