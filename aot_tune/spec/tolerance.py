"""How far off a result may be: times the error of a computation that rounds as kernels do, or a step of integers."""

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
"""Times the error of the yardstick, where an operator does not say otherwise."""

TOLERANCE_OF_8_BITS = 2.0
"""The same of outputs in floats of 8 bits, of which four times the rounding is a quarter or a half of the value."""

INTERMEDIATES = ("f32", "f16", "bf16")
"""What a kernel's intermediate results may be declared to be rounded to."""

FLOATING = (2, 4, 10, 12)
"""DLPack's codes of floating-point dtypes."""


@dataclass(frozen=True)
class OffBy:
    """That integers may be off by `most`, in at most a `share` of an output's elements; see `off_by`."""

    most: int
    share: float = 1.0


Tolerance = float | OffBy | Mapping[str, float | OffBy]
"""Of all outputs, or by output; those that are not named have the default."""


def off_by(most: int, *, share: float = 1.0) -> OffBy:
    """Integers (or bools, by 1) that may be off by `most`, in at most a `share` of an output's elements.

    A kernel that rounds to integers meets ties, and what is as good as one, in another way than the reference does.

    Raises:
        SpecError: when `most` is no positive integer, or `share` not above 0 and at most 1.
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise SpecError(f"off_by({most!r}) is no step of integers", fix="give how far off one may be, such as 1")
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise SpecError(f"off_by: share {share!r} is not a share", fix="give a number above 0, at most 1")
    return OffBy(most, float(share))


def narrowest(dtypes: Iterable[DType]) -> DType:
    """The narrowest floating dtype among some, of those that are as narrow the one with fewer bits of fraction.

    It is f32 where none is narrower, and where none is floating. Floats of 8 bits do not count: values are stored in
    them, nobody computes with so few.
    """
    found = [d for d in dtypes if d.code in FLOATING and not d.saturates]
    return min((DTYPES["f32"], *found), key=lambda d: (d.bits, d.fraction))
