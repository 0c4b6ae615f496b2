"""What times say: how far they spread, what is noise, and which of two from the same rounds is less."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_CLEAR, _EXACT = 0.02, 0.01
"""What is behind by less than the former may win yet, unless its distance is known to within the latter."""


def spread(samples: Sequence[float]) -> float:
    """Interquartile range over the median; 0 for fewer than four samples."""
    if len(samples) < 4:
        return 0.0
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / middle if middle > 0 else math.inf


def median_error(samples: Sequence[float]) -> float:
    """Relative standard error of the median, for normal noise: about 0.93 interquartile ranges over sqrt(count)."""
    return 0.93 * spread(samples) / math.sqrt(len(samples)) if samples else 0.0


def paired_gain(old: Sequence[float], new: Sequence[float]) -> tuple[float, float]:
    """How much faster `new` is than `old` in the same rounds: the median of 1 - new/old, and its standard error."""
    ratios = [b / a for a, b in zip(old, new, strict=True)]
    middle = statistics.median(ratios)
    return 1.0 - middle, middle * median_error(ratios)


def is_decided(rounds: Sequence[Sequence[float]]) -> bool:
    """Whether more rounds would hardly change which runner is the fastest, by the times of each in the same rounds.

    Each of the others is behind by more than 2 % and three standard errors, or its distance is known within one
    percent.
    """
    first = min(rounds, key=statistics.median)
    behind = (paired_gain(other, first) for other in rounds if other is not first)
    return all(gain > max(_CLEAR, 3 * error) or error < _EXACT for gain, error in behind)


def without_drift(rounds: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """The times of several runners in the same rounds, without what changed all of them, such as a clock.

    A round's pace is the median, over the runners, of a time divided by its runner's median. Every time is divided by
    its round's pace. Without this, each median would be of the pace that its runner met in the middle.
    """
    middles = [statistics.median(r) for r in rounds]
    paces = [statistics.median(t / m for t, m in zip(turn, middles, strict=True)) for turn in zip(*rounds, strict=True)]
    return [tuple(t / p for t, p in zip(r, paces, strict=True)) for r in rounds]


def steady_rounds(clocks: Sequence[float], change: float, least: int) -> list[int]:
    """Which rounds to keep, by the device's clock in each round. 0 is an unknown clock.

    Rounds are kept if their clock is unknown, or within the share `change` of the median of the known ones. If these
    are fewer than `least`, the rounds that come nearest to it are kept too.
    """
    known = [c for c in clocks if c]
    if not known:
        return list(range(len(clocks)))
    middle = statistics.median_low(known)
    off = [abs(c - middle) / middle if c else 0.0 for c in clocks]
    nearest = sorted(range(len(clocks)), key=lambda i: off[i])
    return sorted(i for rank, i in enumerate(nearest) if off[i] <= change or rank < least)
