"""What the costs told so far promise for configs that were not tried."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from aot_tune.search.encoding import Encoding
from aot_tune.search.forest import Forest
from aot_tune.search.gaussian import GaussianProcess

__all__ = ["Models", "Told"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

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
            found, _ = self._chances.predict(self._smooth[pool])
        else:
            found, _ = self._chance_forest.over(self._plain[rows], succeeded).predict(self._plain[pool])
        return np.clip(found, _LEAST_CHANCE, 1.0) ** 2


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
    found: Floats = gain * below + deviation * np.exp(-0.5 * ratio**2) / math.sqrt(2.0 * math.pi)
    return found
