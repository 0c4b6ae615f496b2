"""What to try next: strategies propose configs and learn from their times. They start no process and know no device."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aot_tune.spec import Config, ConfigValue
from aot_tune.support.digests import canonical_digest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FIT_STEPS = 12
"""Steps of ascent in each fit. The next fit continues from the end of this one."""

_SPREAD = 1.0
"""Standard deviation of the prior of a length's logarithm."""

_LEAST_NOISE, _MOST_NOISE = np.log(1e-5), np.log(0.3)

_TREES, _DEPTH = 32, 16
_TRIES = 8
"""How many random splits each node chooses the best from; at most as many as there are features."""

_LEAST_SAMPLES = 3
"""A node is split if it has at least this many samples."""

_CAP = 0.8
"""Costs above this quantile count as this quantile. How slow the slow ones are says little about the best."""

_LEAST_CHANCE = 1e-3
"""The least chance of success that a model gives a config. Chances count squared, else too many tries fail."""

_FITTED_AGAIN, _GROWN_AGAIN = 5, 2
"""After this many new costs, the Gaussian process fits its lengths again, or a new forest grows.

With many costs, it takes a tenth more, or a fortieth more."""

_MOST = 240
"""The most costs that the Gaussian process learns from: the best half, and random others. Its work is cubic in them."""

_LEAST_DEVIATION = 0.02

_NOTHING_TO_LEARN = 16
"""A search learns nothing before it has tried about this many configs."""

_START = 16
"""How many configs are spread over the space before anything is learned, including those to try first."""

_SPREAD_OVER = 50
"""Each spread config is the one among this many random ones that is farthest from the others."""

_STEP = 16
"""How many configs are proposed at once after the start. Later ones profit from the results of earlier ones."""

_POOL = 1000
"""How many random configs a proposal is chosen from, in addition to the neighbours of the best ones."""

_BEST = 5
"""How many of the best configs have their neighbours considered."""

_POLISH = 6
"""Every sixth proposal is the neighbour of the best configs that both models rate highest, without uncertainty."""


class Encoding:
    """The configs of a space by number, as ranks of their values and as points.

    Args:
        configs: of one space, all with the same parameters.

    The attributes that are arrays have a row for each config. `ranks`, int16, has a column for each parameter with
    several values: the place of a value among the parameter's values. `named` says which of these columns have no
    order. `evenness`, float64, says how often 2 divides a value; it has a column for each parameter where that adds
    something. `points`, float64, 0 to 1, has the rank of ordered values, a column for each choice of three or more
    names, and the evenness. `sizes`, float64, is log2 of the product of each two sizes, such as a tile and a block:
    many limits of a device are on such products.
    """

    def __init__(self, configs: Sequence[Config]) -> None:
        names = sorted(configs[0]) if configs else []
        columns = {name: [c[name] for c in configs] for name in names}
        codes = {name: _codes(column) for name, column in columns.items()}
        varied = [name for name in names if len(set(codes[name])) > 1]
        self.named = np.array([not _ordered(columns[n]) for n in varied], dtype=bool)
        self.ranks = np.array([codes[n] for n in varied], dtype=np.int16).T.reshape(len(configs), len(varied))
        self.evenness = _evenness([columns[n] for n in varied if _is_size(columns[n])], len(configs))
        self.points = np.hstack([_points(self.ranks, self.named), self.evenness])
        self.sizes = _products([columns[n] for n in varied if _is_size(columns[n])], len(configs))

    def distances(self, number: int) -> Ints:
        """By config: the number of parameters in which it differs from config `number`."""
        differing: Ints = np.count_nonzero(self.ranks != self.ranks[number], axis=1)
        return differing

    def steps(self, number: int) -> Ints:
        """By config: how many places its values are away from those of config `number`. A changed name is one place."""
        away = np.abs(self.ranks.astype(np.int64) - self.ranks[number])
        away[:, self.named] = np.minimum(away[:, self.named], 1)
        places: Ints = away.sum(axis=1)
        return places


def _ordered(values: Sequence[ConfigValue]) -> bool:
    return all(isinstance(v, int | float) for v in values)


def _is_size(values: Sequence[ConfigValue]) -> bool:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v > 0]
    return len(numbers) == len(values) and max(numbers) > 2


