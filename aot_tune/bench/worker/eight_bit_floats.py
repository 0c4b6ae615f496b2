"""Floats of 8 bits in numpy, which has none: their patterns as uint8, and the values of the patterns.

f8e4m3 is the OCP's E4M3 (DLPack's float8_e4m3fn): no infinities, NaN is 0x7f and 0xff, the largest value is 448. f8e5m2
is its E5M2, as in IEEE: infinities are 0x7c and 0xfc, the largest value is 57344. Values that are too large, and
infinities, are stored as the largest value, like NVIDIA's conversions do (`.satfinite`).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aot_tune.spec import DType

__all__ = ["EightBits", "eight_bits"]

_NAN, _SIGN = 0x7F, 0x80


class EightBits(NamedTuple):
    """A format: bits of its fraction, the exponent of the least normal value, the pattern of the largest value."""

    fraction: int
    least_exponent: int
    largest: int

    @property
    def max(self) -> float:
        """The largest value."""
        return float(_values(self)[self.largest])

    @property
    def overflow(self) -> float:
        """From here on, a value would round to more than the largest one, if there were a next one."""
        return self.max + (self.max - float(_values(self)[self.largest - 1])) / 2

    @property
    def tiny(self) -> float:
        """The least normal value."""
        return float(2.0**self.least_exponent)

    def values(self, patterns: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The values of patterns."""
        found: NDArray[np.float32] = _values(self)[patterns]
        return found

    def patterns(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Values rounded to the nearest, ties to even. NaN stays NaN."""
        with np.errstate(invalid="ignore"):  # there may be signalling NaNs
            given = np.asarray(values, np.float64)
        nan = np.isnan(given)
        size = np.minimum(np.abs(np.where(nan, 0.0, given)), self.overflow)
        exponent = np.where(size < self.tiny, self.least_exponent, np.frexp(size)[1] - 1)
        steps = np.rint(np.ldexp(size, self.fraction - exponent)).astype(np.int32)
        found = np.minimum(steps + ((exponent - self.least_exponent) << self.fraction), self.largest)
        found = np.where(nan, _NAN, found | np.where(np.signbit(given), _SIGN, 0))
        return found.astype(np.uint8)


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
    sizes[patterns % _SIGN > form.largest + (form.largest < _NAN - 1)] = np.nan
    found: NDArray[np.float32] = np.where(patterns < _SIGN, sizes, -sizes).astype(np.float32)
    return found
