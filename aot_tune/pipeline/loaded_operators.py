"""The operators of a build: loaded from their folders, with what the plan knows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aot_tune.plan.library_plan import Plan
from aot_tune.spec import Operator
from aot_tune.spec.load_operators import load_operators
from aot_tune.triton.read_declarations import with_declarations

__all__ = ["LoadedOperator", "stated_operators"]


@dataclass(frozen=True)
class LoadedOperator:
    """An operator and the folder that it came from."""

    folder: Path
    operator: Operator


def stated_operators(plan: Plan, roots: Sequence[Path]) -> dict[str, LoadedOperator]:
    """The plan's operators by name, with their stated workload and the declarations of their functions."""
    found = {}
    for name, (folder, operator) in load_operators(roots, plan.operators, plan.options.exclude_backends).items():
        stated = plan.workload.stated_for(operator, plan.families)
        found[name] = LoadedOperator(folder, with_declarations(stated, plan.inspections, plan.families))
    return found
