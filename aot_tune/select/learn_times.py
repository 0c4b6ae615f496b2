"""Learns variants' expected times from measured ones: what they have in common, what is each one's own, then trees.

Variants of one kernel's making depend on a call in much the same way, so that a few times of one tell much where there
are many of others. Slopes are those of all variants first, then corrected by each one's own times. What all variants
have left over on a problem does not decide among them, and would only be noise to learn from: it is taken out.

All is in integers or done element by element, so that every machine learns the same, to the bit. Trees ask the same
questions on each level (oblivious trees, as of Prokhorenkova et al., CatBoost, arXiv 1706.09516), so that they are
evaluated without a branch.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aot_tune.select.regression import moments_of, slopes_of, together
from aot_tune.select.time_model import SHIFT, TimeModel, Tree

__all__ = ["HEAVIEST", "Times", "boost", "learn_times"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

HEAVIEST = 64
"""The weight of the calls that matter most, about."""

_PULL = 3.0
"""In calls: so much are slopes in common pulled towards 0."""
_OWN_PULL = 30.0
"""In calls: so much is what a variant's own slopes differ from them by."""
_DOUBT = 8
"""Weight of the doubt that what is left over on a problem is that of all variants."""
_SHARED_TREES, _TREES, _DEPTH, _RATE = 8, 20, 3, 0.5
_BINS = 16
_PRIOR = 200
"""Weight of a leaf's doubt: with few calls in it, it moves little."""
_LEAST, _SOME, _ENOUGH = 2, 6, 24
"""Calls from which a time can be learned, from which slopes of its own can, and from which trees can."""


@dataclass(frozen=True)
class Times:
    """Measured times of a variant.

    Args:
        problems: ids of the calls.
        columns: the terms of these [call, term].
        logs: log2 of ns in 1/4096 by call.
        weights: how much each call matters, from 1 to about `HEAVIEST`.
        form: variants whose terms mean the same have the same.
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
        found: Integers = ((columns * self.slopes).sum(axis=1) + self.base) >> SHIFT
        return found

    def __add__(self, other: _Weighted) -> _Weighted:
        return _Weighted(self.slopes + other.slopes, self.base + other.base)


@dataclass(frozen=True)
class _Binned:
    """Cuts of each term, and of each call the bin that it falls into [term, call]."""

    cuts: tuple[Integers, ...]
    codes: Integers


def learn_times(measured: Mapping[str, Times]) -> dict[str, TimeModel]:
    """Models of variants among which is to be chosen, by their ids; none of those that have too few times."""
    known = {v: times for v, times in sorted(measured.items()) if len(times.logs) >= _LEAST}
    lines = _in_common(known)
    left = _without_shared(known, {v: t.logs - lines[v].values(t.columns) for v, t in known.items()})
    own = {v: _own(t, left[v]) for v, t in known.items()}
    left = {v: left[v] - own[v].values(t.columns) for v, t in known.items()}
    shared = _trees_in_common(known, left)
    found = {}
    for variant, times in known.items():
        trees = shared[times.form]
        rest = left[variant] - values_of(trees, times.columns)
        if len(rest) >= _ENOUGH:
            trees = [*trees, *boost(times.columns, rest, times.weights, _TREES)]
        found[variant] = _model(lines[variant] + own[variant], trees)
    return found


def _in_common(known: Mapping[str, Times]) -> dict[str, _Weighted]:
    """For each variant the slopes that those with the same terms have in common, and a level of its own."""
    moments = {v: moments_of(t.columns, t.logs, t.weights) for v, t in known.items()}
    found = {}
    for form in dict.fromkeys(t.form for t in known.values()):
        alike = [v for v, t in known.items() if t.form == form]
        slopes = slopes_of(together([moments[v] for v in alike]), _PULL)
        found.update({v: _line(slopes, moments[v].base(slopes)) for v in alike})
    return found


def _without_shared(known: Mapping[str, Times], left: Mapping[str, Integers]) -> dict[str, Integers]:
    """What is left of each variant's times without what all have left on the same problem, by and large."""
    pulls: dict[str, int] = {}
    weights: dict[str, int] = {}
    for variant, times in known.items():
        rows = zip(times.problems, left[variant].tolist(), times.weights.tolist(), strict=True)
        for problem, rest, weight in rows:
            pulls[problem] = pulls.get(problem, 0) + weight * rest
            weights[problem] = weights.get(problem, _DOUBT) + weight
    shared = {p: round(pull / weights[p]) for p, pull in pulls.items()}
    return {v: left[v] - np.array([shared[p] for p in t.problems], dtype=np.int64) for v, t in known.items()}


def _trees_in_common(known: Mapping[str, Times], left: Mapping[str, Integers]) -> dict[Hashable, list[Tree]]:
    """For each form the trees that take off most of what all variants of that form have left."""
    found: dict[Hashable, list[Tree]] = {}
    for form in dict.fromkeys(t.form for t in known.values()):
        alike = [v for v, t in known.items() if t.form == form]
        columns = np.concatenate([known[v].columns for v in alike])
        weights = np.concatenate([known[v].weights for v in alike])
        rest = np.concatenate([left[v] for v in alike])
        found[form] = boost(columns, rest, weights, _SHARED_TREES) if len(rest) >= _ENOUGH else []
    return found


def _own(times: Times, left: Integers) -> _Weighted:
    """What a variant's own slopes and level add; of few times, the level alone."""
    moments = moments_of(times.columns, left, times.weights)
    slopes = slopes_of(moments, _OWN_PULL) if len(left) >= _SOME else np.zeros(times.columns.shape[1])
    return _line(slopes, moments.base(slopes))


def _line(slopes: Floats, base: float) -> _Weighted:
    return _Weighted(np.rint(slopes * 2**SHIFT).astype(np.int64), round(base * 2**SHIFT))


def _model(line: _Weighted, trees: Sequence[Tree]) -> TimeModel:
    """With those terms alone that matter."""
    used = sorted({int(i) for i in np.flatnonzero(line.slopes)} | {t for tree in trees for t in tree.terms})
    place = {term: i for i, term in enumerate(used)}
    return TimeModel(
        terms=tuple(used),
        weights=tuple(int(line.slopes[t]) for t in used),
        base=line.base,
        trees=tuple(Tree((place[t.terms[0]], place[t.terms[1]], place[t.terms[2]]), t.cuts, t.leaves) for t in trees),
    )


def boost(columns: Integers, left: Integers, weights: Integers, count: int) -> list[Tree]:
    """So many trees that sum up to what is left."""
    binned = _bins_of(columns)
    if not any(len(c) for c in binned.cuts):
        return []
    trees = []
    for _ in range(count):
        tree, leaf = _tree(binned, left, weights)
        trees.append(tree)
        left = left - np.array(tree.leaves, dtype=np.int64)[leaf]
    return trees


def values_of(trees: Sequence[Tree], columns: Integers) -> Integers:
    """The sum of what trees say of calls."""
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
