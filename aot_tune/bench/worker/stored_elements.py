"""Elements of tensors in numpy arrays. numpy lacks bf16 and floats of 8 bits, so their bits are uint16 and uint8.

Code that draws, computes with, compares or passes on such elements converts them here. All other code moves bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.worker.eight_bit_floats import eight_bits
from aot_tune.bench.worker.rounded_arrays import round_fraction
from aot_tune.spec import DType

__all__ = ["FloatLimits", "array_dtype", "cut_off", "epsilon_of", "least_errors", "limits_of", "stored_as", "values_of"]

_NAN = np.uint16(0x7FC0)
_SHIFT = np.uint32(16)


class FloatLimits(NamedTuple):
    """Limits of a floating dtype: the step above 1, the least normal number, the largest finite number."""

    eps: float
    tiny: float
    max: float


def array_dtype(dtype: DType) -> np.dtype[Any]:
    """The dtype of arrays that hold elements of a dtype."""
    return np.dtype(dtype.bits_as)


def values_of(dtype: DType, stored: NDArray[Any]) -> NDArray[Any]:
    """Elements as numbers: the array itself, or float32 for dtypes that numpy lacks."""
    if dtype.numpy:
        return stored
    if dtype.saturates:
        return eight_bits(dtype).values(stored)
    wide = stored.astype(np.uint32)
    found: NDArray[Any] = np.left_shift(wide, _SHIFT, out=wide).view(np.float32)
    return found


def stored_as(dtype: DType, values: NDArray[Any]) -> NDArray[Any]:
    """Numbers, rounded to the nearest of a dtype, as arrays hold them. NaN stays NaN."""
    if dtype.numpy:
        return values.astype(dtype.numpy, copy=False)
    if dtype.saturates:
        return eight_bits(dtype).patterns(values)
    narrow = round_fraction(values.astype(np.float32, copy=False), dtype.fraction)
    bits = (narrow.view(np.uint32) >> _SHIFT).astype(np.uint16)
    found: NDArray[Any] = np.where(np.isnan(narrow), _NAN, bits)
    return found


def limits_of(dtype: DType) -> FloatLimits:
    """The limits of floats of a dtype."""
    if dtype.saturates:
        return FloatLimits(2.0**-dtype.fraction, eight_bits(dtype).tiny, eight_bits(dtype).max)
    info = np.finfo(dtype.numpy or "float32")
    eps = 2.0**-dtype.fraction
    most = float(info.max) if dtype.numpy else 2.0**127 * (2.0 - eps)
    return FloatLimits(eps, float(info.tiny), most)


def least_errors(dtype: DType) -> tuple[float, float]:
    """The least error of rounding to a floating dtype: relative to a value, and for values near 0.

    These are a unit in the last place and the least normal number. For floats of 8 bits, a unit is an eighth or a
    quarter of the value, and no hardware flushes their subnormal numbers to 0. So there they are half a unit and the
    least step.
    """
    eps, tiny, _ = limits_of(dtype)
    return (eps / 2, eps * tiny) if dtype.saturates else (eps, tiny)


def epsilon_of(dtype: DType) -> float | None:
    """What results of two candidates are compared by, see `comparison.agree`. None for integers.

    It is the step above 1, and 16 of these may lie between them. For floats of 8 bits it is a 16th of that, since 16
    steps would be the value itself.
    """
    if not dtype.is_floating:
        return None
    return limits_of(dtype).eps / (16 if dtype.saturates else 1)


def cut_off(dtype: DType, values: NDArray[Any]) -> NDArray[Any]:
    """True values of a dtype.

    If the dtype saturates, values beyond its range are cut off, as far as their size matters.
    """
    if not dtype.saturates:
        return values
    limit = eight_bits(dtype).overflow
    found: NDArray[Any] = np.clip(values, -limit, limit)
    return found
