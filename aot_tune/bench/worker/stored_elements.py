"""Elements of tensors in numpy arrays. numpy lacks bf16 and floats of 8 bits, so their bits are uint16 and uint8.

Code that draws, computes with, compares or passes on such elements converts them here. All other code moves bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.worker.rounded_arrays import round_fraction
from aot_tune.spec import DType

_NAN = np.uint16(0x7FC0)
_SHIFT = np.uint32(16)
_NAN_OF_8, _SIGN = 0x7F, 0x80


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
    values: NDArray[Any] = np.left_shift(wide, _SHIFT, out=wide).view(np.float32)
    return values


def stored_as(dtype: DType, values: NDArray[Any]) -> NDArray[Any]:
    """Numbers, rounded to the nearest of a dtype, as arrays hold them. NaN stays NaN."""
    if dtype.numpy:
        return values.astype(dtype.numpy, copy=False)
    if dtype.saturates:
        return eight_bits(dtype).patterns(values)
    narrow = round_fraction(values.astype(np.float32, copy=False), dtype.fraction)
    bits = (narrow.view(np.uint32) >> _SHIFT).astype(np.uint16)
    patterns: NDArray[Any] = np.where(np.isnan(narrow), _NAN, bits)
    return patterns


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
    """True values of a dtype. If it saturates, those beyond its range are cut off as far as their size matters."""
    if not dtype.saturates:
        return values
    limit = eight_bits(dtype).overflow
    clipped: NDArray[Any] = np.clip(values, -limit, limit)
    return clipped


class EightBits(NamedTuple):
    """A format of 8 bits: bits of its fraction, exponent of the least normal value, pattern of the largest value.

    f8e4m3 is the OCP's E4M3 (DLPack's float8_e4m3fn): no infinities, NaN is 0x7f and 0xff, the largest value is 448.
    f8e5m2 is its E5M2, as in IEEE: infinities are 0x7c and 0xfc, the largest value is 57344. Values that are too large,
    and infinities, are stored as the largest value, like NVIDIA's conversions do (`.satfinite`).
    """

    fraction: int
    least_exponent: int
    largest: int

    @property
    def max(self) -> float:
        return float(_values(self)[self.largest])

    @property
    def overflow(self) -> float:
        """From here on, a value would round to more than the largest one, if there were a next one."""
        return self.max + (self.max - float(_values(self)[self.largest - 1])) / 2

    @property
    def tiny(self) -> float:
        return float(2.0**self.least_exponent)

    def values(self, patterns: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The values of patterns."""
        numbers: NDArray[np.float32] = _values(self)[patterns]
        return numbers

    def patterns(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Values rounded to the nearest, ties to even. NaN stays NaN."""
        with np.errstate(invalid="ignore"):  # there may be signalling NaNs
            given = np.asarray(values, np.float64)
        nan = np.isnan(given)
        size = np.minimum(np.abs(np.where(nan, 0.0, given)), self.overflow)
        exponent = np.where(size < self.tiny, self.least_exponent, np.frexp(size)[1] - 1)
        steps = np.rint(np.ldexp(size, self.fraction - exponent)).astype(np.int32)
        patterns = np.minimum(steps + ((exponent - self.least_exponent) << self.fraction), self.largest)
        patterns = np.where(nan, _NAN_OF_8, patterns | np.where(np.signbit(given), _SIGN, 0))
        return patterns.astype(np.uint8)


_FORMATS = {
    "f8e4m3": EightBits(fraction=3, least_exponent=-6, largest=0x7E),
    "f8e5m2": EightBits(fraction=2, least_exponent=-14, largest=0x7B),
}


def eight_bits(dtype: DType) -> EightBits:
    """The format of a floating dtype of 8 bits."""
    return _FORMATS[dtype.name]


@cache
def _values(form: EightBits) -> NDArray[np.float32]:
    """The value of each of the 256 patterns."""
    patterns = np.arange(256)
    exponents, fractions = patterns % _SIGN >> form.fraction, patterns & ((1 << form.fraction) - 1)
    normal = exponents > 0
    wholes = fractions + np.where(normal, 1 << form.fraction, 0)
    sizes = np.ldexp(wholes.astype(np.float32), form.least_exponent - form.fraction + np.maximum(exponents - 1, 0))
    sizes[patterns % _SIGN == form.largest + 1] = np.inf
    sizes[patterns % _SIGN > form.largest + (form.largest < _NAN_OF_8 - 1)] = np.nan
    values: NDArray[np.float32] = np.where(patterns < _SIGN, sizes, -sizes).astype(np.float32)
    return values
