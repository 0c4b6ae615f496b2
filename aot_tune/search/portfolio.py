"""Search in a space that is too large to try completely: a spread-out start, then the proposals of two surrogates.

A Gaussian process and a forest of random trees take turns, because neither is always right. The process sees trends
early, the forest sees cliffs. Both learn from the logarithm of the cost. They look most closely at the neighbours of
the best configs. Configs that are likely to fail, judged by earlier failures, are put off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aot_tune.search.encoding import Encoding
from aot_tune.search.models import Models, Told
from aot_tune.spec import Config, ConfigValue

__all__ = ["Portfolio"]

Ints = NDArray[np.int64]

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


class Portfolio:
    """A strategy that learns.

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
        """Up to `count` configs that were not proposed before, but no more than is useful to try at once.

        Without a limit, a caller that asks for all remaining configs gets them. Empty when the limit is reached.
        """
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
