"""CUDA kernels compiled for the host, and tensors for them; cuda_on_host/cuda_runtime.h stands in for CUDA."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from places import SHARED
from precompiled import include

HOST = SHARED / "cuda_on_host"
FAULTS = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")  # what a GPU would not load
FLAGS = ["-std=c++17", "-O1", "-w", "-fPIC", "-fno-gnu-unique", "-fno-strict-aliasing", *FAULTS]


class DLTensor(ctypes.Structure):
    """As in the prelude."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


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
    """A tensor's memory, with a guard zone of NaN on both sides, and its view in the logical shape.

    The view begins `skipped` elements past what is aligned.
    """

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
        self.memory = np.full(count * size + 256, 0xFF, np.uint8)
        self.begin, self.bytes = 64 + (-self.memory.ctypes.data) % 64, count * size
        self.flat = self.memory[self.begin : self.begin + self.bytes].view(unit)
        if values is not None:
            self.flat[:] = encode(values.standard_normal(count) * 2, dtype)
        self.view = np.lib.stride_tricks.as_strided(self.flat[-low:], shape, [s * size for s in strides])
        self.extents = np.array([shape, strides], np.int64)
        extents = self.extents.ctypes.data
        code = (4 if dtype == "bf16" else 2, size * 8, 1, 0)
        at = self.flat.ctypes.data - low * size
        self.tensor = DLTensor(at, (2, 0), len(shape), code, extents, extents + 8 * len(shape))

    def spare_is_untouched(self) -> bool:
        """Whether what is no element still is NaN; overwrites the elements."""
        outside = np.concatenate((self.memory[: self.begin], self.memory[self.begin + self.bytes :]))
        self.view[...] = np.iinfo(self.view.dtype).max
        return bool((outside == 0xFF).all() and (self.flat == np.iinfo(self.flat.dtype).max).all())


def shared_object(folder: Path, source: str) -> Path:
    """CUDA C++ compiled with the host's compiler, in a folder whose parent keeps what all share."""
    (folder / "kernel.cpp").write_text(source)
    flags = include(folder.parent, HOST / "cuda_runtime.h", [*FLAGS, "-I", str(HOST)])
    command = ["g++", *flags, "-shared", "kernel.cpp", "-o", "kernel.so", "-ldl"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "kernel.so"
