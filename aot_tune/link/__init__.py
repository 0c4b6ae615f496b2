"""From chosen variants to a library: dispatch code, C header, Python module, archive of objects, manifest."""

from __future__ import annotations

from pathlib import Path

from aot_tune.link.check.verify_library import verify
from aot_tune.link.emit.generate import Generated, generate
from aot_tune.link.library_records import DecisionNode, LibrarySpec, LinkedVariant, OperatorTable, TargetTable
from aot_tune.support.installed_paths import PACKAGE, RUNTIME

__all__ = [
    "DecisionNode",
    "Generated",
    "LibrarySpec",
    "LinkedVariant",
    "OperatorTable",
    "TargetTable",
    "binding_folder",
    "generate",
    "runtime_folder",
    "verify",
]


def runtime_folder() -> Path:
    """The C++ sources that every library holds, with the public base header under `include/`."""
    return RUNTIME


def binding_folder() -> Path:
    """The C++ sources that every Python module holds."""
    return PACKAGE / "link" / "binding"
