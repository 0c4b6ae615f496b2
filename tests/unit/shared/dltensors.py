"""DLPack's tensor, and tensors by numbers, as a call's checks get them."""

import ctypes
from collections.abc import Sequence

import numpy as np

BF16, F32, F64 = (4, 16), (2, 32), (2, 64)


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


def tensor_of(
    data: int,
    device: tuple[int, int],
    shape: Sequence[int],
    strides: Sequence[int] | None,
    dtype: tuple[int, int],
    lanes: int = 1,
    offset: int = 0,
) -> Tensor:
    """A tensor that keeps its extents."""
    row = ctypes.c_int64 * len(shape)
    kept = [row(*shape), *([] if strides is None else [row(*strides)])]
    shape_at, strides_at = [*map(ctypes.addressof, kept), None][:2]
    made = Tensor(data, device, len(shape), *dtype, lanes, shape_at, strides_at, offset)
    made.kept = kept
    return made


_LOWEST = 1 << 20
"""Libraries take what lies near 0 for a view of no memory."""


class Given:
    """A tensor by numbers; no memory is touched. A small `data` counts from where memory may be; 0 is NULL."""

    def __init__(
        self,
        data: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        dtype: tuple[int, int] = BF16,
        lanes: int = 1,
        device: int = 0,
        offset: int = 0,
    ) -> None:
        place = data + _LOWEST if 0 < data < _LOWEST else data
        self.tensor = tensor_of(place, (2, device), shape, strides, dtype, lanes, offset)
        self.text = f"{data} {shape} {strides} {dtype} {lanes} {device} {offset}"

    def __repr__(self) -> str:
        return self.text


class _Managed(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


class OnDevice:
    """Host memory that says it is on a device, through __dlpack__ alone; `streams` is what it was asked for."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (2, 0), code: int = 2) -> None:
        self.array, self.device, self.streams = array, device, []  # type: ignore[var-annotated]
        strides = [s // array.itemsize for s in array.strides]
        made = tensor_of(array.ctypes.data, device, array.shape, strides, (code, array.itemsize * 8))
        self.managed = _Managed((1, 0), None, None, 0, made)
        self.shape, self.strides = made.kept

    @property
    def tensor(self) -> Tensor:
        found: Tensor = self.managed.tensor
        return found

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] = (1, 0)) -> object:
        del max_version
        self.streams.append(stream)
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self.managed), b"dltensor_versioned", None)
