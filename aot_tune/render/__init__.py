"""Templates to sources."""

from __future__ import annotations

from aot_tune.render.candidate import (
    Candidate,
    assumes_less,
    candidate_for,
    candidates_for,
    combination,
    generic_candidates,
    requirements,
)
from aot_tune.render.environment import SourceLine
from aot_tune.render.renderer import CONSTANTS, Rendered, Renderer
from aot_tune.render.triton.binding import Argument, bind, resolved
from aot_tune.render.triton.recipe import Recipe, read_recipes

__all__ = [
    "CONSTANTS",
    "Argument",
    "Candidate",
    "Recipe",
    "Rendered",
    "Renderer",
    "SourceLine",
    "assumes_less",
    "bind",
    "candidate_for",
    "candidates_for",
    "combination",
    "generic_candidates",
    "read_recipes",
    "requirements",
    "resolved",
]
