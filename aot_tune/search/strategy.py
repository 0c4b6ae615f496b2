"""What to try next: strategies propose configs and learn from their times; they start no process and know no device."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Protocol

from aot_tune.render import canonical_digest
from aot_tune.spec import Config, ConfigValue

__all__ = ["Listed", "Strategy", "make_strategy"]


class Strategy(Protocol):
    """Proposes configs of one kernel's space."""

    def ask(self, count: int) -> list[dict[str, ConfigValue]]:
        """Up to `count` configs that were not proposed before; empty when there is nothing more to try."""

    def tell(self, config: Config, cost: float) -> None:
        """Report a config's cost (lower is better; infinite when it failed)."""


class Listed:
    """Goes through a space: the author's first guesses in their order, then the rest in a seeded random order.

    With a `limit` at or above the size of the space it is exhaustive; below, it is random search with a good start. The
    order depends on the space alone.
    """

    def __init__(
        self, space: Iterable[dict[str, ConfigValue]], first: Sequence[Config] = (), limit: int | None = None
    ) -> None:
        rest = sorted(space, key=canonical_digest)
        random.Random(len(rest)).shuffle(rest)
        queue: list[dict[str, ConfigValue]] = []
        for wanted in first:
            match = next((c for c in rest if all(c[k] == v for k, v in wanted.items())), None)
            if match is not None:
                rest.remove(match)
                queue.append(match)
        self._queue = (queue + rest)[:limit]
        self.size = len(queue) + len(rest)

    def ask(self, count: int) -> list[dict[str, ConfigValue]]:
        """The next `count` configs."""
        asked, self._queue = self._queue[:count], self._queue[count:]
        return asked

    def tell(self, config: Config, cost: float) -> None:
        """Nothing to learn: the order is fixed."""


def make_strategy(space: Iterable[dict[str, ConfigValue]], guesses: Sequence[Config], limit: int | None) -> Strategy:
    """The strategy for a space: the one place that picks it.

    Args:
        space: all configs that a kernel has for a target.
        guesses: the author's, best first.
        limit: configs to try at most; None is all.
    """
    return Listed(space, guesses, limit)
