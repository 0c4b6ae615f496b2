"""Templates to sources."""

from __future__ import annotations

from aot_tune.render.candidate import Candidate, candidate_for, canonical_digest, requirements
from aot_tune.render.environment import SourceLine
from aot_tune.render.renderer import Rendered, Renderer

__all__ = [
    "Candidate",
    "Rendered",
    "Renderer",
    "SourceLine",
    "candidate_for",
    "canonical_digest",
    "requirements",
]
