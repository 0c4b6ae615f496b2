"""The search strategies of Kernel Tuner, run from its package on a recorded space.

They get what a simulated run of Kernel Tuner gives them, with their default options: its search space, its budget and a
runner that answers with recorded times. Configs outside of the space cost them nothing.
"""

from __future__ import annotations

import contextlib
import io
import math
import random
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from spaces import RecordedSpace

__all__ = ["TunerSearch", "available"]


def available() -> bool:
    """Whether Kernel Tuner is installed."""
    try:
        import kernel_tuner  # noqa: F401
    except ImportError:
        return False
    return True


class TunerSearch:
    """Runs strategies on one space."""

    def __init__(self, space: RecordedSpace) -> None:
        self._space = space
        values = {p: sorted({c[p] for c in space.configs}, key=_order) for p in space.parameters}
        self._cache = {"tune_params": values, "cache": {str(i): c for i, c in enumerate(space.configs)}}

    def run(self, strategy: str, seed: int, count: int) -> list[float]:
        """The costs of up to `count` distinct configs, in the order in which a strategy tried them.

        Raises:
            ValueError: when there is no such strategy.
        """
        from kernel_tuner.interface import Options, strategy_map
        from kernel_tuner.searchspace import Searchspace
        from kernel_tuner.util import StopCriterionReached, TuningBudget

        if strategy not in strategy_map:
            raise ValueError(f"Kernel Tuner has no strategy {strategy!r}; it has {', '.join(strategy_map)}")
        searchspace = Searchspace(None, None, None, from_cache=self._cache)  # it keeps neighbours: one for each run
        runner = _Runner(self._space)
        options = Options(
            tune_params=searchspace.tune_params,
            objective=["time"],
            objective_higher_is_better=[False],
            strategy_options=Options(max_fevals=count),
            max_fevals=count,
            budget=TuningBudget(max_fevals=count),
            cache={},
            verbose=False,
            restrictions=None,
            restrictions_unmodified=None,
            simulation_mode=True,
            strategy=strategy,
            seed=seed,
        )
        random.seed(seed)
        np.random.seed(seed)
        quiet = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(quiet), contextlib.suppress(StopCriterionReached):
            warnings.simplefilter("ignore")
            strategy_map[strategy].tune(searchspace, runner, options)
        return runner.costs[:count]


class _Runner:
    """Answers strategies with recorded times, and notes each config when it is first tried."""

    simulation_mode = True

    def __init__(self, space: RecordedSpace) -> None:
        from kernel_tuner.util import RuntimeFailedConfig

        self._space, self._failed = space, RuntimeFailedConfig
        self._seen: set[tuple[Any, ...]] = set()
        self.costs: list[float] = []

    def add_strategy_time(self, _seconds: float) -> None:
        """Do nothing: time does not count here."""

    def run(self, configs: Iterable[Iterable[Any]], options: Any) -> list[dict[str, Any] | None]:
        """A result for each config; None for configs after the end of the budget."""
        found: list[dict[str, Any] | None] = []
        for config in configs:
            if options.budget.is_done():
                found.append(None)
                continue
            key = tuple(config)
            cost = self._space.costs[key]
            if key not in self._seen:
                self._seen.add(key)
                self.costs.append(cost)
                options.budget.add_evaluations(1)
            result: dict[str, Any] = dict(zip(self._space.parameters, key, strict=True))
            result["time"] = cost
            if math.isinf(cost):
                result["time"] = result["__error__"] = self._failed()
            found.append(result)
        return found


def _order(value: Any) -> tuple[str, Any]:
    return ("", value) if isinstance(value, int | float) else (type(value).__name__, str(value))