def _codes(values: Sequence[ConfigValue]) -> list[int]:
    """The rank of each value among the distinct ones. `True` differs from 1; names and `None` have any fixed order."""
    ordered = _ordered(values)
    keys = [(v, isinstance(v, bool)) if ordered else (type(v).__name__, str(v)) for v in values]
    rank = {key: i for i, key in enumerate(sorted(set(keys)))}
    return [rank[k] for k in keys]


def _points(ranks: NDArray[np.int16], named: NDArray[np.bool_]) -> Floats:
    columns: list[Floats] = []
    for column, has_no_order in zip(ranks.T.astype(np.float64), named, strict=True):
        top = int(column.max())
        if has_no_order and top > 1:
            columns += [(column == value).astype(np.float64) for value in range(top + 1)]
        else:
            columns.append(column / top)
    return _side_by_side(columns, len(ranks))


def _evenness(sizes: Sequence[Sequence[ConfigValue]], count: int) -> Floats:
    """How often 2 divides each size, scaled to 0 to 1, if that adds something to the order of the sizes.

    A multiple of a device's power of two is aligned and fills its units, so it is fast.
    """
    columns: list[Floats] = []
    for column in sizes:
        powers = [(v & -v).bit_length() - 1 for v in column if isinstance(v, int)]
        by_size = sorted(set(zip(column, powers, strict=False)))
        if len(powers) == count and any(b[1] < a[1] for a, b in itertools.pairwise(by_size)):
            columns.append(np.array(powers) / max(powers))
    return _side_by_side(columns, count)


def _products(sizes: Sequence[Sequence[ConfigValue]], count: int) -> Floats:
    logs = [[math.log2(v) for v in column if not isinstance(v, str)] for column in sizes]
    rows = np.array(logs, dtype=np.float64).reshape(len(logs), count)
    pairs = [rows[i] + rows[j] for i in range(len(rows)) for j in range(i)]
    return _side_by_side(pairs, count)


def _side_by_side(columns: Sequence[Floats], count: int) -> Floats:
    """float64 [count, columns]. There may be no columns."""
    matrix: Floats = np.array(columns, dtype=np.float64).T.reshape(count, len(columns))
    return matrix


