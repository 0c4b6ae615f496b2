"""How far off a result may be: by a multiple of the error of a computation that rounds as kernels do, or by a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aot_tune.spec.dtypes import DTYPES, DType
from aot_tune.support.errors import SpecError

__all__ = [
    "DEFAULT_TOLERANCE",
    "FLOATING",
    "INTERMEDIATES",
    "TOLERANCE_OF_8_BITS",
    "OffBy",
    "Tolerance",
    "narrowest",
    "off_by",
]

DEFAULT_TOLERANCE = 4.0
"""How many times the yardstick's error a result may be off by default."""

TOLERANCE_OF_8_BITS = 2.0
"""The same for outputs in floats of 8 bits. Four times their rounding is a quarter or a half of the value."""

INTERMEDIATES = ("f32", "f16", "bf16")
"""The dtypes that a kernel's intermediate results may be declared to be rounded to."""

FLOATING = (2, 4, 10, 12)
"""DLPack's codes of floating-point dtypes."""


@dataclass(frozen=True)
class OffBy:
    """Integers may be off by `most`, in at most a `share` of an output's elements; see `off_by`."""

    most: int
    share: float = 1.0


Tolerance = float | OffBy | Mapping[str, float | OffBy]
"""One tolerance for all outputs, or one by output. Outputs that are not named have the default."""


def off_by(most: int, *, share: float = 1.0) -> OffBy:
    """Integers may be off by `most` (bools by 1), in at most a `share` of an output's elements.

    A kernel that rounds to integers may decide ties and near ties differently from the reference.

    Raises:
        SpecError: when `most` is not a positive integer, or `share` is not above 0 and at most 1.
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise SpecError(f"off_by({most!r}) is not a step of integers", fix="give how far off one may be, such as 1")
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise SpecError(f"off_by: share {share!r} is not a share", fix="give a number above 0, at most 1")
    return OffBy(most, float(share))


def narrowest(dtypes: Iterable[DType]) -> DType:
    """The narrowest floating dtype of some. Among equally narrow ones, it is the one with fewer bits of fraction.

    It is f32 if none is narrower or floating. Floats of 8 bits do not count: values are stored in them, but nobody
    computes in them.
    """
    found = [d for d in dtypes if d.code in FLOATING and not d.saturates]
    return min((DTYPES["f32"], *found), key=lambda d: (d.bits, d.fraction))
