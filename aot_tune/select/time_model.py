"""A variant's expected time on a call: a weighted sum of its terms, corrected by small trees, all in integers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["LOG_UNIT", "SHIFT", "TimeModel", "Tree", "log_of"]

LOG_UNIT = 4096
"""Expected and measured times are log2 of ns, in 1/4096."""
SHIFT = 16
"""Weights have this many fractional bits."""


class Tree(msgspec.Struct, frozen=True, array_like=True):
    """Three questions whether a term reaches a cut. The answers, first to last, are the bits of a leaf's number."""

    terms: tuple[int, int, int]
    cuts: tuple[int, int, int]
    leaves: tuple[int, int, int, int, int, int, int, int]


class TimeModel(msgspec.Struct, frozen=True, kw_only=True):
    """Expected log2 ns of a variant in 1/4096. `error` is its standard error on held-out calls.

    `terms` are the numbers of the variant's terms that are used. `weights` belong to these, and trees number these from
    0.
    """

    terms: tuple[int, ...]
    weights: tuple[int, ...]
    base: int
    trees: tuple[Tree, ...]
    error: int = 0

    def expected(self, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """The expected values for calls, given all of the variant's terms [call, term]."""
        used = columns[:, list(self.terms)]
        total = np.full(len(columns), self.base, dtype=np.int64)
        for number, weight in enumerate(self.weights):
            total += weight * used[:, number]
        total >>= SHIFT
        for tree in self.trees:
            leaf = np.zeros(len(columns), dtype=np.int64)
            for term, cut in zip(tree.terms, tree.cuts, strict=True):
                leaf = 2 * leaf + (used[:, term] >= cut)
            total += np.array(tree.leaves, dtype=np.int64)[leaf]
        return total


def log_of(times: Sequence[float]) -> NDArray[np.int64]:
    """Times in ns as log2, in 1/4096."""
    return np.array([round(LOG_UNIT * math.log2(max(t, 1.0))) for t in times], dtype=np.int64)