class GaussianProcess:
    """Regression with a Matern 5/2 kernel that has a length for each feature.

    The lengths and the share of noise have the highest posterior density (Rasmussen and Williams, Gaussian Processes
    for Machine Learning, 5.4.1). Gradient ascent with adaptive steps (Rprop) finds them. The variance is the best one
    for them, in closed form.
    """

    def __init__(self, features: int) -> None:
        self._middle = np.log(0.5 * np.sqrt(max(features, 1)))
        self._logs = np.append(np.full(features, self._middle), np.log(1e-2))
        self._sizes = np.full(features + 1, 0.1)
        self._signs = np.zeros(features + 1)

    def fit(self, points: Floats, values: Floats) -> None:
        """Find lengths and noise for values [n] at points [n, features]."""
        squares = (points[:, None, :] - points[None, :, :]) ** 2
        for _ in range(_FIT_STEPS):
            self._step(self._gradient(squares, values))

    def take_lengths(self, other: GaussianProcess) -> None:
        """Use the lengths that another process found for the same features."""
        self._logs[:-1] = other._logs[:-1]

    def learn(self, points: Floats, values: Floats) -> None:
        """Use these values for `predict`, with the current lengths."""
        self._scale = np.exp(-self._logs[:-1])
        self._points = points * self._scale
        self._mean = float(values.mean())
        kernel = _matern(_squares(self._points, self._points))
        kernel[np.diag_indices_from(kernel)] += np.exp(self._logs[-1]) + 1e-8
        self._inverse = np.linalg.inv(kernel)
        self._weights = self._inverse @ (values - self._mean)
        self._variance = max(float((values - self._mean) @ self._weights) / len(values), 1e-12)

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation [m] of the values at points [m, features], without noise."""
        cross = _matern(_squares(points * self._scale, self._points))
        explained = np.einsum("ij,ij->i", cross @ self._inverse, cross)
        return self._mean + cross @ self._weights, np.sqrt(self._variance * np.maximum(1.0 - explained, 1e-10))

    def _gradient(self, squares: Floats, values: Floats) -> Floats:
        """The gradient of the log posterior density by the logarithms of the lengths and of the noise."""
        count = len(values)
        weighted = np.exp(-2.0 * self._logs[:-1])
        noise = np.exp(self._logs[-1])
        distance = np.sqrt(5.0 * (squares @ weighted))
        decay = np.exp(-distance)
        kernel = (1.0 + distance + distance**2 / 3.0) * decay
        kernel[np.diag_indices(count)] += noise + 1e-8
        inverse = np.linalg.inv(kernel)
        centred = values - values.mean()
        weights = inverse @ centred
        variance = max(float(centred @ weights) / count, 1e-12)
        pull = np.outer(weights, weights) / variance - inverse
        slope = pull * (5.0 / 3.0) * (1.0 + distance) * decay
        lengths = 0.5 * np.tensordot(slope, squares, axes=2) * weighted
        gradient = np.append(lengths, 0.5 * float(np.trace(pull)) * noise)
        gradient[:-1] -= (self._logs[:-1] - self._middle) / _SPREAD**2
        gradient[-1] -= (self._logs[-1] - np.log(1e-2)) / 2.0**2
        return gradient

    def _step(self, gradient: Floats) -> None:
        signs = np.sign(gradient)
        self._sizes = np.clip(self._sizes * np.where(signs * self._signs < 0, 0.5, 1.2), 1e-3, 0.5)
        self._signs = signs
        self._logs = self._logs + signs * self._sizes
        self._logs[:-1] = np.clip(self._logs[:-1], np.log(0.05), np.log(20.0))
        self._logs[-1] = np.clip(self._logs[-1], _LEAST_NOISE, _MOST_NOISE)


def _squares(a: Floats, b: Floats) -> Floats:
    squares: Floats = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2.0 * (a @ b.T)
    return np.maximum(squares, 0.0)


def _matern(squares: Floats) -> Floats:
    distance = np.sqrt(5.0 * squares)
    kernel: Floats = (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)
    return kernel


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
        guesses = self._values.take(node).reshape(len(points), _TREES)
        return guesses.mean(axis=1), guesses.std(axis=1)

    def _grow(self, points: Floats, values: Floats, random: np.random.RandomState) -> None:
        sample = np.tile(np.arange(len(points)), _TREES)
        node = np.repeat(np.arange(_TREES), len(points))
        base, count = 0, _TREES  # numbers of this level's nodes
        for depth in range(_DEPTH):
            size = np.bincount(node, minlength=count)
            total = np.bincount(node, values[sample], minlength=count)
            mean = total / size
            self._value.append(mean)
            numbers = np.arange(base, base + count)
            feature, threshold, left = np.zeros(count, np.int64), np.full(count, np.inf), numbers.copy()
            again = size >= _LEAST_SAMPLES
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
        self, points: Floats, values: Floats, sample: Ints, node: Ints, count: int, random: np.random.RandomState
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


class Told:
    """The costs of configs by number, in the order in which they were first told; infinite for a failed config."""

    def __init__(self) -> None:
        self._costs: dict[int, float] = {}

    def has_cost(self, number: int) -> bool:
        """Whether a config has succeeded."""
        return self._costs.get(number, math.inf) < math.inf

    def tell(self, number: int, cost: float) -> None:
        """Note a cost. Only the last cost of a config counts."""
        self._costs[number] = max(cost, 1e-300) if math.isfinite(cost) else math.inf

    @property
    def succeeded(self) -> Ints:
        """Numbers of the configs that have a finite cost."""
        return np.array([n for n, c in self._costs.items() if c < math.inf], dtype=np.int64)

    @property
    def tried(self) -> tuple[Ints, Floats]:
        """The numbers of all configs; and for each 1 if it succeeded, 0 if it failed."""
        numbers = np.array(list(self._costs), dtype=np.int64)
        return numbers, np.array([float(c < math.inf) for c in self._costs.values()])

    def costs(self, numbers: Iterable[int]) -> Floats:
        """Costs of configs that have been told."""
        return np.array([self._costs[int(n)] for n in numbers])

    def best(self, count: int) -> list[int]:
        """Numbers of the configs of least cost, the best first."""
        return sorted((n for n, c in self._costs.items() if c < math.inf), key=lambda n: self._costs[n])[:count]


class Models:
    """The surrogates of one search. Each learns again when there are enough new costs."""

    def __init__(self, space: Encoding, random: np.random.RandomState) -> None:
        self._random = random
        low, high = space.sizes.min(axis=0, initial=math.inf), space.sizes.max(axis=0, initial=-math.inf)
        self._smooth = np.hstack([space.points, (space.sizes - low) / np.maximum(high - low, 1e-9)])
        self._plain = np.hstack([space.ranks, space.evenness, space.sizes])
        self._process = GaussianProcess(self._smooth.shape[1])
        self._chances = GaussianProcess(self._smooth.shape[1])
        self._forest = _Grown(random)
        self._chance_forest = _Grown(random)
        self._fitted = 0

    def promise(self, pool: Ints, told: Told, unknown: Sequence[int], *, smooth: bool) -> Floats:
        """By config of the pool: the expected improvement on the best cost, times the chance of success.

        Configs without a cost (`unknown`), because they are being tried or failed, get their expected cost. So their
        neighbours promise less. If `smooth`, the Gaussian process is asked, else the forest.
        """
        chance = self._chance(pool, told, smooth=smooth)
        rows, values = _scaled(told)
        if len(rows) < 3:
            return chance * (1.0 + 0.1 * self._random.random_sample(len(pool)))
        mean, deviation = self._guess(pool, rows, values, unknown, smooth=smooth)
        return _expected_improvement(float(values.min()), mean, deviation) * chance

    def expected(self, pool: Ints, told: Told, unknown: Sequence[int]) -> Floats:
        """By config of the pool: the chance of success, discounted by the cost that both models expect."""
        rows, values = _scaled(told)
        chance = self._chance(pool, told, smooth=True)
        if len(rows) < 3:
            return chance
        smooth, _ = self._guess(pool, rows, values, unknown, smooth=True)
        plain, _ = self._guess(pool, rows, values, unknown, smooth=False)
        return chance * np.exp(-(smooth + plain) / 2.0)

    def _guess(
        self, pool: Ints, rows: Ints, values: Floats, unknown: Sequence[int], *, smooth: bool
    ) -> tuple[Floats, Floats]:
        if unknown:
            self._learn(rows, values)
            waiting = np.array(unknown, dtype=np.int64)
            guessed, _ = self._process.predict(self._smooth[waiting])
            rows, values = np.append(rows, waiting), np.append(values, np.maximum(guessed, values.min()))
        if smooth:
            self._learn(rows, values)
            return self._process.predict(self._smooth[pool])
        mean, deviation = self._forest.over(self._plain[rows], values).predict(self._plain[pool])
        return mean, np.maximum(deviation, _LEAST_DEVIATION)

    def _learn(self, rows: Ints, values: Floats) -> None:
        """Let the Gaussian process learn, with new lengths if there are enough new costs."""
        count = len(rows)
        if count > _MOST:
            order = np.argsort(values, kind="stable")
            others = self._random.choice(order[_MOST // 2 :], _MOST // 2, replace=False)
            kept = np.concatenate([order[: _MOST // 2], others])
            rows, values = rows[kept], values[kept]
        if self._fitted == 0 or count - self._fitted >= max(_FITTED_AGAIN, count // 10):
            self._process.fit(self._smooth[rows], values)
            self._fitted = count
        self._process.learn(self._smooth[rows], values)

    def _chance(self, pool: Ints, told: Told, *, smooth: bool) -> Floats:
        """The chance of success of each config of the pool; 1 until a config has failed."""
        rows, succeeded = told.tried
        if succeeded.all():
            return np.ones(len(pool))
        if smooth and len(rows) <= _MOST:
            self._chances.take_lengths(self._process)
            self._chances.learn(self._smooth[rows], succeeded)
            chances, _ = self._chances.predict(self._smooth[pool])
        else:
            chances, _ = self._chance_forest.over(self._plain[rows], succeeded).predict(self._plain[pool])
        return np.clip(chances, _LEAST_CHANCE, 1.0) ** 2


class _Grown:
    """A forest that grows again when there are enough new samples."""

    def __init__(self, random: np.random.RandomState) -> None:
        self._random, self._count = random, 0
        self._forest: Forest | None = None

    def over(self, points: Floats, values: Floats) -> Forest:
        """The forest over samples. It may lack the last few of them."""
        if self._forest is None or len(points) - self._count >= max(_GROWN_AGAIN, len(points) // 40):
            self._forest, self._count = Forest(points, values, self._random), len(points)
        return self._forest


def _scaled(told: Told) -> tuple[Ints, Floats]:
    """The configs that succeeded, and the logarithms of their costs: capped, with mean 0 and deviation 1."""
    rows = told.succeeded
    if not len(rows):
        return rows, np.zeros(0)
    logs = np.log(told.costs(rows))
    logs = np.minimum(logs, np.quantile(logs, _CAP))
    return rows, (logs - logs.mean()) / (logs.std() + 1e-9)


def _expected_improvement(best: float, mean: Floats, deviation: Floats) -> Floats:
    """Expected improvement of a normal estimate on the best value (Jones, Schonlau and Welch, 1998, equation 15)."""
    gain = best - mean
    ratio = gain / deviation
    below = np.array([0.5 * math.erfc(-r / math.sqrt(2.0)) for r in ratio.tolist()])
    improvement: Floats = gain * below + deviation * np.exp(-0.5 * ratio**2) / math.sqrt(2.0 * math.pi)
    return improvement


class Strategy(Protocol):
    """Proposes configs of one kernel's space."""

    def ask(self, count: int) -> list[dict[str, ConfigValue]]:
        """Up to `count` configs that were not proposed before; empty if there is nothing more to try."""

    def tell(self, config: Config, cost: float) -> None:
        """Report a config's cost: lower is better, infinite if it failed."""


