"""Which modules of this process belong to a project."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

__all__ = ["HOOKS", "STANDARD", "file_of", "is_installed", "project_files"]

HOOKS = ("sitecustomize", "usercustomize", "_distutils_hack", "_virtualenv")
"""Modules that Python imports when it starts."""
STANDARD = str(Path(functools.__file__).parent) + "/"
"""Where Python's own modules are."""
_MAIN = ("__main__", "__mp_main__")
_INSTALLED = frozenset(("site-packages", "dist-packages"))


def is_installed(name: str) -> bool:
    """Whether a module is Python's, this package's or an installed package's. All others belong to a project."""
    top = name.partition(".")[0]
    file = file_of(sys.modules.get(top)) or file_of(sys.modules.get(name))
    if not file:
        return top in sys.stdlib_module_names
    if file.startswith(STANDARD) or top == "aot_tune":
        return True
    return _holds_packages(str(Path(file).parent), Path(file).stem == "__init__")


@functools.cache
def _holds_packages(folder: str, inside: bool) -> bool:
    """Whether installers put modules into this folder; with `inside`, into the folder that encloses it."""
    where = Path(folder).parent if inside else Path(folder)
    return not _INSTALLED.isdisjoint(where.parts) or any(where.glob("*.dist-info"))


def file_of(module: object) -> str:
    """The file of a module. Empty if another module made it, such as `torch.ops`, even if it claims a file."""
    name = getattr(module, "__file__", None)
    return name if isinstance(name, str) and Path(name).is_absolute() else ""


def project_files() -> list[str]:
    """Files of the project's modules that this process has imported."""
    names = [n for n in list(sys.modules) if n not in _MAIN and n.partition(".")[0] not in HOOKS]
    files = {file_of(sys.modules[n]) for n in names if not is_installed(n)}
    return sorted(f for f in files if f and Path(f).is_file())
