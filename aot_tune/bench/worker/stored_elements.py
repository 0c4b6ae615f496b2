"""Elements of tensors in arrays of numpy, which lacks bf16 and floats of 8 bits: their bits are uint16 and uint8.

Whoever draws, computes with, compares or hands on such elements converts them here; all others move bits.
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
    """Of a floating dtype: the step above 1, the least normal number, the largest finite one."""

    eps: float
    tiny: float
    max: float


def array_dtype(dtype: DType) -> np.dtype[Any]:
    """What arrays hold elements of a dtype as."""
    return np.dtype(dtype.bits_as)


def values_of(dtype: DType, stored: NDArray[Any]) -> NDArray[Any]:
    """Elements as numbers: the array itself, but float32 for what numpy lacks."""
    if dtype.numpy:
        return stored
    if dtype.saturates:
        return eight_bits(dtype).values(stored)
    found: NDArray[Any] = (stored.astype(np.uint32) << _SHIFT).view(np.float32)
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
    """What floats of a dtype end at."""
    if dtype.saturates:
        return FloatLimits(2.0**-dtype.fraction, eight_bits(dtype).tiny, eight_bits(dtype).max)
    info = np.finfo(dtype.numpy or "float32")
    eps = 2.0**-dtype.fraction
    most = float(info.max) if dtype.numpy else 2.0**127 * (2.0 - eps)
    return FloatLimits(eps, float(info.tiny), most)


def least_errors(dtype: DType) -> tuple[float, float]:
    """What rounding to a floating dtype may cost at least: relative to a value, and of values near 0.

    It is a unit in the last place and the least normal number. Of floats of 8 bits a unit is an eighth or a quarter of
    the value, and no hardware takes their subnormal numbers for 0: there it is half a unit, and the least step.
    """
    eps, tiny, _ = limits_of(dtype)
    return (eps / 2, eps * tiny) if dtype.saturates else (eps, tiny)


def epsilon_of(dtype: DType) -> float | None:
    """What results of two candidates are compared by, see `comparison.agree`; None of integers.

    It is the step above 1, of which 16 may lie between them; of floats of 8 bits one, since more would be the value.
    """
    if not dtype.is_floating:
        return None
    return limits_of(dtype).eps / (16 if dtype.saturates else 1)


def cut_off(dtype: DType, values: NDArray[Any]) -> NDArray[Any]:
    """True values of a dtype that saturates as far as it matters how large they are; of others as they are."""
    if not dtype.saturates:
        return values
    limit = eight_bits(dtype).overflow
    found: NDArray[Any] = np.clip(values, -limit, limit)
    return found
