"""Compares results with true values, element by element, in numpy arrays or torch tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.worker.reference_results import Bounds
from aot_tune.bench.worker.stored_elements import limits_of, values_of
from aot_tune.spec import FLOATING, OffBy, Tensor

FAR_OFF = 1e30
"""The error, in tolerances, of a value that cannot be compared. It is finite, since JSON has no infinity."""

_TIMES = 16.0
_STEP, _SHARE = 2, 0.1
"""A right kernel may be off by some tolerances, or by a step in a few elements. Beyond this, a result is wrong."""


def compare(
    xp: Any, name: str, got: Any, want: Any, bounds: Bounds, highest: float, block: int = 1 << 16
) -> tuple[str, float]:
    """Compare an output with the truth, in float64 or whole 64 bits.

    NaN and infinities must be where the truth has them. Overflow to infinity is right if the truth is beyond `highest`.
    Returns two things. The first is what is wrong with the worst element, and what could be declared if the element is
    right, or an empty text. The second is the largest error in tolerances.

    Args:
        xp: numpy or torch. Both arrays are of this kind.
        name: of the output, for the text.
        got, want: arrays of the same shape. Bools are bytes.
        bounds: how far off a value may be.
        highest: the largest finite value of the output's dtype.
        block: how many elements are compared at a time.
    """
    values, wanted = got.reshape(-1), want.reshape(-1)
    worst, at, wrong, other = 0.0, 0, 0, 0
    for start in range(0, values.shape[0], block):
        ratio = _ratios(xp, values[start : start + block], wanted[start : start + block], bounds, highest)
        worst_at = int(xp.argmax(ratio))
        wrong += int((ratio > 1).sum())
        other += int((ratio > 0).sum()) if bounds.share < 1 else 0
        if float(ratio[worst_at]) > worst:
            worst, at = float(ratio[worst_at]), start + worst_at
    share = other / max(1, values.shape[0])
    if not wrong and other <= math.ceil(bounds.share * values.shape[0]):  # even of a few elements, one may be off
        return "", worst
    index = ", ".join(map(str, _index(at, got.shape)))
    true, value = wanted[at].item(), values[at].item()
    whole = not isinstance(value, float)
    value = float(value) if isinstance(true, float) else int(value)
    where = f"{name}[{index}]: got {value!r}, want {true!r}"
    if not wrong:
        return (
            f"{where}; {other} of {values.shape[0]} elements ({share:.2%}) are off, but only {bounds.share:.2%} may be"
            f"{_advice(name, bounds, 1.0, share, whole=True)}"
        ), share / bounds.share
    allowed = bounds.absolute + bounds.relative * abs(true)
    off = abs(value - true) if whole else worst
    times = "" if whole or not bounds.factor or worst >= FAR_OFF else f"{worst:.3g} times the "
    return (
        f"{where}, {times}tolerance {allowed:.3g}; {wrong} of {values.shape[0]} elements are wrong"
        f"{_advice(name, bounds, off, max(wrong, other) / values.shape[0], whole)}"
    ), worst


def compare_stored(tensor: Tensor, got: NDArray[Any], want: NDArray[Any], bounds: Bounds) -> tuple[str, float]:
    """See `compare`. `got` holds what `stored_elements` says."""
    # Only one of the bytes that numpy takes for true is right.
    got = got.view(np.uint8) if got.dtype.kind == "b" else got
    highest = limits_of(tensor.dtype).max if tensor.dtype.code in FLOATING else np.inf
    with np.errstate(all="ignore"):
        return compare(np, tensor.name, values_of(tensor.dtype, got), want, bounds, highest)


def _index(offset: int, shape: Any) -> list[int]:
    index: list[int] = []
    for extent in reversed(shape):
        index.insert(0, offset % extent)
        offset //= extent
    return index


def _advice(name: str, bounds: Bounds, off: float, share: float, whole: bool) -> str:
    """What could be declared if this result is right: a little more than what was seen."""
    if whole:
        if not off <= _STEP or share > _SHARE:
            return ""
        most = min(1.0, math.ceil(share * 200) / 100)
        declared = f"off_by({max(int(off), int(bounds.absolute), 1)}, share={most:g})"
    elif bounds.factor and off <= _TIMES:
        declared = f"{math.ceil(bounds.factor * off * 1.25):g}"
    else:
        return ""
    return f'; if a right kernel is as far off, declare tolerance={{"{name}": {declared}}}'


def _ratios(xp: Any, value: Any, exact: Any, bounds: Bounds, highest: float) -> Any:
    """Errors in tolerances, or `FAR_OFF` if there is nothing to compare."""
    if exact.dtype in (xp.int64, xp.uint64):  # in float64, large integers that differ by 1 may look equal
        step = xp.asarray(xp.where(value > exact, value - exact, exact - value), dtype=xp.float64)
        step = xp.where(step < 0.0, step + 2.0**64, step)  # the difference of two int64 needs one more bit
        return xp.where(value == exact, 0.0, step / bounds.absolute if bounds.absolute else FAR_OFF)
    value, exact = xp.asarray(value, dtype=xp.float64), xp.asarray(exact, dtype=xp.float64)
    ratio = xp.abs(value - exact) / (xp.abs(exact) * bounds.relative + (bounds.absolute + 5e-324))
    finite = xp.isfinite(ratio)
    if finite.all():
        return ratio
    overflow = (xp.abs(exact) > highest) & xp.isinf(value) & (xp.sign(exact) == xp.sign(value))
    fine = (xp.isnan(value) & xp.isnan(exact)) | (value == exact) | overflow
    return xp.where(finite, ratio, xp.where(fine, 0.0, FAR_OFF))


def agree(name: str, got: Any, want: Any, epsilon: float | None, step: OffBy | None = None) -> str:
    """How the results of two candidates differ by more than rounding may explain. Empty if they do not.

    This only looks for failures on odd shapes and verifies nothing. It accepts differences of up to 16 times the
    rounding of the largest value, or up to 2^-8 of that value.

    Args:
        name: of the output.
        got, want: arrays of numpy or tensors of torch, of one shape and dtype.
        epsilon: of their dtype, or None for integers and bools. Those must be equal.
        step: by how much integers may be off the truth. Two results may then differ by twice as much.
    """
    if epsilon is None:
        near = bool((got == want).all())
        if not near and step is not None:
            off = abs(got * 1.0 - want * 1.0)
            few = int((off > 0).sum()) <= math.ceil(2 * step.share * math.prod(got.shape))
            near = few and float(off.max()) <= 2 * step.most
        return "" if near else f"{name!r} is not what another candidate computes"
    if not math.prod(got.shape):
        return ""
    off, limit = float(abs(got - want).max()), _rounding(want, epsilon)
    if off <= limit:  # a comparison with NaN is false
        return ""
    return f"{name!r} is off by {off:.3g} from what another candidate computes; {limit:.3g} is allowed"


def is_off(got: Any, want: Any, epsilon: float) -> bool:
    """Whether numbers differ by more than `agree` accepts."""
    return bool(math.prod(got.shape)) and bool((abs(got - want) > _rounding(want, epsilon)).any())


def _rounding(want: Any, epsilon: float) -> float:
    """The differences that rounding may explain."""
    return max(16 * epsilon, 2.0**-8) * float(abs(want).max())


class SurveyedOutput(NamedTuple):
    """A copy of an output's values, in a dtype that holds their differences, and its own dtype's epsilon, if any.

    `step` is by how much integers may be off.
    """

    values: Any
    epsilon: float | None
    step: OffBy | None = None


class SurveyedResults:
    """The first candidate's results on the problem at hand."""

    def __init__(self) -> None:
        self._key, self._kept = "", dict[str, SurveyedOutput]()

    def compare(self, key: str, outputs: Mapping[str, SurveyedOutput], *, first: bool) -> str:
        """What is wrong with results on a problem, or empty. The `first` results are kept."""
        if first:
            self._key, self._kept = key, dict(outputs)
        if self._key != key:
            raise KeyError(f"no candidate was surveyed first on {key}")
        faults = (agree(n, o.values, self._kept[n].values, o.epsilon, o.step) for n, o in outputs.items())
        return next(filter(None, faults), "")
