"""A variant's expected time on a call, and how it is learned from measured times. All is in integers.

It is a weighted sum of the call's terms, corrected by small trees. What variants have in common is learned first, then
what is their own, then trees. Variants of the same form depend on a call in similar ways. So a few times of one variant
tell much if others have many. Slopes are those of all such variants, then corrected by each variant's own times. The
error that all variants share on a problem does not decide among them and would only be noise. So it is taken out.

Sums are of integers, so they are exact in any order. All else is done element by element. So every machine learns the
same, to the bit. Trees ask one question on each level (oblivious trees, as in Prokhorenkova et al., CatBoost, arXiv
1706.09516), so they are evaluated without branches.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

LOG_UNIT = 4096
"""Expected and measured times are log2 of ns, in 1/4096."""
SHIFT = 16
"""Weights have this many fractional bits."""
HEAVIEST = 64
"""The approximate weight of the calls that matter most."""
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
_CONSTANT = 0.5
"""Standard deviation below which a term counts as constant."""
_PULL = 3.0
"""Strength of the pull of common slopes towards 0, as a number of calls."""
_OWN_PULL = 30.0
"""Strength of the pull of a variant's own slopes towards the common ones, as a number of calls."""
_DOUBT = 8
"""Weight of the doubt that a problem's remaining error is shared by all variants."""
_SHARED_TREES, _TREES, _DEPTH, _RATE = 8, 20, 3, 0.5
_BINS = 16
_PRIOR = 200
"""Weight of a leaf's doubt: a leaf with few calls changes little."""
_LEAST, _SOME, _ENOUGH = 2, 6, 24
"""The least number of calls to learn a time, to learn own slopes, and to learn trees."""


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
        line = _Weighted(np.array(self.weights, dtype=np.int64), self.base)
        return line.values(used) + values_of(self.trees, used)


def log_of(times: Sequence[float]) -> NDArray[np.int64]:
    """Times in ns as log2, in 1/4096."""
    return np.array([round(LOG_UNIT * math.log2(max(t, 1.0))) for t in times], dtype=np.int64)


@dataclass(frozen=True)
class Times:
    """Measured times of a variant.

    Args:
        problems: ids of the calls.
        columns: the terms of these calls [call, term].
        logs: log2 of ns in 1/4096 by call.
        weights: how much each call matters, from 1 to about `HEAVIEST`.
        form: equal for variants whose terms mean the same.
    """

    problems: Sequence[str]
    columns: Integers
    logs: Integers
    weights: Integers
    form: Hashable = ()


@dataclass(frozen=True)
class _Weighted:
    """A weighted sum of terms, in the units of a model."""

    slopes: Integers
    base: int

    def values(self, columns: Integers) -> Integers:
        logs: Integers = ((columns * self.slopes).sum(axis=1) + self.base) >> SHIFT
        return logs

    def __add__(self, other: _Weighted) -> _Weighted:
        return _Weighted(self.slopes + other.slopes, self.base + other.base)


@dataclass(frozen=True)
class _Binned:
    """Cuts of each term, the bin of each call [term, call], and where a term has no more cuts [term, number].

    `places` are the bins, those of each term after all those of the terms before it.
    """

    cuts: tuple[Integers, ...]
    codes: Integers
    places: Integers
    beyond: NDArray[np.bool_]


def learn_times(measured: Mapping[str, Times]) -> dict[str, TimeModel]:
    """Models of the variants to choose from, by id. Variants with too few times have none."""
    usable = {v: times for v, times in sorted(measured.items()) if len(times.logs) >= _LEAST}
    lines = _in_common(usable)
    left = _without_shared(usable, {v: t.logs - lines[v].values(t.columns) for v, t in usable.items()})
    own = {v: _own(t, left[v]) for v, t in usable.items()}
    left = {v: left[v] - own[v].values(t.columns) for v, t in usable.items()}
    shared = _trees_in_common(usable, left)
    models = {}
    for variant, times in usable.items():
        trees = shared[times.form]
        rest = left[variant] - values_of(trees, times.columns)
        if len(rest) >= _ENOUGH:
            trees = [*trees, *boost(times.columns, rest, times.weights, _TREES)]
        models[variant] = _model(lines[variant] + own[variant], trees)
    return models


