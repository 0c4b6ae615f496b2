"""What to try next: strategies propose configs and learn from their times. They start no process and know no device."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aot_tune.search.surrogates import Encoding, Models, Told
from aot_tune.spec import Config, ConfigValue
from aot_tune.support.digests import canonical_digest

__all__ = ["Listed", "Portfolio", "Strategy", "make_strategy"]


_NOTHING_TO_LEARN = 16
"""A search learns nothing before it has tried about this many configs."""

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
        """The next `count` configs."""
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
