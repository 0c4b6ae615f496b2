"""Headers that a source depends on, but that no compiler lists: it did not find them, or it failed in them.

A file that does not exist has an empty digest (see `entry.file_digest`), so it is treated like any included file. Once
it exists, what was compiled without it is compiled again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from aot_tune.compile.programs import QUERY_SECONDS, Compiler
from aot_tune.support.run_program import run

_TESTS = frozenset((b"__has_include", b"__has_include_next"))
_DIRECTIVE = re.compile(rb"^[ \t]*#[ \t]*(if|elif|define)\b(.*)$", re.MULTILINE)
_COMMENT = re.compile(rb"//.*|/\*.*?\*/")
_MACRO = re.compile(rb"[ \t]*(\w+)(?:\(([^)]*)\))?(.*)")
_NAME = re.compile(rb"\s*(?:[<\"]([^>\"\n]+)[>\"]|(\w+))\s*")
_ASSEMBLES = re.compile(rb"incbin|\.include\b")
"""What lets an assembler read a file, if it is in assembly."""
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


class Sought(NamedTuple):
    """What a compile depends on beside the opened files.

    `paths` is all if `whole`: no `__has_include` tests what only the preprocessor knows. If it `assembles`, the
    assembler may also read files.
    """

    paths: list[str]
    whole: bool
    assembles: bool


class _Seen(NamedTuple):
    """What a text tests: `names` of headers, words that are no names, and macros that test one of their `parameters`.

    `values` are pairs: a macro, and the header or word that it stands for, or nothing for what is neither.
    """

    names: frozenset[bytes]
    words: frozenset[bytes]
    macros: frozenset[bytes]
    values: frozenset[tuple[bytes, bytes, bytes]]
    assembles: bool


def sought(
    source: str, opened: Iterable[str], folders: Sequence[str], log: str = "", flags: Sequence[str] = ()
) -> Sought:
    """Paths that a compile depends on beside the opened ones, by their contents or by their absence.

    There are three kinds: headers that would be found before an included one, headers that `__has_include` looks for
    (up to the first that exists), and missing headers that made the compile fail.

    Args:
        source: the text that is compiled.
        opened: paths of the files that it includes.
        folders: what `search_folders` returned.
        log: the compiler's output.
        flags: of the compiler, some of which may define macros.
    """
    included = list(opened)
    real = {path: os.path.realpath(path) for path in included}  # each compile may have its own link to it
    given = "\n".join(flags).replace("-D\n", "-D").split("\n")
    text = "".join(f"#define {flag[2:].replace('=', ' ', 1)}\n" for flag in given if flag.startswith("-D")) + source
    tests, before = _TESTS, frozenset[bytes]()
    while tests != before:  # a macro may test by another macro
        before, own = tests, _seen(text.encode(), tests)
        seen = {path: seen_in_file(real[path], before) for path in included}
        tests = before.union(own.macros, *(s.macros for s in seen.values()))
    every = (own, *seen.values())
    computed, whole = _stand_for({w for s in every for w in s.words}, every)
    paths = {path for name in included for path in _before(name, folders)}
    missing = {name for pattern in _MISSING for name in pattern.findall(log)}
    for name in (*(own.names | computed if own.words else own.names), *map(os.fsencode, missing)):
        paths.update(_places(os.fsdecode(name), folders))
    for path in included:
        beside = (str(Path(path).parent), *folders)
        for name in seen[path].names | computed if seen[path].words else seen[path].names:
            paths.update(_places(os.fsdecode(name), beside))
        if missing and not _inside(path, folders):
            paths.update(str(Path(path).parent / name) for name in missing)
    return Sought(sorted(paths.difference(included)), whole, any(s.assembles for s in every))


def _stand_for(words: Collection[bytes], seen: Iterable[_Seen]) -> tuple[frozenset[bytes], bool]:
    """The headers that macros stand for, and whether that is all that they may stand for."""
    values: dict[bytes, set[tuple[bytes, bytes]]] = {}
    for macro, name, word in (value for s in seen for value in s.values) if words else ():
        values.setdefault(macro, set()).add((name, word))
    names, known, left, whole = set[bytes](), set[bytes](), list(words), True
    while left:
        word = left.pop()
        if word in known:
            continue
        known.add(word)
        whole &= word in values
        for name, other in values.get(word, ()):
            whole &= bool(name or other)
            names |= {name} if name else set()
            left += [other] if other else []
    return frozenset(names), whole


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
def seen_in_file(path: str, tests: frozenset[bytes]) -> _Seen:
    """What a file tests by macros such as `__has_include`. Nothing if it cannot be read."""
    try:
        return _seen(Path(path).read_bytes(), tests)
    except OSError:
        return _seen(b"", tests)


def _seen(text: bytes, tests: Iterable[bytes]) -> _Seen:
    names, words, macros, values = set[bytes](), set[bytes](), set[bytes](), set[tuple[bytes, bytes, bytes]]()
    call = re.compile(rb"\b(?:" + b"|".join(sorted(tests)) + rb")[ \t]*\(" + _NAME.pattern)
    for kind, rest in _DIRECTIVE.findall(text.replace(b"\\\n", b" ")):
        body, parameters, macro = _COMMENT.sub(b" ", rest), frozenset[bytes](), b""
        if kind == b"define" and (match := _MACRO.match(body)):
            macro, body = match[1], match[3]
            parameters = frozenset(p.strip() for p in (match[2] or b"").split(b","))
            value = _NAME.fullmatch(body)
            if match[2] is None:
                values.add((macro, value[1] or b"", value[2] or b"") if value else (macro, b"", b""))
        for name, word in call.findall(body):
            if name:
                names.add(name)
            elif word in parameters:
                macros.add(macro)
            else:
                words.add(word)
    held = bool(_ASSEMBLES.search(text))
    return _Seen(frozenset(names), frozenset(words), frozenset(macros), frozenset(values), held)
