"""Tensors by numbers, as a call's checks get them."""

from __future__ import annotations

import ctypes

BF16, F32, F64 = (4, 16), (2, 32), (2, 64)


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


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
        row = ctypes.c_int64 * len(shape)
        steps = row(*strides) if strides is not None else None
        place = data + _LOWEST if 0 < data < _LOWEST else data
        self.tensor = Tensor(place, (2, device), len(shape), *dtype, lanes, row(*shape), steps, offset)
        self.text = f"{data} {shape} {strides} {dtype} {lanes} {device} {offset}"

    def __repr__(self) -> str:
        return self.text
