"""Extremely randomised trees (Geurts, Ernst and Wehenkel, 2006): an estimate that needs no smoothness.

All trees grow together, level by level, so that numpy handles all nodes of a level at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Forest"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_TREES, _DEPTH = 32, 16
_TRIES = 8
"""How many random splits each node chooses the best from; at most as many as there are features."""

_LEAST = 3
"""A node is split if it has at least this many samples."""


class Forest:
    """Regression trees over the same samples with random splits.

    Args:
        points, values: float64 [n, features] and [n].
        random: the source of splits. Its stream is the same in every version of numpy.
    """

    def __init__(self, points: Floats, values: Floats, random: np.random.RandomState) -> None:
        self._feature: list[Ints] = []
        self._threshold: list[Floats] = []
        self._left: list[Ints] = []
        self._value: list[Floats] = []
        self._grow(points, values, random)
        self._features = np.concatenate(self._feature)
        self._thresholds = np.concatenate(self._threshold)
        self._lefts = np.concatenate(self._left)
        self._values = np.concatenate(self._value)

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation [m] over the trees at points [m, features]."""
        flat = points.ravel()
        row = np.repeat(np.arange(len(points)) * points.shape[1], _TREES)
        node = np.tile(np.arange(_TREES), len(points))
        for _ in range(len(self._value) - 1):
            beyond = flat.take(row + self._features.take(node)) > self._thresholds.take(node)
            node = self._lefts.take(node) + beyond
        found = self._values.take(node).reshape(len(points), _TREES)
        return found.mean(axis=1), found.std(axis=1)

    def _grow(self, points: Floats, values: Floats, random: np.random.RandomState) -> None:
        sample = np.tile(np.arange(len(points)), _TREES)
        node = np.repeat(np.arange(_TREES), len(points))
        base, count = 0, _TREES  # numbers of this level's nodes
        for depth in range(_DEPTH):
            size = np.bincount(node, minlength=count)
            total = np.bincount(node, values[sample], minlength=count)
            mean = total / size
            self._value.append(mean)
            own = np.arange(base, base + count)
            feature, threshold, left = np.zeros(count, np.int64), np.full(count, np.inf), own.copy()
            again = size >= _LEAST
            if depth < _DEPTH - 1 and again.any() and points.shape[1]:
                keep = again[node]
                sample, node = sample[keep], (np.cumsum(again) - 1)[node[keep]]
                split = _Splits(points, values, sample, node, int(again.sum()), random)
                which = np.flatnonzero(again)[split.found]
                feature[which], threshold[which] = split.feature[split.found], split.threshold[split.found]
                left[which] = base + count + 2 * np.arange(len(which))
                keep = split.found[node]
                sample, node = sample[keep], node[keep]
                child = 2 * (np.cumsum(split.found) - 1)[node]
                node = child + (points[sample, split.feature[node]] > split.threshold[node])
                coming = 2 * len(which)
            else:
                coming = 0
            self._feature.append(feature)
            self._threshold.append(threshold)
            self._left.append(left)
            if not coming:
                return
            order = np.argsort(node, kind="stable")
            sample, node = sample[order], node[order]
            base, count = base + count, coming


class _Splits:
    """The best of some random splits of each node. `found` says whether one of them separates its samples."""

    def __init__(
        self,
        points: Floats,
        values: Floats,
        sample: Ints,
        node: Ints,
        count: int,
        random: np.random.RandomState,
    ) -> None:
        starts = np.searchsorted(node, np.arange(count))
        tries = min(_TRIES, points.shape[1])
        features = np.argsort(random.random_sample((count, points.shape[1])), axis=1)[:, :tries]
        seen = points[sample[:, None], features[node]]
        low, high = np.minimum.reduceat(seen, starts, axis=0), np.maximum.reduceat(seen, starts, axis=0)
        thresholds = low + random.random_sample(low.shape) * (high - low)
        goes_left = seen <= thresholds[node]
        each = values[sample][:, None]
        size = np.add.reduceat(np.ones_like(each), starts, axis=0)
        total = np.add.reduceat(each, starts, axis=0)
        left_size = np.add.reduceat(goes_left.astype(np.float64), starts, axis=0)
        left_total = np.add.reduceat(goes_left * each, starts, axis=0)
        parts = (left_size > 0) & (left_size < size)
        with np.errstate(divide="ignore", invalid="ignore"):
            score = left_total**2 / left_size + (total - left_total) ** 2 / (size - left_size)
        score = np.where(parts, score, -np.inf)
        best = np.argmax(score, axis=1)
        rows = np.arange(count)
        self.found = np.isfinite(score[rows, best])
        self.feature, self.threshold = features[rows, best], thresholds[rows, best]