class Listed:
    """Goes through a space: the author's first guesses in their order, then the rest in a seeded random order.

    If `limit` is at least the size of the space, it is exhaustive. With a lower limit it is random search with a good
    start. The order depends only on the space.
    """

    def __init__(
        self, space: Iterable[dict[str, ConfigValue]], first: Sequence[Config] = (), limit: int | None = None
    ) -> None:
        queue, rest = _in_order(space, first)
        self._queue = (queue + rest)[:limit]

    def ask(self, count: int) -> list[dict[str, ConfigValue]]:
        asked, self._queue = self._queue[:count], self._queue[count:]
        return asked

    def tell(self, config: Config, cost: float) -> None:
        """Do nothing: the order is fixed."""


def make_strategy(
    space: Iterable[dict[str, ConfigValue]],
    guesses: Sequence[Config],
    limit: int | None,
    *,
    transfer: Sequence[Config] = (),
    seed: int = 0,
) -> Strategy:
    """The strategy for a space. Strategies are chosen only here.

    A space within the limit is listed. It is also listed if no more configs are tried than a search needs to begin
    with. Other spaces are searched.

    Args:
        space: all configs that a kernel has for a target.
        guesses: the author's guesses, best first.
        limit: how many configs to try at most. None is all: callers that ask in parts get the order of a search.
        transfer: configs that won on other problems, dtypes or devices, best first. They are tried after the guesses.
            Like guesses, each may leave parameters open. Those that are not in the space are left out.
        seed: for what is random in a search.
    """
    configs, first = list(space), [*guesses, *transfer]
    if limit is not None and (limit >= len(configs) or limit <= _NOTHING_TO_LEARN):
        return Listed(configs, first, limit)
    return Portfolio(*_in_order(configs, first), limit, seed)


