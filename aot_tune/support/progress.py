"""What the build prints while it runs: lines that stay, and on a terminal one line that changes."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from aot_tune.support.processes import ancestors, arguments_of

__all__ = ["Progress"]

_SOONEST, _LEAST, _SHARE = 5.0, 5, 0.05
"""An estimate needs at least these: seconds that passed, number of things done, and their share of all."""

_EACH_LINE = 5.0
"""Seconds between two lines of a count in a log."""
_EACH_CHANGE = 0.2
"""Seconds between two changes of the line on a terminal."""
_COLUMNS = 80


class Progress:
    """Prints lines to `stream`, and shows counts.

    On a terminal, a count is one line at the bottom that changes; its final state stays. In a log, it is a line every
    five seconds, and one at its beginning and its end. Plain `pip install` hides this output. Then the changing line is
    shown on pip's terminal.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream or sys.stdout, clock
        self._start = clock()
        self._last, self._what = float("-inf"), ""
        self._lock = threading.Lock()
        self._seen = _is_terminal(self._stream)
        hidden = stream is None and not self._seen and not _output_is_shown()
        self._terminal = self._stream if self._seen else _controlling_terminal() if hidden else None

    def line(self, text: str) -> None:
        """Print a line that stays."""
        with self._lock, contextlib.suppress(OSError):  # a full or closed output must not lose measurements
            clear = "\r\x1b[K" if self._seen else ""
            self._stream.write(f"{clear}aot_tune: {text}\n")  # in one write, because other processes print too
            self._stream.flush()
            if not self._seen:
                self._show(text)

    def count(
        self,
        what: str,
        done: int,
        total: int,
        note: str = "",
        since: float | None = None,
        most: float = float("inf"),
    ) -> None:
        """Show `what 12 of 96, note, time left`. `since` is the clock when the counting began.

        The time left is shown once it can be estimated. It is never more than `most` seconds, those of a budget.
        """
        now = self._clock()
        goes_on, self._what = what == self._what, what
        if done < total and goes_on and now - self._last < (_EACH_CHANGE if self._seen else _EACH_LINE):
            return
        self._last = now
        parts = [f"{what} {done} of {total}"]
        if note:
            parts.append(note)
        spent = now - (self._start if since is None else since)
        if done == total:
            parts.append(f"took {_duration(spent)}")
        if (left := _seconds_left(done, total, spent, most)) is not None:
            parts.append(f"about {_duration(left)} left")
        if done < total and self._seen:
            with self._lock:
                self._show(", ".join(parts))
        else:
            self.line(", ".join(parts))

    def close(self) -> None:
        """Remove the line that changes."""
        with self._lock:
            self._show("")
            if self._terminal is not None and not self._seen:
                self._terminal.close()
            self._terminal = None

    def now(self) -> float:
        """The clock, in seconds."""
        return self._clock()

    def _show(self, text: str) -> None:
        """Replace the changing line by a text, cut to the terminal's width."""
        if self._terminal is not None:
            shown = f"aot_tune: {text}"[: _columns(self._terminal) - 1] if text else ""
            try:
                self._terminal.write(f"\r\x1b[K{shown}")
                self._terminal.flush()
            except OSError:
                self._terminal = None


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min"


def _is_terminal(stream: TextIO) -> bool:
    """Whether it is a terminal that can change a line."""
    asked = getattr(stream, "isatty", None)
    return asked is not None and asked() and os.environ.get("TERM") != "dumb"


def _columns(terminal: TextIO) -> int:
    try:
        return os.get_terminal_size(terminal.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def _controlling_terminal() -> TextIO | None:
    """The terminal that started the build; None if there is none (ENXIO)."""
    try:
        return open("/dev/tty", "w", encoding="utf-8")  # noqa: PTH123 - open as long as the build
    except OSError:
        return None


def _output_is_shown() -> bool:
    """Whether the front end shows the output (`pip install -v`), or there is no front end that hides it."""
    for pid, _ in ancestors():
        words = arguments_of(pid)
        if any(re.fullmatch(r"pip[0-9.]*|uv", word.rpartition("/")[2]) for word in words[:3]):
            verbose = "PIP_VERBOSE" in os.environ
            return verbose or any(re.fullmatch(r"--verbose|-v+", word) for word in words)
    return True


def _seconds_left(done: int, total: int, spent: float, most: float = float("inf")) -> float | None:
    """Seconds until all are done. `done` of them took `spent` seconds. At most `most`; None if nothing is known."""
    if done >= total or spent < _SOONEST or done < max(_LEAST, _SHARE * total):
        return None
    return min(spent / done * (total - done), most)
