"""Which variants to keep, and the decision function for every shape."""

from __future__ import annotations

from aot_tune.select.choose_variants import PRESELECTED, SCOUTS, Costs, preselect, scouts
from aot_tune.select.decide import Expectation, Guards, Judged, Survey
from aot_tune.select.nearest import Form, Nearest, form_of
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

__all__ = [
    "PRESELECTED",
    "REGRET_LIMIT",
    "SCOUTS",
    "SURVEYED",
    "ChoiceLimits",
    "Costs",
    "Expectation",
    "Form",
    "Guards",
    "Judged",
    "Nearest",
    "Selection",
    "Survey",
    "Term",
    "Terms",
    "TimeModel",
    "Tree",
    "all_picked",
    "form_of",
    "of_enough_shapes",
    "picked",
    "preselect",
    "ranked",
    "scouts",
    "select",
    "terms_of",
]
