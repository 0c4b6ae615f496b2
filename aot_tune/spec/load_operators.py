"""Reads the operators of a library from its folders: each `<root>/<name>/operator.py` defines `operator`."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType

import aot_tune.spec
from aot_tune.spec import FromFile, Operator
from aot_tune.spec.load_sources import with_sources
from aot_tune.spec.names import check_among, check_identifier
from aot_tune.spec.operator import check_unique_operators
from aot_tune.support import limited_code
from aot_tune.support.errors import Mistakes, OptionError, SpecError, did_you_mean
from aot_tune.support.installed_paths import PACKAGE

_ARGUMENT = re.compile(r"(?P<declaration>\w+)\.__init__\(\) (missing|got an unexpected .* '(?P<unknown>\w+)'$)")

MODULE_PREFIX = "_aot_tune_operator_"
"""The names of operators' modules while they are imported."""


def bundled_templates() -> Path:
    """The folder of the operators that ship with the project, installed or in a source tree."""
    installed = PACKAGE / "templates"
    return installed if installed.is_dir() else PACKAGE.parent / "templates"


def operator_folders(roots: Sequence[Path]) -> list[Path]:
    """All operator folders below the roots, by name. Raises SpecError for equal names, or a missing root."""
    folders: list[Path] = []
    for root in roots:
        if not root.is_dir():
            raise SpecError(f"template root {str(root)!r} is not a folder", fix="check TEMPLATES of the library")
        folders += [f.parent for f in root.glob("*/operator.py")]
    folders.sort(key=lambda f: f.name)
    check_unique_operators(f.name for f in folders)
    return folders


def roots_with_bundled(templates: Sequence[str]) -> tuple[str, ...]:
    """A project's template roots, followed by the bundled one, so that templates can include its `common/`.

    The bundled root is left out if both have an operator with the same name, because a library must not. Without own
    roots it is the only one.
    """
    if not templates:
        return ("bundled",)
    bundled = {folder.name for folder in operator_folders([bundled_templates()])}
    names = {folder.name for folder in operator_folders([Path(t) for t in templates if t != "bundled"])}
    return tuple(templates) if "bundled" in templates or names & bundled else (*templates, "bundled")


def template_paths(templates: Sequence[str]) -> list[Path]:
    """The folders of template roots. The name `bundled` stands for that of the bundled templates."""
    return [bundled_templates() if name == "bundled" else Path(name) for name in templates]


def load_operator(folder: Path) -> Operator:
    """Run `operator.py` of a folder and return the operator.

    It may import neighbours, `from .kernels import X`, and modules of folders beside its own, `from ..common.rows
    import X`.

    Raises:
        SpecError: when the file is missing, fails, or does not define `operator` with the folder's name.
    """
    path = folder / "operator.py"
    check_identifier(folder.name, "operator folder")
    if not path.is_file():
        raise SpecError(f"{folder} has no operator.py", fix="declare `operator = Operator(...)` in it")
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    root = f"{MODULE_PREFIX}{folder.name}_{digest}"  # stands for the folder's parent
    name = f"{root}.{folder.name}"
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None:
        raise SpecError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    package = ModuleType(root)
    package.__path__ = [str(folder.parent)]
    sys.modules[root], sys.modules[name] = package, module
    written = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # a build leaves nothing in the source tree
    try:
        with limited_code.limited():
            spec.loader.exec_module(module)
    except limited_code.TooLongError as error:
        raise SpecError(
            f"{path} does not end within {limited_code.SECONDS:g} s",
            why=_place(error, folder),
            fix="declare only the operator. Move slow work into files beside it: values, workloads, kernels",
        ) from None
    except MemoryError as error:
        raise SpecError(
            f"{path} wants more than {limited_code.MEMORY >> 30} GiB of memory",
            why=_place(error, folder),
            fix="declare only the operator. Values may come from_file",
        ) from None
    except SpecError as error:
        mistakes = Mistakes()
        for mistake in error.several or (error,):
            with mistakes.gather():
                raise SpecError(f"{path}: {mistake.what}", why=mistake.why, fix=mistake.fix) from error
        mistakes.tell()
    except (Exception, SystemExit) as error:
        what = f"{path} fails: {type(error).__name__}: {error}"
        raise SpecError(what, why=_place(error, folder), fix=_remedy(error)) from error
    finally:
        sys.dont_write_bytecode = written
        for loaded in [m for m in sys.modules if m == root or m.startswith(f"{root}.")]:
            del sys.modules[loaded]
    operator = getattr(module, "operator", None)
    if not isinstance(operator, Operator) or operator.name != folder.name:
        raise SpecError(
            f"{path} does not define `operator` with name {folder.name!r}",
            why="an operator has the name of its folder",
            fix=f"write `operator = Operator(name={folder.name!r}, ...)`, or rename the folder",
        )
    return with_sources(_with_files(operator, folder), folder)


