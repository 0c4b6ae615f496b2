"""What a build needs beside its static requirements: torch, Triton, nvcc, CUTLASS, XLA's headers, or nothing.

It depends on the targets, the machine, and the kernels and CMake code of the project. Only the standard library is
used, because the build backend asks before anything else is installed.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from aot_tune.support.cuda_tools import NVCC_WHEELS, SYSTEM_CUDA

_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include[ \t]*[<\"](?:cutlass|cute)/", re.MULTILINE)
_SOURCES = (".j2", ".cu", ".cuh", ".h", ".hpp", ".inl")
_CALL = re.compile(r"\baot_tune_add_library\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)", re.IGNORECASE)
_COMMENT = re.compile(r"#[^\n]*")
_KEYWORD = re.compile(r"[A-Z_]+\Z")

_MEASURING, _REPLAYING = ("auto", "tune"), ("replay", "replay-or-generic")
_TORCH = "torch>=2.9"
_CUTLASS = "nvidia-cutlass>=4.2"
_XLA = "jaxlib>=0.6"
_TRITON = "triton>=3.6,<3.10"
_OLDEST_WHEELS = 13
"""The oldest CUDA whose nvcc wheels contain nvcc."""
_SECONDS = 20.0
_SKIPPED = ("build", "dist", "node_modules", "__pycache__")


def table_of(project: Path, *names: str) -> dict[str, Any]:
    """A table of the project's pyproject.toml, such as `tool`, `scikit-build`; empty if there is none."""
    try:
        toml = importlib.import_module("tomllib")
    except ImportError:  # Python 3.10: scikit-build-core brings the same module under another name
        toml = importlib.import_module("tomli")
    try:
        with (project / "pyproject.toml").open("rb") as file:
            table = toml.load(file)
        for name in names:
            table = table[name]
    except (OSError, KeyError, TypeError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}


def define_text(value: object) -> str:
    """A definition for scikit-build-core as text: a list is joined; a table names a variable and a default."""
    if isinstance(value, list):
        return ";".join(map(str, value))
    if isinstance(value, dict):
        return os.environ.get(str(value.get("env", "")), "") or define_text(value.get("default"))
    return "" if value is None else str(value)


class _Library(NamedTuple):
    """A call of `aot_tune_add_library`: whether it may take bundled templates, and its operators (None: all)."""

    bundled: bool
    operators: frozenset[str] | None


def uses_cutlass(project: Path, bundled: Path | None = None, named: str = "") -> bool:
    """Whether some kernel of the project's libraries may include CUTLASS.

    If the project's CMake code does not say which templates and operators it takes, assume all of them.

    Args:
        bundled: the folder of the bundled templates; the default is this package's.
        named: AOT_TUNE_OPERATORS, which counts before what libraries name.
    """
    libraries = list(_libraries(project)) or [_Library(bundled=True, operators=None)]
    if named:
        asked = None if named == "*" else frozenset(o.strip() for o in named.split(";"))
        libraries = [library._replace(operators=asked) for library in libraries]
    sets = [library.operators for library in libraries]
    own = None if None in sets else frozenset().union(*(s for s in sets if s is not None))
    if _includes(project, own):
        return True
    root = _bundled_templates() if bundled is None else bundled
    return root.is_dir() and any(_includes(root, library.operators) for library in libraries if library.bundled)


def _bundled_templates() -> Path:
    """The bundled templates, installed or in a source tree."""
    package = Path(__file__).resolve().parents[1]
    return package / "templates" if (package / "templates").is_dir() else package.parent / "templates"


def _libraries(project: Path) -> Iterator[_Library]:
    """The libraries that the project's CMake code declares."""
    for path in _files(project):
        if path.name == "CMakeLists.txt" or path.suffix == ".cmake":
            for call in _CALL.findall(_COMMENT.sub("", _contents(path).decode(errors="replace"))):
                yield _library([word.strip('"') for word in call.replace(";", " ").split()])


def _library(words: list[str]) -> _Library:
    values: dict[str, list[str]] = {}
    keyword = ""
    for word in words[1:]:
        keyword = word if _KEYWORD.match(word) else keyword
        values.setdefault(keyword, []).extend([] if word == keyword else [word])
    templates, operators = values.get("TEMPLATES"), values.get("OPERATORS")
    hidden = any(map(_is_variable, values.get("", ())))  # keywords may be in a variable
    bundled = templates is None or any(t == "bundled" or _is_variable(t) for t in templates)
    listed = bool(operators) and not hidden and not any("$" in o for o in operators or ())
    return _Library(bundled=bundled, operators=frozenset(operators or ()) if listed else None)


def _is_variable(word: str) -> bool:
    """Whether a word is just a variable, which may stand for anything."""
    return word.startswith("${") and word.endswith("}")


def _includes(root: Path, operators: frozenset[str] | None) -> bool:
    """Whether a source below a folder includes CUTLASS. Folders of operators that are not named do not count."""
    files = _files(root, operators=operators)
    return any(path.suffix in _SOURCES and _INCLUDE.search(_contents(path)) for path in files)


def _files(
    root: Path, depth: int = 6, skipped: Collection[str] = (*_SKIPPED, "tests"), operators: frozenset[str] | None = None
) -> Iterator[Path]:
    """Files below a folder, with other things of such names. If operators are named, folders of others are left out."""
    top = len(root.parts)
    for folder, folders, names in os.walk(root):
        path = Path(folder)
        if operators is not None and "operator.py" in names and path.name not in operators:
            folders.clear()
            continue
        deep = len(path.parts) - top >= depth
        folders[:] = [] if deep else [f for f in folders if not f.startswith(".") and f not in skipped]
        yield from (path / name for name in names)


