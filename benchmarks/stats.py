"""Medians of rounds, their spread, means of ratios, and tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Timing", "best", "geometric_mean", "markdown", "paired_ratio"]


@dataclass(frozen=True)
class Timing:
    """Times of one way to compute a problem: the median ns per call of each round."""

    name: str
    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """ns per call."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """Half of the interquartile range of the rounds, as a share of the median; NaN for a single round."""
        if len(self.rounds) < 2:
            return math.nan
        low, _, high = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return (high - low) / 2 / self.median


def best(timings: Sequence[Timing]) -> Timing:
    """The fastest by median."""
    return min(timings, key=lambda t: t.median)


def paired_ratio(other: Timing, ours: Timing) -> float:
    """Our speed over that of `other`: the median over rounds of the ratio within each round."""
    return statistics.median(o / t for o, t in zip(other.rounds, ours.rounds, strict=True))


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; NaN if there are no values."""
    logs = [math.log(v) for v in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def markdown(head: Sequence[str], left: int, rows: Iterable[Sequence[object]]) -> str:
    """A table whose columns after the first `left` are aligned to the right."""
    rule = [":--" if i < left else "--:" for i in range(len(head))]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (head, rule, *rows))
