"""The operators that ship with the project, by name."""

from __future__ import annotations

from aot_tune.spec.load_operators import bundled_templates, load_operators

__all__ = ["OPERATORS"]

OPERATORS = {name: operator for name, (_, operator) in load_operators([bundled_templates()]).items()}
