"""Loads the object that a reference names: `package.module:name` or `folder/file.py:name`."""

from __future__ import annotations

import importlib
import operator
import sys
import traceback
import types
from collections.abc import Sequence
from pathlib import Path

from aot_tune.support.errors import SpecError, did_you_mean

__all__ = ["load", "module_file"]

_PACKAGE = "aot_tune_functions"


def load(reference: str, roots: Sequence[str]) -> object:
    """Import what a reference names. A file is below the first of `roots` that has it.

    A file may import its neighbours (`from .blocks import x`).

    Raises:
        SpecError: when it does not exist, is outside of its root, or its module fails.
    """
    place, _, name = reference.partition(":")
    module_name = _file_module(place, roots) if place.endswith(".py") or "/" in place else place
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError)
        raise SpecError(
            f"{reference}: its module cannot be imported: {type(error).__name__}: {error}{_origin(error)}",
            why="Triton functions are read without a GPU, in a process of their own",
            fix=f"install {error.name}"
            if missing and isinstance(error, ModuleNotFoundError)
            else "check whether it needs a device or an environment variable. A file of your own below the templates "
            "can set the variable, and then import the function",
        ) from error
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        fix = did_you_mean(name, [n for n in vars(module) if not n.startswith("_")])
        raise SpecError(f"{reference}: {place} has no {name!r}", fix=fix) from None


def module_file(module: str) -> str:
    """The path that a module's name stands for: `package/module.py`. For a file below the templates, its path there."""
    return module.removeprefix(f"{_PACKAGE}.").replace(".", "/") + ".py"


def _file_module(place: str, roots: Sequence[str]) -> str:
    """The name under which a file is imported. It is the same wherever its root is, because code contains it."""
    for root in map(Path, roots):
        path = root / place
        if not path.is_file():
            continue
        if not path.resolve().is_relative_to(root.resolve()):
            raise SpecError(
                f"{place} leads outside its root {root}",
                why=f"it resolves to {path.resolve()}",
                fix="put the file itself below the template root",
            )
        if "." in path.stem:
            raise SpecError(f"{place}: {path.stem!r} has a dot", why="it is imported as a module", fix="rename it")
        parts = [_PACKAGE, *Path(place).parent.parts]
        for count in range(1, len(parts) + 1):
            _package(".".join(parts[:count]), [str(Path(r, *parts[1:count])) for r in roots])
        return ".".join([*parts, path.stem])
    listed = ", ".join(roots) or "no folder"
    raise SpecError(f"there is no file {place}", why=f"looked below {listed}", fix="write its path below the templates")


def _package(name: str, folders: list[str]) -> None:
    if name in sys.modules:
        return
    package = types.ModuleType(name)
    package.__path__ = folders
    sys.modules[name] = package


def _origin(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    own = [f for f in frames if Path(f.filename).name != "load.py" and Path(f.filename).parent.name != "importlib"]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
