"""Where the installed package has its files, and which modules of this process belong to a project."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from aot_tune.support.errors import BuildError

BUNDLED_MODULE = "aot_tune.ops"
"""The Python module of the bundled operators."""

BUNDLED_PREFIX = "aot_tune"
"""The beginning of their C functions' names."""

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of the package aot_tune, installed or in a source tree."""

RUNTIME = PACKAGE / "runtime"
"""The C++ sources that are part of every library. Below `include/` is the public base header."""

BINDING = PACKAGE / "link" / "binding"
"""The C++ sources that are part of every Python module."""

_HOOKS = ("sitecustomize", "usercustomize", "_distutils_hack", "_virtualenv")
"""Modules that Python imports when it starts."""
_STANDARD = str(Path(functools.__file__).parent) + "/"
"""Where Python's own modules are."""
_CODE = (".py", ".j2", ".h", ".hpp", ".cpp", ".cuh", ".ptx")
_MAIN = ("__main__", "__mp_main__")
_PROJECT = ("pyproject.toml", "CMakeLists.txt", ".git")
_INSTALLED = frozenset(("site-packages", "dist-packages"))


def _installed(relative: str) -> Path:
    """A path of the installed package. In an editable install, CMake's files are in site-packages."""
    import sysconfig

    roots = [PACKAGE, *(Path(sysconfig.get_path(p)) / "aot_tune" for p in ("platlib", "purelib"))]
    for root in roots:
        if (root / relative).exists():
            return root / relative
    raise BuildError(
        f"{relative} is not below {PACKAGE}",
        why="this is a source tree, not an installed package",
        fix="install it with `pip install .`",
    )


def package_code() -> list[Path]:
    """The package's files that decide what a build makes: its code, and templates of what it writes."""
    return [p for p in PACKAGE.rglob("*") if p.suffix in _CODE]


def cmake_dir() -> Path:
    """The folder of aot_tuneConfig.cmake."""
    return _installed("share/cmake/aot_tune")


def include_dir() -> Path:
    """The folder to put on a C compiler's include path."""
    return _installed("include")


def installed_report(module: str = BUNDLED_MODULE) -> Path:
    """The report of the build that made an installed library, by its Python module.

    The report is beside the module. The bundled operators' report has its own place.

    Raises:
        BuildError: when the module is not installed, or has no report.
    """
    if module == BUNDLED_MODULE:
        return _installed("share/aot_tune/ops/report.json")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise _no_module(module, str(error)) from error
    if spec is None:
        raise _no_module(module, "there is no such module")
    if inside := _libraries_in(spec.submodule_search_locations or ()):
        raise BuildError(
            f"{module} is a package, not the module of a library",
            why="a library's module is inside its package, with its report beside it",
            fix=f"name the module: {module}.{inside[0]}",
        )
    if spec.origin is None:
        raise _no_module(module, "there is no such module")
    path = Path(spec.origin).parent / "report.json"
    if not path.is_file():
        raise BuildError(
            f"there is no report beside {module}",
            why=f"looked for {path}",
            fix="install the report.json of its build beside the module, or name it with --build",
        )
    return path


def _no_module(module: str, why: str) -> BuildError:
    return BuildError(f"module {module} is not installed here", why=why, fix="install it, or name a build with --build")


def _libraries_in(package: Iterable[str]) -> list[str]:
    """The modules below the folders of a package that have a report beside them, by their names in it."""
    modules = set[str]()
    for folder in map(Path, package):
        files = (file for report in folder.rglob("report.json") for file in report.parent.glob("*.abi3.so"))
        modules.update(".".join((*file.parent.relative_to(folder).parts, file.name.split(".")[0])) for file in files)
    return sorted(modules)


def is_installed(name: str) -> bool:
    """Whether a module is Python's, this package's or an installed package's. All others belong to a project."""
    top = name.partition(".")[0]
    file = _file_of(sys.modules.get(top)) or _file_of(sys.modules.get(name))
    if not file:
        return top in sys.stdlib_module_names
    if file.startswith(_STANDARD) or top == "aot_tune":
        return True
    return _holds_packages(str(Path(file).parent), Path(file).stem == "__init__")


@functools.cache
def _holds_packages(folder: str, inside: bool) -> bool:
    """Whether installers put modules into this folder; with `inside`, into the folder that encloses it."""
    where = Path(folder).parent if inside else Path(folder)
    return not _INSTALLED.isdisjoint(where.parts) or any(where.glob("*.dist-info"))


def _file_of(module: object) -> str:
    """The file of a module. Empty if another module made it, such as `torch.ops`, even if it claims a file."""
    name = getattr(module, "__file__", None)
    return name if isinstance(name, str) and Path(name).is_absolute() else ""


def project_files() -> list[str]:
    """Files of the project's modules that this process has imported."""
    names = [n for n in list(sys.modules) if n not in _MAIN and n.partition(".")[0] not in _HOOKS]
    files = {_file_of(sys.modules[n]) for n in names if not is_installed(n)}
    return sorted(f for f in files if f and Path(f).is_file())


def project_folder(folder: Path) -> Path:
    """The nearest enclosing folder that holds a project; the folder itself if there is none."""
    resolved = folder.resolve()
    return next((p for p in (resolved, *resolved.parents) if any((p / name).exists() for name in _PROJECT)), resolved)


def enclosing_folders(folder: Path) -> list[Path]:
    """A folder, the one above it, and all others above these, up to the project's."""
    resolved, top = folder.resolve(), project_folder(folder)
    return [p for p in (resolved, *resolved.parents) if p in (resolved, resolved.parent) or p.is_relative_to(top)]
