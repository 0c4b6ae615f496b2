"""Which names a spec may use. Names that end up in C, CMake or file names are checked here, on entry."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePosixPath

from aot_tune.support.errors import SpecError, did_you_mean

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}\Z")
_TEMPLATE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*\Z")
_RESERVED = frozenset(
    # reserved words of C++17, and those of C and Python that C++ does not have
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr const_cast
    continue decltype default delete do double dynamic_cast else enum explicit export extern false float for friend goto
    if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public
    register reinterpret_cast return short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor
    xor_eq restrict as assert async await def del elif except finally from global import in is lambda nonlocal pass
    raise with yield None True False
    """.split()  # noqa: SIM905 - a list of a hundred lines is not clearer
)
_ARGUMENTS = frozenset(("buffer", "exec", "made", "size", "stream", "taken", "tuned", "workspace", "workspace_size"))


def check_identifier(name: object, what: str, *, argument: bool = False) -> str:
    """Return `name` if it can be an identifier in C, Python and CMake; with `argument`, also beside the library's own.

    Raises:
        SpecError: when it is not a string of 1 to 64 letters, digits and underscores, or is a reserved word.
    """
    if not isinstance(name, str) or not _IDENTIFIER.match(name):
        shown = repr(name) if len(repr(name)) <= 80 else repr(name)[:77] + "..."
        raise SpecError(
            f"{what} {shown} is not a valid name",
            why="names become identifiers in C, Python and CMake",
            fix="use 1 to 64 letters, digits and underscores, beginning with a letter",
        )
    if name in _RESERVED or (argument and name in _ARGUMENTS):
        raise SpecError(f"{what} {name!r} is a reserved name", fix="choose another name")
    return name


def check_template_path(path: object, what: str) -> str:
    """A plain relative path with forward slashes and without `..`. Raises SpecError for any other."""
    if not isinstance(path, str) or not _TEMPLATE.match(path) or ".." in PurePosixPath(path).parts:
        raise SpecError(
            f"{what}: template path {path!r} is not allowed",
            why="templates are read only from below their roots",
            fix="give a relative path such as 'gemm/cpu/packed.cpp.j2'",
        )
    return path


def check_among(
    name: object, known: Collection[str], what: str, *, why: str = "", choices: Collection[str] = ()
) -> None:
    """Raise SpecError, which says `what`, unless a name is known. It suggests the nearest of them, or of `choices`."""
    if name not in known:
        raise SpecError(what, why=why, fix=did_you_mean(str(name), choices or known))


def check_several(values: object, what: str) -> None:
    """Raise SpecError unless the value is a tuple or list. A single value lacks its comma."""
    if not isinstance(values, (tuple, list)):
        text = repr(values) if isinstance(values, str) else str(values)
        shown = text if len(text) <= 80 else text[:77] + "..."
        fix = "write (one,) with a comma if there is only one"
        if isinstance(values, str):
            fix = f"write {tuple(values.replace(',', ' ').split())}"
        raise SpecError(f"{what} is not a tuple but {shown}", fix=fix)
