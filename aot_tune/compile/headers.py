"""Headers that a source depends on, but that no compiler lists: it did not find them, or it failed in them.

A file that does not exist has an empty digest (see `entry.file_digest`), so it is treated like any included file. Once
it exists, what was compiled without it is compiled again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from aot_tune.compile.programs import QUERY_SECONDS, Compiler
from aot_tune.support.run_program import run

__all__ = ["headers_tested", "opened_files", "search_folders", "sought"]

_TESTED = re.compile(rb"__has_include(?:_next)?\s*\(\s*[<\"]([^>\"\n]+)[>\"]")
_MISSING = (
    re.compile(
        r"(?:fatal|catastrophic) error: (.+?): "
        r"(?:No such file or directory|Permission denied|Too many levels of symbolic links|Stale file handle)"
    ),
    re.compile(r"fatal error: '(.+?)' file not found"),
    re.compile(r"cannot open source file \"(.+?)\""),
)
_OPENED = re.compile(r"^\.+ (\S.*)$", re.MULTILINE)
_IGNORED = re.compile(r'^ignoring nonexistent directory "(.+)"$', re.MULTILINE)
_LISTED = re.compile(r"search starts here:\n((?: .*\n)*)")
_OWN = re.compile(r"/c\+\+(/|$)|/lib/(gcc|clang)/")
"""The compiler's own folders. Nobody adds single headers to them."""


def opened_files(output: str) -> list[str]:
    """Files that a preprocessor with `-H` says it opened, even if it failed."""
    return sorted({name.strip() for name in _OPENED.findall(output)})


@cache
def search_folders(compiler: Compiler) -> tuple[str, ...]:
    """Folders in which a C++ compiler looks for headers, in its order. Those that do not exist (yet) come first."""
    argv = [*compiler.command, "-E", "-v", "-x", "c++", os.devnull, "-o", os.devnull]
    output = run(argv, folder=Path("/"), environ=dict(compiler.environ), timeout=QUERY_SECONDS).output
    listed = [line.strip() for block in _LISTED.findall(output) for line in block.splitlines()]
    return tuple(dict.fromkeys([*_IGNORED.findall(output), *listed]))


def sought(source: str, opened: Iterable[str], folders: Sequence[str], log: str = "") -> list[str]:
    """Paths that a compile depends on beside the opened ones, by their contents or by their absence.

    There are three kinds: headers that would be found before an included one, headers that `__has_include` looks for
    (up to the first that exists), and missing headers that made the compile fail.

    Args:
        source: the text that is compiled.
        opened: paths of the files that it includes.
        folders: what `search_folders` returned.
        log: the compiler's output.
    """
    included = list(opened)
    paths = {path for name in included for path in _before(name, folders)}
    missing = {name for pattern in _MISSING for name in pattern.findall(log)}
    tested = {name for name in _names(source.encode()) if name not in missing}
    for name in (*tested, *missing):
        paths.update(_places(name, folders))
    for path in included:
        beside = (str(Path(path).parent), *folders)
        for name in headers_tested(os.path.realpath(path)):  # each compile may have its own link to it
            paths.update(_places(name, beside))
        if missing and not _inside(path, folders):
            paths.update(str(Path(path).parent / name) for name in missing)
    return sorted(paths.difference(included))


def _before(path: str, folders: Sequence[str]) -> Iterator[str]:
    """Paths where a header would take the place of an included one."""
    for i, folder in enumerate(folders):
        if path.startswith(f"{folder}/"):
            below = path[len(folder) + 1 :]
            yield from (f"{other}/{below}" for other in folders[:i] if not _OWN.search(other))


def _places(name: str, folders: Sequence[str]) -> Iterator[str]:
    """Where a header of that name is looked for, up to the first place that has it."""
    for folder in folders:
        path = str(Path(folder, name))
        yield path
        try:
            if Path(path).is_file():
                return
        except OSError:  # this user may not enter the folder
            continue


def _inside(path: str, folders: Sequence[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)


@cache
def headers_tested(path: str) -> frozenset[str]:
    """Headers that a file tests with `__has_include`. None if it cannot be read."""
    try:
        return _names(Path(path).read_bytes())
    except OSError:
        return frozenset()


def _names(text: bytes) -> frozenset[str]:
    return frozenset(os.fsdecode(name) for name in _TESTED.findall(text))
