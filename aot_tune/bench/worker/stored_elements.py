"""Elements of tensors in arrays of numpy, which has no bf16: there its bits are kept as uint16.

Whoever draws, computes with, compares or hands on such elements converts them here; all others move bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.worker.rounded_arrays import round_fraction
from aot_tune.spec import DType

__all__ = ["FloatLimits", "array_dtype", "limits_of", "stored_as", "values_of"]

_NAN = np.uint16(0x7FC0)
_SHIFT = np.uint32(16)


class FloatLimits(NamedTuple):
    """Of a floating dtype: the step above 1, the least normal number, the largest finite one."""

    eps: float
    tiny: float
    max: float


def array_dtype(dtype: DType) -> np.dtype[Any]:
    """What arrays hold elements of a dtype as."""
    return np.dtype(dtype.numpy or "uint16")


def values_of(dtype: DType, stored: NDArray[Any]) -> NDArray[Any]:
    """Elements as numbers: the array itself, but float32 for bf16."""
    if dtype.numpy:
        return stored
    found: NDArray[Any] = (stored.astype(np.uint32) << _SHIFT).view(np.float32)
    return found


def stored_as(dtype: DType, values: NDArray[Any]) -> NDArray[Any]:
    """Numbers, rounded to the nearest of a dtype, as arrays hold them. NaN stays NaN."""
    if dtype.numpy:
        return values.astype(dtype.numpy, copy=False)
    narrow = round_fraction(values.astype(np.float32, copy=False), dtype.fraction)
    bits = (narrow.view(np.uint32) >> _SHIFT).astype(np.uint16)
    found: NDArray[Any] = np.where(np.isnan(narrow), _NAN, bits)
    return found


def limits_of(dtype: DType) -> FloatLimits:
    """What floats of a dtype end at."""
    info = np.finfo(dtype.numpy or "float32")
    eps = 2.0**-dtype.fraction
    most = float(info.max) if dtype.numpy else 2.0**127 * (2.0 - eps)
    return FloatLimits(eps, float(info.tiny), most)
