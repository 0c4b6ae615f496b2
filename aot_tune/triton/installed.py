"""What is installed: Triton itself, and functions by their references, `package.module:name` or `folder/file.py:name`.

Nothing here imports Triton.
"""

from __future__ import annotations

import importlib
import operator
import re
import sys
import traceback
import types
from collections.abc import Sequence
from pathlib import Path

import msgspec

from aot_tune.support.errors import SpecError, ToolchainError, did_you_mean
from aot_tune.support.installed_paths import project_folder

FIRST, LAST = (3, 6), (3, 9)
_VERSION = re.compile(r"^__version__ *= *['\"]([^'\"]+)['\"]", re.MULTILINE)

_PACKAGE = "aot_tune_functions"


class Installed(msgspec.Struct, frozen=True):
    """The package's folder and version."""

    folder: Path
    version: str


def check_version(version: str) -> None:
    """Accept only versions whose private interface is known.

    Raises:
        ToolchainError: for any other version, with what to install.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or not FIRST <= (int(match[1]), int(match[2])) <= LAST:
        tested = f"{FIRST[0]}.{FIRST[1]} to {LAST[0]}.{LAST[1]}"
        raise ToolchainError(
            f"Triton {version} is installed, tested are {tested}",
            why="kernels are compiled through parts of Triton that change between versions",
            fix=f"`pip install 'triton>={FIRST[0]}.{FIRST[1]},<{LAST[0]}.{LAST[1] + 1}'`",
        )


def find_triton(search: Sequence[str] | None = None) -> Installed:
    """The package that `import triton` would find in `search`; the default is where this process imports from.

    Raises:
        ToolchainError: when there is none, or its version was not tested.
    """
    for entry in sys.path if search is None else search:
        start = Path(entry or ".", "triton", "__init__.py")
        if start.is_file():
            match = _VERSION.search(start.read_text(errors="replace"))
            check_version(match[1] if match else "of an unknown version")
            return Installed(start.parent.resolve(), match[1] if match else "")
    raise ToolchainError(
        "Triton is not installed",
        why="kernels of backend 'triton' are compiled when the library is built",
        fix=f"`pip install 'triton>={FIRST[0]}.{FIRST[1]},<{LAST[0]}.{LAST[1] + 1}'`, or name it among the build "
        "requirements",
    )


def load(reference: str, roots: Sequence[str]) -> object:
    """Import what a reference names. A file is below the first of `roots`, or of the folders above them, that has it.

    It may import its neighbours (`from .blocks import x`), modules of these folders (`from vendor.flash import x`), and
    the package that it is in, by its name.

    Raises:
        SpecError: when it does not exist, is outside of its root, or its module fails.
    """
    source, _, name = reference.partition(":")
    module_name = _module_of_file(source, roots) if source.endswith(".py") or "/" in source else source
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        absent = (
            f"it imports {module_file(missing)}, which is not beside it: copy that, or write one with what it needs"
        )
        raise SpecError(
            f"{reference}: its module cannot be imported: {type(error).__name__}: {error}{_origin(error)}",
            why="Triton functions are read without a GPU, in a process of their own",
            fix=absent
            if missing.startswith(_PACKAGE)
            else f"install {missing}"
            if missing
            else "check whether it needs a device or an environment variable. A file of your own below the templates "
            "can set the variable, and then import the function",
        ) from error
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        fix = did_you_mean(name, [n for n in vars(module) if not n.startswith("_")])
        raise SpecError(f"{reference}: {source} has no {name!r}", fix=fix) from None


def module_file(module: str) -> str:
    """The path that a module's name stands for: `package/module.py`. For a file below the templates, its path there."""
    return module.removeprefix(f"{_PACKAGE}.").replace(".", "/") + ".py"


def _module_of_file(file: str, roots: Sequence[str]) -> str:
    """The name under which a file is imported. It is the same wherever its root is, because code contains it."""
    folders = list(dict.fromkeys([*map(Path, roots), *(p for r in roots for p in _above(Path(r)))]))
    sys.path += [str(folder) for folder in folders if str(folder) not in sys.path]
    for root in folders:
        path = root / file
        if not path.is_file():
            continue
        if not path.resolve().is_relative_to(root.resolve()):
            raise SpecError(
                f"{file} leads outside its root {root}",
                why=f"it resolves to {path.resolve()}",
                fix="put the file itself below the template root",
            )
        if "." in path.stem:
            raise SpecError(f"{file}: {path.stem!r} has a dot", why="it is imported as a module", fix="rename it")
        packages = [p for p in path.parents if p.is_relative_to(root) and (p / "__init__.py").is_file()]
        sys.path += [str(packages[-1].parent)] if packages else []
        parts = [_PACKAGE, *Path(file).parent.parts]
        for count in range(1, len(parts) + 1):
            _package(".".join(parts[:count]), [str(Path(r, *parts[1:count])) for r in folders])
        return ".".join([*parts, path.stem])
    listed = ", ".join(map(str, folders)) or "no folder"
    raise SpecError(
        f"there is no file {file}",
        why=f"looked below {listed}",
        fix="write its path below the templates, or below the project's folder",
    )


def _above(root: Path) -> list[Path]:
    """The folders above a template root, up to the project's."""
    top = project_folder(root)
    return [p for p in root.resolve().parents if p.is_relative_to(top)]


def _package(name: str, folders: list[str]) -> None:
    if name in sys.modules:
        return
    package = types.ModuleType(name)
    package.__path__ = folders
    sys.modules[name] = package


def _origin(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    outside = [f for f in frames if f.filename != __file__ and Path(f.filename).parent.name != "importlib"]
    return f" ({Path(outside[-1].filename).name}:{outside[-1].lineno})" if outside else ""
