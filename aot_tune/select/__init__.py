"""Which variants to keep, and the decision function for every shape."""

from __future__ import annotations

from aot_tune.select.choose_variants import PRESELECTED, SCOUTS, Costs, preselect, scouts
from aot_tune.select.decide import NEAREST, Cell, Expectation, Guards, Judged, Rule, Survey
from aot_tune.select.nearest import Form, Nearest, form_of
from aot_tune.select.selection import (
    REGRET_LIMIT,
    SURVEYED,
    ChoiceLimits,
    Selection,
    all_picked,
    picked,
    ranked,
    select,
)
from aot_tune.select.terms import Term, Terms, terms_of
from aot_tune.select.time_model import TimeModel, Tree

__all__ = [
    "NEAREST",
    "PRESELECTED",
    "REGRET_LIMIT",
    "SCOUTS",
    "SURVEYED",
    "Cell",
    "ChoiceLimits",
    "Costs",
    "Expectation",
    "Form",
    "Guards",
    "Judged",
    "Nearest",
    "Rule",
    "Selection",
    "Survey",
    "Term",
    "Terms",
    "TimeModel",
    "Tree",
    "all_picked",
    "form_of",
    "picked",
    "preselect",
    "ranked",
    "scouts",
    "select",
    "terms_of",
]
