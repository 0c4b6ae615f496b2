"""The operators of a build, with what the plan knows of them, and the versions of their baselines."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path

from aot_tune.plan.library_plan import Plan
from aot_tune.spec import Operator
from aot_tune.spec.load_operators import load_operators
from aot_tune.triton.ask_declarations import with_declarations


def stated_operators(plan: Plan, roots: Sequence[Path]) -> dict[str, Operator]:
    """The plan's operators by name, with their stated workload and the declarations of their functions."""
    operators = {}
    for name, (_, operator) in load_operators(roots, plan.operators, plan.options.exclude_backends).items():
        stated = plan.workload.stated_for(operator, plan.families)
        operators[name] = with_declarations(stated, plan.inspections, plan.families)
    return operators


def baseline_versions(operator: Operator) -> dict[str, str]:
    """Version of each baseline's package, by baseline name. A package that is not installed is left out."""
    versions = {b.name: _version(b.requires) for b in operator.baselines}
    return {name: version for name, version in versions.items() if version is not None}


@functools.cache
def _version(package: str) -> str | None:
    """A package's version, None if it is not installed. To find it, a file must be read."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