def build_requirements(
    settings: Mapping[str, Any] | None,
    environ: Mapping[str, str],
    project: Path,
    *,
    editable: bool = False,
    system: Path = SYSTEM_CUDA,
) -> list[str]:
    """Requirements of a wheel of the project in a folder; empty for one without GPUs and without handlers of XLA.

    Args:
        settings: what the front end passes on (`-C`).
        editable: whether the install is editable. Such an install measures only under AOT_TUNE_MODE=tune.
        system: where the machine's CUDA toolkit is if no variable says it.
    """
    mode = chosen("AOT_TUNE_MODE", settings, environ, project) or "auto"
    text = chosen("AOT_TUNE_TARGETS", settings, environ, project) or "native"
    targets = [t.strip() for t in text.split(";") if t.strip()]
    cuda, hip = (any(t.partition("-")[0] == family for t in targets) for family in ("cuda", "hip"))
    driver, gpus = 0, 0
    if mode in _REPLAYING:
        cuda = cuda or ("native" in targets and _any_file(project, ".jsonl", b"cuda-sm_"))
        hip = hip or ("native" in targets and _any_file(project, ".jsonl", b"hip-gfx"))
    elif cuda or "native" in targets:
        driver, gpus = visible_gpus(environ)
        cuda = cuda or gpus > 0
    wheels = _nvcc_wheels(driver) if cuda and not _has_nvcc(environ, system) else []
    excluded = chosen("AOT_TUNE_EXCLUDE_BACKENDS", settings, environ, project).split(";")
    named = chosen("AOT_TUNE_OPERATORS", settings, environ, project)
    if cuda and not environ.get("CUTLASS_PATH") and "nvcc" not in excluded and uses_cutlass(project, named=named):
        wheels.append(_CUTLASS)
    if (cuda or hip) and _any_file(project, ".py", b"TritonFunction("):
        wheels.append(_TRITON)
    if chosen("AOT_TUNE_XLA_FFI", settings, environ, project) == "1":
        wheels.append(_XLA)
    if gpus and mode in (("tune",) if editable else _MEASURING):
        wheels.append(_TORCH)
    return wheels


def chosen(name: str, settings: Mapping[str, Any] | None, environ: Mapping[str, str], project: Path) -> str:
    """The value of a CMake variable as the build will see it; empty if it is not set.

    The first place counts, in scikit-build-core's order: arguments of CMake, definitions, and an environment variable
    of that name. Arguments and definitions come from the environment, then from the front end, definitions also from
    the project.
    """
    places = (
        _words(environ.get("CMAKE_ARGS", "")),
        _listed(environ.get("SKBUILD_CMAKE_ARGS")) or _listed(_setting("cmake.args", settings)),
        _listed(environ.get("SKBUILD_CMAKE_DEFINE")),
    )
    for word in (word for words in places for word in reversed(words)):
        key, equals, value = word.removeprefix("-D").partition("=")
        if equals and key.partition(":")[0].strip() == name and value:
            return value
    given = _setting(f"cmake.define.{name}", settings)
    if given:
        return define_text(given[-1] if isinstance(given, list) else given)
    defines = table_of(project, "tool", "scikit-build", "cmake", "define")
    return define_text(defines.get(name)) or environ.get(name, "")


def visible_gpus(environ: Mapping[str, str]) -> tuple[int, int]:
    """The newest CUDA that the driver supports (13000 for 13.0, 0 without a driver), and the number of visible GPUs."""
    probe = Path(__file__).resolve().parents[1] / "compile" / "ask_driver.py"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(probe)],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        answer = json.loads(done.stdout)
        return int(answer["driver"]), len(answer["devices"])
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError):
        return 0, 0


def _nvcc_wheels(driver: int) -> list[str]:
    """A complete compiler that is not newer than the driver, if there is a driver."""
    limit = f",<{driver // 1000}.{driver % 1000 // 10 + 1}" if driver // 1000 >= _OLDEST_WHEELS else ",<14"
    return [f"{name}>={_OLDEST_WHEELS}{limit}" for name in NVCC_WHEELS]


def _has_nvcc(environ: Mapping[str, str], system: Path) -> bool:
    """Whether the machine has an nvcc in a place where the toolchain looks. A wrong NVCC is reported later."""
    if environ.get("NVCC") or environ.get("CUDACXX"):
        return True
    homes = [str(Path(environ[n], "bin")) for n in ("CUDA_HOME", "CUDA_PATH") if environ.get(n)]
    places = [*homes, environ.get("PATH", os.defpath), str(system / "bin")]
    return any(shutil.which("nvcc", path=folder) for folder in places)


def _any_file(project: Path, ending: str, text: bytes) -> bool:
    """Whether a file of the project whose name has the given ending contains the text."""
    return any(path.name.endswith(ending) and text in _contents(path) for path in _files(project, 4, _SKIPPED))


def _contents(path: Path) -> bytes:
    """A file's contents; empty if it cannot be read, such as an editor's lock, which is a dangling link."""
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError:
        return b""


def _setting(name: str, settings: Mapping[str, Any] | None) -> Any:
    """The value that a front end passes to scikit-build-core under a name."""
    return (settings or {}).get(name) or (settings or {}).get(f"skbuild.{name}")


def _listed(value: Any) -> list[str]:
    """A list of scikit-build-core. In text form, semicolons separate its items."""
    parts = value if isinstance(value, list) else str(value or "").split(";")
    return [str(part) for part in parts if part]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
