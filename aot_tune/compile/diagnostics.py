"""From a compiler's output to the one line that matters, with its place in the template."""

from __future__ import annotations

import re
from collections.abc import Sequence

SOURCE_NAME, CUDA_SOURCE_NAME = SOURCES = ("candidate.cpp", "candidate.cu")
"""Every source is compiled under one of these names, so that objects do not depend on the place."""

_PLACE = re.compile(r"(candidate\.cpp|candidate\.cu)(?::(\d+)(?::\d+)?|\((\d+)\))")
_FROM = re.compile(r"\bat line (\d+) of (candidate\.cu)\b")
_ERROR = re.compile(
    r"^(?:(?P<file>[^\s:(][^:(\n]*)(?::(?P<line>\d+):(?:\d+:)?|\((?P<row>\d+)\):) )?.*?"
    r"(?P<text>(?:fatal |catastrophic |internal compiler |internal )?error(?: #\S+)?: .*)$"
)
_ASSEMBLER = re.compile(r"^ptxas\b.*?\b(?:error|fatal) +: (?P<text>.*)$")
_NAME = re.compile(r"'([^']{80})[^']+'")
_TRANSIENT = (
    "killed signal terminated program",
    "no space left on device",
    "cannot allocate memory",
    "virtual memory exhausted",
    "out of memory",
    "cannot fork",
    "resource temporarily unavailable",
    "too many open files",
    "file too large",
    "disk quota exceeded",
    "internal compiler error",
    "input/output error",
    "memory allocation failure",
    "died due to signal",
)
_LD = re.compile(r"^(?:\S*/)?(?:\S*-)?(?:ld|lld|mold|gold)(?:\.\w+)?: (?!warning)(?P<text>.*)$")
_LINKER = ("undefined reference", "cannot find", "multiple definition", "signal")
_HINTS = (
    ("unsupported GNU version", "set CUDAHOSTCXX to an older g++, or use a newer nvcc"),
    ("died due to signal", "memory may have run out: set AOT_TUNE_JOBS to compile fewer candidates at a time"),
    ("no CUTLASS headers", "`pip install nvidia-cutlass`, or set CUTLASS_PATH to a checkout"),
    ("omp.h: No such file", "install the compiler's OpenMP headers (libgomp, part of g++)"),
    ("can not be used when making a shared object", "a static library was found, not the shared one: install that"),
    ("recompile with -fPIC", "an object or a static library is not for shared libraries: compile it with -fPIC"),
    ("cannot find -lgomp", "install the compiler's OpenMP library (libgomp, part of g++)"),
    ("cannot execute", "the compiler is not installed completely; install g++"),
    ("bad value", "this compiler does not know the target; install g++ 11 or later"),
    ("virtual memory exhausted", "set AOT_TUNE_JOBS to compile fewer candidates at a time"),
    ("Killed signal terminated", "memory may have run out: set AOT_TUNE_JOBS to compile fewer candidates at a time"),
    ("No space left", "free disk space, or set TMPDIR or AOT_TUNE_CACHE_DIR to another disk"),
)


def first_error(log: str, lines: Sequence[tuple[str, int]] = ()) -> str:
    """The first error of a compiler's output, in one line.

    `lines` holds the template and line of each line of the source. A place in the source becomes `template:line`. An
    error in a header is followed by the place that included it. A remedy is added if one is known.
    """
    rows = [row.strip() for row in log.splitlines() if row.strip()]
    if not rows:
        return "the compiler failed and said nothing"
    for number, row in enumerate(rows):
        assembler = _ASSEMBLER.match(row)
        if assembler is not None:
            return f"ptxas: error: {_shortened(assembler['text'])}" + _hint(row)
        match = None if row.startswith("collect2:") else _ERROR.match(row)
        if match is None:
            continue
        text, line = match["text"], match["line"] or match["row"]
        if match["file"] is None or line is None:
            message = row
        elif match["file"] in SOURCES:
            message = f"{_template(match['file'], int(line), lines)}: {text}"
        else:
            message = f"{match['file']}:{line}: {text}" + _origin(rows, number, lines)
        return message + _hint(row)
    starts = ("in function", "error:")
    linker_rows = [row for row in rows if (from_ld := _LD.match(row)) and not from_ld["text"].startswith(starts)]
    last = linker_rows[0] if linker_rows else rows[-1]
    worst = next((row for row in (*linker_rows, *rows) if any(words in row for words in _LINKER)), last)
    position = _PLACE.search(worst)
    if position is not None:
        worst = worst.replace(position.group(0), _template(position[1], int(position[2] or position[3]), lines))
    return worst + _hint(worst)


def is_lasting(log: str) -> bool:
    """Whether a failed run would fail again: it names an error in the source, and nothing that the machine lacked."""
    lower = log.lower()
    named = "error: " in lower or any(_ERROR.match(row) or _ASSEMBLER.match(row) for row in log.splitlines())
    return named and not any(word in lower for word in _TRANSIENT)


def _template(source: str, line: int, lines: Sequence[tuple[str, int]]) -> str:
    if 1 <= line <= len(lines) and lines[line - 1][0]:
        template, at = lines[line - 1]
        return f"{template}:{at}"
    return f"{source}:{line}"


def _origin(rows: Sequence[str], number: int, lines: Sequence[tuple[str, int]]) -> str:
    """The nearest place in the source for an error in a header. g++ names it just before the error, nvcc after it."""
    for row in [*reversed(rows[:number]), *rows[number + 1 :]]:
        position, later = _PLACE.search(row), _FROM.search(row)
        if position is not None:
            return f" (from {_template(position[1], int(position[2] or position[3]), lines)})"
        if later is not None:
            return f" (from {_template(later[2], int(later[1]), lines)})"
    return ""


def _shortened(text: str) -> str:
    """The text with kernel names cut. Those of templates can be pages long."""
    return _NAME.sub(lambda match: f"'{match[1]}...'", text)


def _hint(row: str) -> str:
    for words, remedy in _HINTS:
        if words in row:
            return f" [{remedy}]"
    return ""
