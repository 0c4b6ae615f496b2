"""The operators that ship with the project, each loaded once."""

from __future__ import annotations

import functools
from typing import Any

from aot_tune.spec import Operator
from aot_tune.spec.load_operators import bundled_templates, load_operator, operator_folders


@functools.cache
def bundled_operator(name: str) -> Operator:
    """The operator of a name."""
    return load_operator(bundled_templates() / name)


def __getattr__(name: str) -> Any:
    if name == "OPERATORS":  # all by name, loaded where they are asked for
        return {folder.name: bundled_operator(folder.name) for folder in operator_folders([bundled_templates()])}
    raise AttributeError(name)
