"""Names for people: of variants, and the command that tries a candidate again."""

from __future__ import annotations

import shlex
from pathlib import Path

from aot_tune.compile import Variant
from aot_tune.render import Candidate
from aot_tune.spec import Operator, Problem
from aot_tune.spec.load_operators import bundled_templates

__all__ = ["again", "candidate_name", "variant_name"]


def variant_name(entry: Variant) -> str:
    """The name of an entry's candidate for people."""
    return candidate_name(entry.candidate)


def candidate_name(candidate: Candidate) -> str:
    """The name of a candidate for people: its kernel and the beginning of its id."""
    return f"{candidate.kernel}_{candidate.id[:8]}"


def again(operator: Operator, entry: Variant, target: str, problem: Problem | None = None) -> str:
    """The command that compiles, verifies and times one candidate, on one problem or on all that it serves.

    It holds no path of this machine: template roots have only their last part, as in a project's folder.
    """
    words = ["aot-tune", "try", operator.name, variant_name(entry), "--target", target]
    root = Path(operator.folder).parent
    if operator.folder and root.resolve() != bundled_templates().resolve():
        words += ["--templates", root.name]
    return shlex.join([*words, "--problem", problem.id] if problem is not None else words)
