"""What costs told so far promise of configs that were not tried."""

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
"""Costs above this quantile count as this quantile: how slow the slow ones are says little about where the best is."""

_LEAST_CHANCE = 0.02
"""A model's guess that a config succeeds is never below this."""

_FITTED_AGAIN, _GROWN_AGAIN = 5, 2
"""So many more costs, and the lengths of the Gaussian process are fitted again, or a new forest is grown."""

_LEAST_DEVIATION = 0.02


class Told:
    """The costs of configs by number, in the order in which they were first told; infinite where a config failed."""

    def __init__(self) -> None:
        self._costs: dict[int, float] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._costs

    def __len__(self) -> int:
        return len(self._costs)

    def tell(self, number: int, cost: float) -> None:
        """Take a cost over; the last one of a config stands."""
        self._costs[number] = max(cost, 1e-300) if math.isfinite(cost) else math.inf

    @property
    def succeeded(self) -> Ints:
        """Numbers of the configs that have a finite cost."""
        return np.array([n for n, c in self._costs.items() if c < math.inf], dtype=np.int64)

    @property
    def tried(self) -> tuple[Ints, Floats]:
        """Numbers of all configs, and 1 for those that succeeded, 0 for those that failed."""
        numbers = np.array(list(self._costs), dtype=np.int64)
        return numbers, np.array([float(c < math.inf) for c in self._costs.values()])

    def costs(self, numbers: Iterable[int]) -> Floats:
        """Costs of configs that were told."""
        return np.array([self._costs[int(n)] for n in numbers])

    def best(self, count: int) -> list[int]:
        """Numbers of the configs of least cost, the best first."""
        return sorted((n for n, c in self._costs.items() if c < math.inf), key=lambda n: self._costs[n])[:count]


class Models:
    """The surrogates of one search; each learns again when there is enough news."""

    def __init__(self, space: Encoding, random: np.random.RandomState) -> None:
        self._random = random
        low, high = space.sizes.min(axis=0, initial=math.inf), space.sizes.max(axis=0, initial=-math.inf)
        self._smooth = np.hstack([space.points, (space.sizes - low) / np.maximum(high - low, 1e-9)])
        self._plain = np.hstack([space.ranks, space.evenness, space.sizes])
        self._process = GaussianProcess(self._smooth.shape[1])
        self._chances = GaussianProcess(self._smooth.shape[1])
        self._forest: Forest | None = None
        self._fitted = self._grown = -max(_FITTED_AGAIN, _GROWN_AGAIN)

    def promise(self, pool: Ints, told: Told, pending: Sequence[int], *, smooth: bool) -> Floats:
        """By config of the pool: how much it is expected to better the best cost, times the chance that it succeeds.

        Configs that are being tried (`pending`) count with the cost that is expected of them. `smooth` asks the Gaussian
        process, else the forest is asked.
        """
        chance = self._chance(pool, told, smooth=smooth)
        rows, values = _scaled(told)
        if len(rows) < 3:
            return chance * (1.0 + 0.1 * self._random.random_sample(len(pool)))
        mean, deviation = self._guess(pool, rows, values, pending, smooth=smooth)
        return _expected_improvement(float(values.min()), mean, deviation) * chance

    def expected(self, pool: Ints, told: Told, pending: Sequence[int]) -> Floats:
        """By config of the pool: the chance that it succeeds, discounted by the cost that both models expect."""
        rows, values = _scaled(told)
        chance = self._chance(pool, told, smooth=True)
        if len(rows) < 3:
            return chance
        smooth, _ = self._guess(pool, rows, values, pending, smooth=True)
        plain, _ = self._guess(pool, rows, values, pending, smooth=False)
        return chance * np.exp(-(smooth + plain) / 2.0)

    def _guess(
        self, pool: Ints, rows: Ints, values: Floats, pending: Sequence[int], *, smooth: bool
    ) -> tuple[Floats, Floats]:
        if len(rows) - self._fitted >= _FITTED_AGAIN:
            self._process.fit(self._smooth[rows], values)
            self._fitted = len(rows)
        if smooth or pending:
            self._process.learn(self._smooth[rows], values)
        best = values.min()
        if pending:
            waiting = np.array(pending, dtype=np.int64)
            guessed = np.maximum(self._process.predict(self._smooth[waiting])[0], best)
            rows, values = np.append(rows, waiting), np.append(values, guessed)
        if smooth:
            if pending:
                self._process.learn(self._smooth[rows], values)
            return self._process.predict(self._smooth[pool])
        if self._forest is None or len(rows) - self._grown >= _GROWN_AGAIN:
            self._forest, self._grown = Forest(self._plain[rows], values, self._random), len(rows)
        mean, deviation = self._forest.predict(self._plain[pool])
        return mean, np.maximum(deviation, _LEAST_DEVIATION)

    def _chance(self, pool: Ints, told: Told, *, smooth: bool) -> Floats:
        """The chance that each config of the pool succeeds; 1 until one has failed."""
        rows, succeeded = told.tried
        if succeeded.all():
            return np.ones(len(pool))
        if smooth:
            self._chances.take_lengths(self._process)
            self._chances.learn(self._smooth[rows], succeeded)
            found, _ = self._chances.predict(self._smooth[pool])
        else:
            found, _ = Forest(self._plain[rows], succeeded, self._random, trees=24).predict(self._plain[pool])
        return np.clip(found, _LEAST_CHANCE, 1.0)


def _scaled(told: Told) -> tuple[Ints, Floats]:
    """The configs that succeeded, and the logarithms of their costs, capped, with mean 0 and deviation 1."""
    rows = told.succeeded
    if not len(rows):
        return rows, np.zeros(0)
    logs = np.log(told.costs(rows))
    logs = np.minimum(logs, np.quantile(logs, _CAP))
    return rows, (logs - logs.mean()) / (logs.std() + 1e-9)


def _expected_improvement(best: float, mean: Floats, deviation: Floats) -> Floats:
    """Of a normal guess below the best value (Jones, Schonlau and Welch, 1998, equation 15)."""
    gain = best - mean
    ratio = gain / deviation
    below = np.array([0.5 * math.erfc(-r / math.sqrt(2.0)) for r in ratio.tolist()])
    return gain * below + deviation * np.exp(-0.5 * ratio**2) / math.sqrt(2.0 * math.pi)
