"""Compares results with true values, element by element, in arrays of numpy or tensors of torch."""

from __future__ import annotations

from typing import Any

from aot_tune.bench.worker.reference_results import Bounds

__all__ = ["FAR_OFF", "compare"]

FAR_OFF = 1e30
"""The error, in tolerances, of a value that is not comparable; finite, since JSON has no infinity."""


def compare(
    xp: Any, name: str, got: Any, want: Any, bounds: Bounds, highest: float, block: int = 1 << 16
) -> tuple[str, float]:
    """Compare an output with the truth, in float64 or int64; NaN and infinities must be where the truth has them.

    Overflow to infinity is right where the truth is beyond `highest`. Returns what is wrong with the worst element, or
    an empty text, and the largest error in tolerances.

    Args:
        xp: numpy or torch, which both arrays are of.
        name: of the output, for what is wrong.
        got, want: of one shape; bools as bytes.
        bounds: how far off a value may be.
        highest: the largest finite value of the output's dtype.
        block: so many elements are compared at a time.
    """
    values, wanted = got.reshape(-1), want.reshape(-1)
    worst, place, wrong = 0.0, 0, 0
    for start in range(0, values.shape[0], block):
        ratio = _ratios(xp, values[start : start + block], wanted[start : start + block], bounds, highest)
        here = int(xp.argmax(ratio))
        wrong += int((ratio > 1).sum())
        if float(ratio[here]) > worst:
            worst, place = float(ratio[here]), start + here
    if not wrong:
        return "", worst
    index: list[int] = []
    rest = place
    for extent in reversed(got.shape):
        index.insert(0, rest % extent)
        rest //= extent
    true, found = wanted[place].item(), values[place].item()
    found = float(found) if isinstance(true, float) else int(found)
    allowed = bounds.absolute + bounds.relative * abs(true)
    return (
        f"{name}[{', '.join(map(str, index))}]: got {found!r}, want {true!r}, "
        f"tolerance {allowed:.3g}; {wrong} of {values.shape[0]} elements are wrong"
    ), worst


def _ratios(xp: Any, value: Any, exact: Any, bounds: Bounds, highest: float) -> Any:
    """Errors in tolerances; `FAR_OFF` where there is nothing to compare."""
    if exact.dtype == xp.int64:
        return xp.where(value == exact, 0.0, FAR_OFF)
    value, exact = xp.asarray(value, dtype=xp.float64), xp.asarray(exact, dtype=xp.float64)
    ratio = xp.abs(value - exact) / (xp.abs(exact) * bounds.relative + (bounds.absolute + 5e-324))
    finite = xp.isfinite(ratio)
    if finite.all():
        return ratio
    overflow = (xp.abs(exact) > highest) & xp.isinf(value) & (xp.sign(exact) == xp.sign(value))
    fine = (xp.isnan(value) & xp.isnan(exact)) | (value == exact) | overflow
    return xp.where(finite, ratio, xp.where(fine, 0.0, FAR_OFF))