def _place(error: BaseException, folder: Path) -> str:
    """The innermost line of an operator's files that an error passed through. A SyntaxError names its own line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(folder)]
    return f"{Path(frames[-1].filename).relative_to(folder)}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""


def _remedy(error: BaseException) -> str:
    """What to do about an unknown or missing argument of a declaration; empty for other errors."""
    match = _ARGUMENT.match(str(error)) if isinstance(error, TypeError) else None
    declared = getattr(aot_tune.spec, match["declaration"], None) if match is not None else None
    if match is None or not isinstance(declared, type):
        return ""
    if match["unknown"]:
        return did_you_mean(match["unknown"], inspect.signature(declared).parameters)
    return f"`python -c 'import aot_tune.spec; help(aot_tune.spec.{declared.__name__})'` lists the arguments"


def _with_files(operator: Operator, folder: Path) -> Operator:
    """The operator with its folder, and with the digests of the files that values come from."""
    tensors = list(operator.tensors)
    for number, tensor in enumerate(tensors):
        if isinstance(tensor.values, FromFile):
            try:
                digest = hashlib.sha256((folder / tensor.values.path).read_bytes()).hexdigest()
            except OSError as error:
                raise SpecError(
                    f"operator {operator.name!r}: {tensor.values.path} of tensor {tensor.name!r} cannot be read",
                    why=str(error),
                    fix=f"save them by numpy.save below {folder}",
                ) from error
            tensors[number] = tensor.with_values(FromFile(tensor.values.path, digest))
    return operator.in_folder(str(folder.resolve()), tensors)


def without_backends(operator: Operator, backends: Collection[str]) -> Operator:
    """The operator without kernels that need some backends. Raises OptionError when a generic one is among them."""
    for kernel in operator.generics:
        if kernel.backend in backends:
            raise OptionError(
                f"AOT_TUNE_EXCLUDE_BACKENDS has {kernel.backend!r}",
                why=f"it compiles the generic kernel {operator.name}/{kernel.name}: calls would have no variant",
                fix="name backends without generic kernels, such as cublaslt; AOT_TUNE_TARGETS says what is built for",
            )
    kept = tuple(k for k in operator.kernels if not k.uses(backends))
    if len(kept) == len(operator.kernels):
        return operator
    composed = frozenset(k.name for k in operator.kernels if k.uses(backends) and k.backend not in backends)
    return dataclasses.replace(operator, kernels=kept, left_out=composed)


def load_operators(
    roots: Sequence[Path], names: Sequence[str] = (), exclude: Collection[str] = (), mistakes: Mistakes | None = None
) -> dict[str, tuple[Path, Operator]]:
    """Operators below the roots by name, with their folders. If `names` are given, only these.

    Kernels of the backends in `exclude` are left out, and so are composed kernels with stages of these. If `mistakes`
    is given, it collects errors in operators, and these operators are left out. Otherwise the errors are raised.

    Raises:
        SpecError: for a name that no root has, with the nearest names; and for all errors in operators.
        OptionError: when a backend in `exclude` has a generic kernel.
    """
    folders = {f.name: f for f in operator_folders(roots)}
    check_unique_operators(names)
    for name in names:
        check_among(name, folders, f"there is no operator {name!r}")
    operators: dict[str, tuple[Path, Operator]] = {}
    gathered = Mistakes() if mistakes is None else mistakes
    for name in sorted(names or folders):
        with gathered.gather():
            operators[name] = folders[name], without_backends(load_operator(folders[name]), exclude)
    if mistakes is None:
        gathered.tell()
    return operators
