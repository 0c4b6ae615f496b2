"""Ridge regression of times on terms: for one variant, or for several that share slopes.

Sums are of integers, so they are exact in any order. All else is done element by element. So every machine learns the
same, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Moments", "moments_of", "slopes_of", "together"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_CONSTANT = 0.5
"""Standard deviation below which a term counts as constant."""


@dataclass(frozen=True)
class Moments:
    """What a regression needs to know about calls: how terms vary, with each other and with the times.

    Args:
        calls: how many there are.
        weight: the sum of their weights.
        means, mean: weighted means of the terms and of the times.
        spread, joint: covariances of the terms with each other and with the times.
    """

    calls: int
    weight: int
    means: Floats
    mean: float
    spread: Floats
    joint: Floats

    def base(self, slopes: Floats) -> float:
        """The time at which all terms are 0, with these slopes."""
        base = self.mean
        for slope, at in zip(slopes.tolist(), self.means.tolist(), strict=True):
            base -= slope * at
        return base


def moments_of(columns: Integers, logs: Integers, weights: Integers) -> Moments:
    """The moments of calls, given their terms [call, term], times and weights."""
    total = int(weights.sum())
    weighted = columns * weights[:, None]
    means = weighted.sum(axis=0) / total
    mean = int((weights * logs).sum()) / total
    return Moments(
        calls=len(logs),
        weight=total,
        means=means,
        mean=mean,
        spread=(weighted.T @ columns) / total - means[:, None] * means,
        joint=(weighted.T @ logs) / total - means * mean,
    )


def together(parts: Sequence[Moments]) -> Moments:
    """The moments of several variants' calls. Each variant has its own level, so only variation within one counts."""
    first, *others = parts
    total = sum(p.weight for p in parts)
    spread, joint = first.spread * first.weight, first.joint * first.weight
    for part in others:
        spread = spread + part.spread * part.weight
        joint = joint + part.joint * part.weight
    calls = sum(p.calls for p in parts)
    return Moments(calls, total, np.zeros_like(first.means), 0.0, spread / total, joint / total)


def slopes_of(moments: Moments, pull: float) -> Floats:
    """The slope of each term. `pull` counts as that many calls whose slopes are 0."""
    deviations = np.sqrt(np.maximum(moments.spread.diagonal(), 0.0))
    kept = np.flatnonzero(deviations > _CONSTANT)
    scale = deviations[kept]
    matrix = moments.spread[np.ix_(kept, kept)] / (scale[:, None] * scale)
    matrix[np.arange(len(kept)), np.arange(len(kept))] += pull / moments.calls
    slopes = np.zeros(len(deviations))
    slopes[kept] = _solve(matrix, moments.joint[kept] / scale) / scale
    return slopes


def _solve(matrix: Floats, right: Floats) -> Floats:
    """Gaussian elimination of a positive definite system, row by row. Libraries round differently by processor."""
    matrix, right = matrix.copy(), right.copy()
    size = len(right)
    for k in range(size):
        factors = matrix[k + 1 :, k] / matrix[k, k]
        matrix[k + 1 :] -= factors[:, None] * matrix[k]
        right[k + 1 :] -= factors * right[k]
    found = np.zeros(size)
    for k in reversed(range(size)):
        rest = float(right[k])
        for j in range(k + 1, size):
            rest -= float(matrix[k, j]) * float(found[j])
        found[k] = rest / float(matrix[k, k])
    return found
