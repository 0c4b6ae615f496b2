"""Learns a variant's expected time from its measured ones: a ridge regression, then boosted trees on what is left.

Sums are of integers, and so exact in whatever order they are made; all else is done element by element. Every machine
learns the same, to the bit. Trees ask the same questions on each level (oblivious trees, as of Prokhorenkova et al.,
CatBoost, arXiv 1706.09516), so that they are evaluated without a branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aot_tune.select.time_model import SHIFT, TimeModel, Tree

__all__ = ["HEAVIEST", "boost", "learn_times", "regress"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

HEAVIEST = 64
"""The weight of the calls that matter most, about."""

_RIDGE = 0.5
"""In calls: so much is a weight pulled towards 0."""
_TREES, _DEPTH, _RATE = 30, 3, 0.3
_BINS = 16
_PRIOR = 100
"""Weight of a leaf's doubt: with few calls in it, it moves little."""
_LEAST, _ENOUGH = 6, 24
"""Calls from which a time can be learned, and from which more than its dependence on size can."""


@dataclass(frozen=True)
class _Binned:
    """Cuts of each term, and of each call the bin that it falls into [term, call]."""

    cuts: tuple[Integers, ...]
    codes: Integers


def learn_times(columns: Integers, logs: Integers, weights: Integers, first: int = 1) -> TimeModel | None:
    """A model of measured times; None where there are too few. Of a few, it is by the first terms alone.

    Args:
        columns: the terms of the calls [call, term].
        first: how many terms say how large a call is; these come first.
        logs: log2 of ns in 1/4096 by call.
        weights: how much each call matters, from 1 to about `HEAVIEST`.
    """
    if len(logs) < _LEAST:
        return None
    few = len(logs) < _ENOUGH
    columns = columns[:, :first] if few else columns
    slopes, base = regress(columns, logs, weights)
    fixed = np.rint(slopes * 2**SHIFT).astype(np.int64)
    start = round(base * 2**SHIFT)
    left = logs - ((start + (columns * fixed).sum(axis=1)) >> SHIFT)
    trees = [] if few else boost(columns, left, weights)
    used = sorted({int(i) for i in np.flatnonzero(fixed)} | {t for tree in trees for t in tree.terms})
    place = {term: i for i, term in enumerate(used)}
    return TimeModel(
        terms=tuple(used),
        weights=tuple(int(fixed[t]) for t in used),
        base=start,
        trees=tuple(Tree((place[t.terms[0]], place[t.terms[1]], place[t.terms[2]]), t.cuts, t.leaves) for t in trees),
    )


def regress(columns: Integers, logs: Integers, weights: Integers) -> tuple[Floats, float]:
    """Slope of each term, and the value at 0, of the weighted ridge regression over terms of one scale."""
    total = int(weights.sum())
    weighted = columns * weights[:, None]
    means = weighted.sum(axis=0) / total
    mean = int((weights * logs).sum()) / total
    spread = (weighted.T @ columns) / total - means[:, None] * means
    joint = (weighted.T @ logs) / total - means * mean
    deviations = np.sqrt(np.maximum(spread.diagonal(), 0.0))
    kept = np.flatnonzero(deviations > 0.5)
    scale = deviations[kept]
    matrix = spread[np.ix_(kept, kept)] / (scale[:, None] * scale)
    matrix[np.arange(len(kept)), np.arange(len(kept))] += _RIDGE / len(logs)
    slopes = np.zeros(columns.shape[1])
    slopes[kept] = _solve(matrix, joint[kept] / scale) / scale
    base = mean
    for slope, at in zip(slopes.tolist(), means.tolist(), strict=True):
        base -= slope * at
    return slopes, base


def _solve(matrix: Floats, right: Floats) -> Floats:
    """Gauss's elimination of a positive definite system, row by row: libraries round as their processor likes."""
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


def boost(columns: Integers, left: Integers, weights: Integers) -> list[Tree]:
    """Trees that sum up to what is left."""
    binned = _bins_of(columns)
    if not any(len(c) for c in binned.cuts):
        return []
    trees = []
    for _ in range(_TREES):
        tree, leaf = _tree(binned, left, weights)
        trees.append(tree)
        left = left - np.array(tree.leaves, dtype=np.int64)[leaf]
    return trees


def _bins_of(columns: Integers) -> _Binned:
    cuts = []
    for term in columns.T:
        values = np.unique(term)
        places = (np.arange(1, _BINS) * len(values)) // _BINS if len(values) > _BINS else np.arange(1, len(values))
        cuts.append(np.unique(values[places]))
    codes = [np.searchsorted(c, term, side="right") for c, term in zip(cuts, columns.T, strict=True)]
    return _Binned(tuple(cuts), np.array(codes, dtype=np.int64))


def _tree(binned: _Binned, left: Integers, weights: Integers) -> tuple[Tree, Integers]:
    """The tree whose levels, one after the other, take most of what is left; and the leaf of each call."""
    leaf = np.zeros(len(left), dtype=np.int64)
    terms: list[int] = []
    cuts: list[int] = []
    for level in range(_DEPTH):
        term, at = _question(binned, leaf, 1 << level, left * weights, weights)
        terms.append(term)
        cuts.append(int(binned.cuts[term][at]))
        leaf = 2 * leaf + (binned.codes[term] > at)
    sums = _sums(leaf, left * weights, 1 << _DEPTH)
    counts = _sums(leaf, weights, 1 << _DEPTH)
    leaves = np.rint(_RATE * sums / (counts + _PRIOR)).astype(np.int64).tolist()
    return Tree(_three(terms), _three(cuts), tuple(leaves)), leaf


def _question(binned: _Binned, leaf: Integers, leaves: int, pulls: Integers, weights: Integers) -> tuple[int, int]:
    """The term and the number of its cut whose two sides differ most in what is left, over all leaves so far."""
    count = len(binned.cuts)
    place = (np.arange(count)[:, None] * leaves + leaf) * _BINS + binned.codes
    shape = count, leaves, _BINS
    size = count * leaves * _BINS
    pull = np.cumsum(_sums(place.ravel(), np.tile(pulls, count), size).reshape(shape), axis=2)
    weight = np.cumsum(_sums(place.ravel(), np.tile(weights, count), size).reshape(shape), axis=2)
    gains = np.zeros((count, _BINS - 1))
    for i in range(leaves):
        below, above = pull[:, i, :-1], pull[:, i, -1:] - pull[:, i, :-1]
        light, heavy = weight[:, i, :-1], weight[:, i, -1:] - weight[:, i, :-1]
        gains += below**2 / (light + _PRIOR) + above**2 / (heavy + _PRIOR)
    lengths = np.array([len(c) for c in binned.cuts])
    gains[np.arange(_BINS - 1) >= lengths[:, None]] = -1.0
    term, cut = divmod(int(gains.argmax()), _BINS - 1)
    return term, cut


def _sums(place: Integers, values: Integers, size: int) -> Floats:
    """The sum of the values at each place: of integers below 2^53, so exact."""
    return np.bincount(place, values, size).astype(np.float64)


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    first, second, third = values
    return first, second, third
