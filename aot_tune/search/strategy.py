"""What to try next: strategies propose configs and learn from their times. They start no process and know no device."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Protocol

from aot_tune.search.portfolio import Portfolio
from aot_tune.spec import Config, ConfigValue
from aot_tune.support.digests import canonical_digest

__all__ = ["Listed", "Strategy", "make_strategy"]


_NOTHING_TO_LEARN = 16
"""A search learns nothing before it has tried about this many configs."""


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