def _in_order(
    space: Iterable[dict[str, ConfigValue]], first: Sequence[Config]
) -> tuple[list[dict[str, ConfigValue]], list[dict[str, ConfigValue]]]:
    """The configs of a space that match `first`, one each in its order; and the others in a random order."""
    distinct = {canonical_digest(c): c for c in space}
    rest = [distinct[d] for d in sorted(distinct)]
    random.Random(len(rest)).shuffle(rest)
    queue: list[dict[str, ConfigValue]] = []
    for wanted in first:
        match = next((c for c in rest if all(c.get(k) == v for k, v in wanted.items())), None)
        if match is not None:
            rest.remove(match)
            queue.append(match)
    return queue, rest


class Portfolio:
    """A strategy that learns: a spread-out start, then the proposals of two surrogates.

    A Gaussian process and a forest of random trees take turns, because neither is always right. The process sees trends
    early, the forest sees cliffs. Both learn from the logarithm of the cost. They look most closely
    at the neighbours of the best configs. Configs that are likely to fail, judged by earlier failures, are put off.

    The same calls with the same space and seed propose the same configs. `tell` may be called again for a config: the
    last cost counts. The cost of a config outside the space is ignored.

    Args:
        first: configs of the space to try first, in this order.
        rest: the others.
        limit: configs to propose at most; None is all.
        seed: for everything that is random.
    """

    def __init__(
        self,
        first: Sequence[dict[str, ConfigValue]],
        rest: Sequence[dict[str, ConfigValue]],
        limit: int | None = None,
        seed: int = 0,
    ) -> None:
        self._configs = [*first, *rest]
        self._numbers = {_key(c): i for i, c in enumerate(self._configs)}
        self._space = Encoding(self._configs)
        self._random = np.random.RandomState(seed)
        self._all_at_once = limit is None
        self._limit = len(self._configs) if limit is None else min(limit, len(self._configs))
        self._first = len(first)
        self._opening = min(self._limit, max(len(first) + 4, min(_START, max(4, self._limit // 4))))
        self._asked: list[int] = []
        self._fresh = np.ones(len(self._configs), dtype=bool)
        self._told = Told()
        self._models = Models(self._space, self._random)
        self._turn = 0

    def ask(self, count: int) -> list[dict[str, ConfigValue]]:
        """Up to `count` new configs, no more than is useful at once; empty when the limit is reached."""
        left = self._limit - len(self._asked)
        if self._all_at_once and count >= left:
            return [self._propose(int(i)) for i in np.flatnonzero(self._fresh)]
        sensible = self._opening - len(self._asked)
        wanted = min(count, left, sensible if sensible > 0 else _STEP)
        return [self._propose(self._next()) for _ in range(wanted)]

    def tell(self, config: Config, cost: float) -> None:
        """Report a config's cost. A cost that is not finite means failure."""
        number = self._numbers.get(_key(config))
        if number is not None:
            self._told.tell(number, cost)

    def _propose(self, number: int) -> dict[str, ConfigValue]:
        self._asked.append(number)
        self._fresh[number] = False
        return dict(self._configs[number])

    def _next(self) -> int:
        if len(self._asked) < self._first:
            return len(self._asked)
        best = self._told.best(_BEST)
        if len(self._asked) < self._opening or not best:
            return self._far_from_all()
        self._turn += 1
        unknown = [i for i in self._asked if not self._told.has_cost(i)]
        near = self._near(best)
        if self._turn % _POLISH == 0 and len(near):
            return int(near[np.argmax(self._models.expected(near, self._told, unknown))])
        pool = self._pool(near)
        return int(pool[np.argmax(self._models.promise(pool, self._told, unknown, smooth=self._turn % 2 == 1))])

    def _far_from_all(self) -> int:
        """Among some random configs, the one that is farthest from its nearest proposed neighbour."""
        fresh = np.flatnonzero(self._fresh)
        some = self._random.choice(fresh, min(len(fresh), _SPREAD_OVER), replace=False)
        if not self._asked:
            return int(some[0])
        points = self._space.points
        nearest = np.full(len(some), math.inf)
        for number in self._asked:
            nearest = np.minimum(nearest, ((points[some] - points[number]) ** 2).sum(axis=1))
        return int(some[np.argmax(nearest)])

    def _near(self, best: Sequence[int]) -> Ints:
        """Unproposed configs that differ from one of the best in one parameter, or from the best by two places."""
        near = self._space.steps(best[0]) <= 2
        for number in best:
            near |= self._space.distances(number) <= 1
        return np.flatnonzero(near & self._fresh)

    def _pool(self, near: Ints) -> Ints:
        """The configs to choose from: all unproposed ones, or in a large space `near` and a random sample."""
        elsewhere = self._fresh.copy()
        elsewhere[near] = False
        others = np.flatnonzero(elsewhere)
        if len(others) > _POOL:
            others = self._random.choice(others, _POOL, replace=False)
        return np.concatenate([near, others])


def _key(config: Config) -> tuple[tuple[str, str, object], ...]:
    """Identifies a config: `True` differs from 1."""
    return tuple((name, type(config[name]).__name__, config[name]) for name in sorted(config))