def _in_common(measured: Mapping[str, Times]) -> dict[str, _Weighted]:
    """For each variant, the slopes that variants of its form share, and its own level."""
    moments = {v: _moments_of(t.columns, t.logs, t.weights) for v, t in measured.items()}
    lines = {}
    for form in dict.fromkeys(t.form for t in measured.values()):
        alike = [v for v, t in measured.items() if t.form == form]
        slopes = _slopes_of(_together([moments[v] for v in alike]), _PULL)
        lines.update({v: _line(slopes, moments[v].base(slopes)) for v in alike})
    return lines


def _without_shared(measured: Mapping[str, Times], left: Mapping[str, Integers]) -> dict[str, Integers]:
    """The rest of each variant's times, without most of the part that all variants share on the same problem."""
    pulls: dict[str, int] = {}
    weights: dict[str, int] = {}
    for variant, times in measured.items():
        rows = zip(times.problems, left[variant].tolist(), times.weights.tolist(), strict=True)
        for problem, rest, weight in rows:
            pulls[problem] = pulls.get(problem, 0) + weight * rest
            weights[problem] = weights.get(problem, _DOUBT) + weight
    shared = {p: round(pull / weights[p]) for p, pull in pulls.items()}
    return {v: left[v] - np.array([shared[p] for p in t.problems], dtype=np.int64) for v, t in measured.items()}


def _trees_in_common(measured: Mapping[str, Times], left: Mapping[str, Integers]) -> dict[Hashable, list[Tree]]:
    """For each form, trees that explain most of what is left of all its variants' times."""
    trees: dict[Hashable, list[Tree]] = {}
    for form in dict.fromkeys(t.form for t in measured.values()):
        alike = [v for v, t in measured.items() if t.form == form]
        columns = np.concatenate([measured[v].columns for v in alike])
        weights = np.concatenate([measured[v].weights for v in alike])
        rest = np.concatenate([left[v] for v in alike])
        trees[form] = boost(columns, rest, weights, _SHARED_TREES) if len(rest) >= _ENOUGH else []
    return trees


def _own(times: Times, left: Integers) -> _Weighted:
    """A variant's own slopes and level. With few times, only the level."""
    moments = _moments_of(times.columns, left, times.weights)
    slopes = _slopes_of(moments, _OWN_PULL) if len(left) >= _SOME else np.zeros(times.columns.shape[1])
    return _line(slopes, moments.base(slopes))


def _line(slopes: Floats, base: float) -> _Weighted:
    return _Weighted(np.rint(slopes * 2**SHIFT).astype(np.int64), round(base * 2**SHIFT))


def _model(line: _Weighted, trees: Sequence[Tree]) -> TimeModel:
    """A model that has only the terms that it uses."""
    used = sorted({int(i) for i in np.flatnonzero(line.slopes)} | {t for tree in trees for t in tree.terms})
    index = {term: i for i, term in enumerate(used)}
    return TimeModel(
        terms=tuple(used),
        weights=tuple(int(line.slopes[t]) for t in used),
        base=line.base,
        trees=tuple(Tree((index[t.terms[0]], index[t.terms[1]], index[t.terms[2]]), t.cuts, t.leaves) for t in trees),
    )


def boost(columns: Integers, left: Integers, weights: Integers, count: int) -> list[Tree]:
    """`count` trees that _together approximate what is left."""
    binned = _bins_of(columns)
    if not any(len(c) for c in binned.cuts):
        return []
    trees = []
    heavy = np.tile(weights.astype(np.float64), len(binned.cuts))
    for _ in range(count):
        tree, leaf = _tree(binned, left, weights, heavy)
        trees.append(tree)
        left = left - np.array(tree.leaves, dtype=np.int64)[leaf]
    return trees


def values_of(trees: Sequence[Tree], columns: Integers) -> Integers:
    """The sum of the trees' values for calls."""
    total = np.zeros(len(columns), dtype=np.int64)
    for tree in trees:
        leaf = np.zeros(len(columns), dtype=np.int64)
        for term, cut in zip(tree.terms, tree.cuts, strict=True):
            leaf = 2 * leaf + (columns[:, term] >= cut)
        total += np.array(tree.leaves, dtype=np.int64)[leaf]
    return total


