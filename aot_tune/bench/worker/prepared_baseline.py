"""Baselines in the frameworks' worker, for any device."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from aot_tune.spec import Baseline, Operator

__all__ = ["PreparedBaseline", "UnusableError", "baseline_of"]


class UnusableError(Exception):
    """A baseline cannot run here. The text says why."""


@dataclass(frozen=True)
class PreparedBaseline:
    """A baseline on a problem, ready to be timed.

    Args:
        sample: gives the mean ns of so many calls, after so many calls that are not timed.
        error: the largest error of its outputs, in tolerances.
        note: what is wrong if the error is more than 1. A baseline may compute less than the operator, such as a
            product without its epilogue.
        close: releases what it holds.
    """

    sample: Callable[[int, int], float]
    error: float
    note: str
    close: Callable[[], None] = lambda: None


def baseline_of(operator: Operator, name: str) -> tuple[Baseline, ModuleType]:
    """A baseline of an operator, and the module that it requires.

    Raises:
        UnusableError: when there is no such baseline, or no such module.
    """
    baseline = next((b for b in operator.baselines if b.name == name), None)
    if baseline is None:
        raise UnusableError(f"operator {operator.name!r} has no baseline {name!r}")
    try:
        return baseline, importlib.import_module(baseline.requires)
    except ImportError as missing:
        raise UnusableError(f"{baseline.requires} cannot be used here: {missing}") from missing
