"""What to try next, within a budget."""

from __future__ import annotations

from aot_tune.search.budget import ON_CPU, ON_GPU, Budget, Durations, Gains, Rates, Task, most_promising
from aot_tune.search.strategy import Listed, Portfolio, Strategy, make_strategy

__all__ = [
    "ON_CPU",
    "ON_GPU",
    "Budget",
    "Durations",
    "Gains",
    "Listed",
    "Portfolio",
    "Rates",
    "Strategy",
    "Task",
    "make_strategy",
    "most_promising",
]
