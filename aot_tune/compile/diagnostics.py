"""From a compiler's output to the one line that matters, placed in the template."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["SOURCE_NAME", "first_error", "is_lasting"]

SOURCE_NAME = "candidate.cpp"
"""The name under which every source is compiled, so that objects do not depend on where."""

_PLACE = re.compile(re.escape(SOURCE_NAME) + r":(\d+)(?::\d+)?")
_ERROR = re.compile(
    r"^(?:(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:\d+:)? )?.*?"
    r"(?P<text>(?:fatal |internal compiler )?error: .*)$"
)
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
)
_LINKER = ("undefined reference", "cannot find", "multiple definition", "signal")
_HINTS = (
    ("omp.h: No such file", "install the compiler's OpenMP headers (libgomp, part of g++)"),
    ("cannot find -lgomp", "install the compiler's OpenMP library (libgomp, part of g++)"),
    ("cannot execute", "the compiler is not installed completely; install g++"),
    ("bad value", "this compiler does not know the target; install g++ 11 or later"),
    ("virtual memory exhausted", "set AOT_TUNE_JOBS to compile fewer candidates at a time"),
    ("Killed signal terminated", "memory may have run out: set AOT_TUNE_JOBS to compile fewer candidates at a time"),
    ("No space left", "free disk space, or set TMPDIR or AOT_TUNE_CACHE_DIR to another disk"),
)


def first_error(log: str, lines: Sequence[tuple[str, int]] = ()) -> str:
    """The first error of a compiler's output, in one line.

    `lines` holds the template and line of each line of the source; a place in the source becomes `template:line`. An
    error in a header is followed by the place that led there. A remedy is added where one is known.
    """
    rows = [row.strip() for row in log.splitlines() if row.strip()]
    if not rows:
        return "the compiler failed and said nothing"
    for number, row in enumerate(rows):
        match = None if row.startswith("collect2:") else _ERROR.match(row)
        if match is None:
            continue
        text = match["text"]
        if match["file"] is None or match["line"] is None:
            message = row
        elif match["file"] == SOURCE_NAME:
            message = f"{_template(int(match['line']), lines)}: {text}"
        else:
            message = f"{match['file']}:{match['line']}: {text}" + _origin(rows, number, lines)
        return message + _hint(row)
    worst = next((row for row in rows if any(words in row for words in _LINKER)), rows[-1])
    place = _PLACE.search(worst)
    if place is not None:
        worst = worst.replace(place.group(0), _template(int(place.group(1)), lines))
    return worst + _hint(worst)


def is_lasting(log: str) -> bool:
    """Whether a failed run would fail again: it names an error in the source, and nothing that a machine ran out of."""
    lower = log.lower()
    return "error: " in lower and not any(word in lower for word in _TRANSIENT)


def _template(line: int, lines: Sequence[tuple[str, int]]) -> str:
    if 1 <= line <= len(lines) and lines[line - 1][0]:
        template, at = lines[line - 1]
        return f"{template}:{at}"
    return f"{SOURCE_NAME}:{line}"


def _origin(rows: Sequence[str], number: int, lines: Sequence[tuple[str, int]]) -> str:
    """The nearest place in the source around an error in a header: compilers name it just before."""
    for row in [*reversed(rows[:number]), *rows[number + 1 :]]:
        place = _PLACE.search(row)
        if place is not None:
            return f" (from {_template(int(place.group(1)), lines)})"
    return ""


def _hint(row: str) -> str:
    for words, remedy in _HINTS:
        if words in row:
            return f" [{remedy}]"
    return ""
