"""The files that a library is made of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from aot_tune.spec import Operator
from aot_tune.support.digests import digest_of_files
from aot_tune.support.installed_paths import PACKAGE

__all__ = ["digest_of_inputs", "input_files"]

_NO_INPUTS = ("__pycache__", ".git")
"""Folders that change by themselves. CMake's build folders do too, if a project's own folder is a root."""


def input_files(
    roots: Sequence[Path], operators: Mapping[str, Operator], database: str, imported: Iterable[str]
) -> list[Path]:
    """The files that a plan is made of.

    They are below the roots of the operators, or records, this package's code, sources of functions, or imported
    modules."""
    files = {p for p in PACKAGE.rglob("*") if p.suffix in (".py", ".cpp", ".h")}
    for root in roots:
        others = {p.name for p in root.iterdir() if (p / "operator.py").is_file() and p.name not in operators}
        for folder, folders, names in os.walk(root):
            here = Path(folder)
            if here == root:
                folders[:] = [f for f in folders if f not in others]
            folders[:] = [f for f in folders if f not in _NO_INPUTS and not (here / f / "CMakeFiles").is_dir()]
            files |= {here / name for name in names if (here / name).is_file()}
    if database:
        files |= {p for p in Path(database).rglob("*.jsonl") if p.is_file()}
    files |= {Path(f.folder, Path(f.path).name) for op in operators.values() for k in op.kernels for f in k.functions}
    below = [root.resolve() for root in roots]
    files |= {p for p in map(Path, imported) if not any(p.resolve().is_relative_to(b) for b in below)}
    return sorted(files)


def digest_of_inputs(files: Sequence[Path], roots: Sequence[Path]) -> str:
    """Digest of names and contents. A file's name is relative to the root that has it."""
    bases = [*(r.resolve() for r in roots), PACKAGE]

    def name(file: Path) -> str:
        return str(file.relative_to(next((b for b in bases if file.is_relative_to(b)), file.parent)))

    return digest_of_files((name(p.resolve()), p) for p in files)
