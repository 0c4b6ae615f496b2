"""Which variants to keep, and the decision function for every shape."""

from __future__ import annotations

from aot_tune.select.choose_variants import PRESELECTED, Costs, preselect, scouts
from aot_tune.select.decide import Expectation, Guards, Judged, Survey
from aot_tune.select.selection import (
    REGRET_LIMIT,
    SURVEYED,
    ChoiceLimits,
    Selection,
    all_picked,
    of_enough_shapes,
    picked,
    ranked,
    select,
)
from aot_tune.select.terms import Term, Terms, terms_of
from aot_tune.select.time_model import TimeModel, Tree
from aot_tune.select.tree import Node, rank

__all__ = [
    "PRESELECTED",
    "REGRET_LIMIT",
    "SURVEYED",
    "ChoiceLimits",
    "Costs",
    "Expectation",
    "Guards",
    "Judged",
    "Node",
    "Selection",
    "Survey",
    "Term",
    "Terms",
    "TimeModel",
    "Tree",
    "all_picked",
    "of_enough_shapes",
    "picked",
    "preselect",
    "rank",
    "ranked",
    "scouts",
    "select",
    "terms_of",
]