def _bins_of(columns: Integers) -> _Binned:
    cuts = []
    for term in columns.T:
        values = np.unique(term)
        places = (np.arange(1, _BINS) * len(values)) // _BINS if len(values) > _BINS else np.arange(1, len(values))
        cuts.append(np.unique(values[places]))
    codes = np.array(
        [np.searchsorted(c, term, side="right") for c, term in zip(cuts, columns.T, strict=True)], dtype=np.int64
    )
    lengths = np.array([len(c) for c in cuts])
    places = codes + np.arange(len(cuts))[:, None] * _BINS
    return _Binned(tuple(cuts), codes, places, np.arange(_BINS - 1) >= lengths[:, None])


def _tree(binned: _Binned, left: Integers, weights: Integers, heavy: Floats) -> tuple[Tree, Integers]:
    """A tree of levels that explain most of what is left, and the leaf of each call. `heavy`: weights by term."""
    pulls = np.tile((left * weights).astype(np.float64), len(binned.cuts))
    leaf = np.zeros(len(left), dtype=np.int64)
    terms: list[int] = []
    cuts: list[int] = []
    for level in range(_DEPTH):
        term, at = _question(binned, leaf, 1 << level, pulls, heavy)
        terms.append(term)
        cuts.append(int(binned.cuts[term][at]))
        leaf = 2 * leaf + (binned.codes[term] > at)
    sums = _sums(leaf, left * weights, 1 << _DEPTH)
    counts = _sums(leaf, weights, 1 << _DEPTH)
    leaves = np.rint(_RATE * sums / (counts + _PRIOR)).astype(np.int64).tolist()
    return Tree(_three(terms), _three(cuts), tuple(leaves)), leaf


def _question(binned: _Binned, leaf: Integers, leaves: int, pulls: Floats, weights: Floats) -> tuple[int, int]:
    """The term, and its cut, that best separates what is left over all leaves. `pulls`, `weights`: by call and term."""
    count = len(binned.cuts)
    places = (binned.places + leaf * (count * _BINS)).ravel()
    shape = leaves, count, _BINS
    size = leaves * count * _BINS
    pull = np.cumsum(np.bincount(places, pulls, size).reshape(shape), axis=2)
    weight = np.cumsum(np.bincount(places, weights, size).reshape(shape), axis=2)
    gains = np.zeros((count, _BINS - 1))
    for i in range(leaves):
        below, above = pull[i, :, :-1], pull[i, :, -1:] - pull[i, :, :-1]
        light, heavy = weight[i, :, :-1], weight[i, :, -1:] - weight[i, :, :-1]
        gains += below**2 / (light + _PRIOR) + above**2 / (heavy + _PRIOR)
    gains[binned.beyond] = -1.0
    term, cut = divmod(int(gains.argmax()), _BINS - 1)
    return term, cut


def _sums(places: Integers, values: Integers, size: int) -> Floats:
    """The sum of the values at each place. It is exact: they are integers below 2^53."""
    return np.bincount(places, values, size).astype(np.float64)


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    first, second, third = values
    return first, second, third


@dataclass(frozen=True)
class _Moments:
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


def _moments_of(columns: Integers, logs: Integers, weights: Integers) -> _Moments:
    """The moments of calls, given their terms [call, term], times and weights."""
    total = int(weights.sum())
    weighted = columns * weights[:, None]
    means = weighted.sum(axis=0) / total
    mean = int((weights * logs).sum()) / total
    return _Moments(
        calls=len(logs),
        weight=total,
        means=means,
        mean=mean,
        spread=(weighted.T @ columns) / total - means[:, None] * means,
        joint=(weighted.T @ logs) / total - means * mean,
    )


def _together(parts: Sequence[_Moments]) -> _Moments:
    """The moments of several variants' calls. Each variant has its own level, so only variation within one counts."""
    first, *others = parts
    total = sum(p.weight for p in parts)
    spread, joint = first.spread * first.weight, first.joint * first.weight
    for part in others:
        spread = spread + part.spread * part.weight
        joint = joint + part.joint * part.weight
    calls = sum(p.calls for p in parts)
    return _Moments(calls, total, np.zeros_like(first.means), 0.0, spread / total, joint / total)


def _slopes_of(moments: _Moments, pull: float) -> Floats:
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
    solution = np.zeros(size)
    for k in reversed(range(size)):
        rest = float(right[k])
        for j in range(k + 1, size):
            rest -= float(matrix[k, j]) * float(solution[j])
        solution[k] = rest / float(matrix[k, k])
    return solution
