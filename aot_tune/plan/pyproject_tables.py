"""What a project's pyproject.toml says of its build. Only the standard library: the build backend uses this too."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

__all__ = ["define_text", "table_of"]


def table_of(project: Path, *names: str) -> dict[str, Any]:
    """A table of the project's pyproject.toml, such as `tool`, `scikit-build`; empty if there is none."""
    try:
        toml = importlib.import_module("tomllib")
    except ImportError:  # Python 3.10: scikit-build-core brings the same module under another name
        toml = importlib.import_module("tomli")
    try:
        with (project / "pyproject.toml").open("rb") as file:
            found = toml.load(file)
        for name in names:
            found = found[name]
    except (OSError, KeyError, TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def define_text(value: object) -> str:
    """A definition for scikit-build-core as text: a list is joined; a table names a variable and a default."""
    if isinstance(value, list):
        return ";".join(map(str, value))
    if isinstance(value, dict):
        return os.environ.get(str(value.get("env", "")), "") or define_text(value.get("default"))
    return "" if value is None else str(value)
