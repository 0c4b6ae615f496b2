"""Whether a project's kernels include headers of CUTLASS, judged by its files and its CMake code.

Only the standard library is used. The build backend asks before anything is installed, so it cannot run declarations.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["uses_cutlass"]

_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include[ \t]*[<\"](?:cutlass|cute)/", re.MULTILINE)
_SOURCES = (".j2", ".cu", ".cuh", ".h", ".hpp", ".inl")
_CALL = re.compile(r"\baot_tune_add_library\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)", re.IGNORECASE)
_COMMENT = re.compile(r"#[^\n]*")
_KEYWORD = re.compile(r"[A-Z_]+\Z")
_DEPTH = 6
_SKIPPED = ("build", "dist", "node_modules", "__pycache__", "tests")


class _Library(NamedTuple):
    """A call of `aot_tune_add_library`: whether it may take bundled templates, and its operators (None: all)."""

    bundled: bool
    operators: frozenset[str] | None


def uses_cutlass(project: Path, bundled: Path | None = None) -> bool:
    """Whether some kernel of the project's libraries may include CUTLASS.

    If the project's CMake code does not say which templates and operators it takes, assume all of them.

    Args:
        bundled: the folder of the bundled templates; the default is this package's.
    """
    libraries = list(_libraries(project)) or [_Library(bundled=True, operators=None)]
    named = [one.operators for one in libraries]
    own = None if None in named else frozenset().union(*(n for n in named if n is not None))
    if _includes(project, own):
        return True
    roots = [_bundled_templates() if bundled is None else bundled]
    return any(_includes(root, one.operators) for one in libraries if one.bundled for root in roots if root.is_dir())


def _bundled_templates() -> Path:
    """The bundled templates, installed or in a source tree."""
    package = Path(__file__).resolve().parents[1]
    return package / "templates" if (package / "templates").is_dir() else package.parent / "templates"


def _libraries(project: Path) -> Iterator[_Library]:
    """The libraries that the project's CMake code declares."""
    for path in _files(project):
        if path.name == "CMakeLists.txt" or path.suffix == ".cmake":
            for call in _CALL.findall(_COMMENT.sub("", path.read_text(encoding="utf-8", errors="replace"))):
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
    known = bool(operators) and not hidden and not any("$" in o for o in operators or ())
    return _Library(bundled=bundled, operators=frozenset(operators or ()) if known else None)


def _is_variable(word: str) -> bool:
    """Whether a word is just a variable, which may stand for anything."""
    return word.startswith("${") and word.endswith("}")


def _includes(root: Path, operators: frozenset[str] | None) -> bool:
    """Whether a source below a folder includes CUTLASS. Folders of operators that are not named do not count."""
    return any(path.suffix in _SOURCES and _INCLUDE.search(path.read_bytes()) for path in _files(root, operators))


def _files(root: Path, operators: frozenset[str] | None = None) -> Iterator[Path]:
    """Files below a folder. If operators are named, the folders of all others are left out."""
    top = len(root.parts)
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        if operators is not None and "operator.py" in names and here.name not in operators:
            folders.clear()
            continue
        deep = len(here.parts) - top >= _DEPTH
        folders[:] = [] if deep else [f for f in folders if not f.startswith(".") and f not in _SKIPPED]
        yield from (here / name for name in names if (here / name).is_file() and os.access(here / name, os.R_OK))
