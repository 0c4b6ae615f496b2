"""What the build prints while it runs: lines that stay, and one line that changes and says how far the build is."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from aot_tune.support.build_log import BuildLog
from aot_tune.support.processes import ancestors, arguments_of

_SOONEST, _LEAST, _SHARE = 5.0, 5, 0.05
"""An estimate needs at least these: seconds that passed, number of things done, and their share of all."""

_EACH_LINE = 30.0
"""Seconds between two lines of a count in a log."""
_EACH_CHANGE = 0.2
"""Seconds between two changes of the line on a terminal."""
_COLUMNS = 80
_LOUD = re.compile(r"(NOTE|LOST|LEFT OUT|NOT [A-Z]+)\b")


class Progress:
    """Prints lines to `stream`, and shows how far a build is.

    On a terminal, that is one line at the bottom that changes. In a log, it is a line at the beginning of each step,
    and every 30 seconds. Each has the time since the build began, and how long it will still take. Plain `pip install`
    hides this output. Then the changing line is shown on pip's terminal.

    The build began `spent` seconds ago. `later` tells how long the steps after the current one take, in seconds. `log`
    has the lines and what else programs may want.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic, *, spent: float = 0.0
    ) -> None:
        self._stream, self._clock, self.log = stream or sys.stdout, clock, BuildLog()
        self._start = clock() - spent
        self.later: Callable[[], float] = lambda: 0.0
        self._last, self._since, self._what = float("-inf"), self._start, ""
        self._lock = threading.Lock()
        asked = getattr(self._stream, "isatty", None)
        self._seen = asked is not None and asked() and os.environ.get("TERM") != "dumb"
        hidden = stream is None and not self._seen and not _output_is_shown()
        self._terminal = self._stream if self._seen else _controlling_terminal() if hidden else None

    def line(self, text: str) -> None:
        """Print a line that stays. What nobody should miss is red on a terminal."""
        self.log.add("build", "line", text)
        shown = (
            _LOUD.sub("\x1b[31m\\g<0>\x1b[0m", text, count=1) if self._seen and "NO_COLOR" not in os.environ else text
        )
        with self._lock, contextlib.suppress(OSError):  # a full or closed output must not lose measurements
            clear = "\r\x1b[K" if self._seen else ""
            self._stream.write(f"{clear}aot_tune: {shown}\n")  # in one write, because other processes print too
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
        left: Callable[[float | None], float | None] = lambda estimate: estimate,
    ) -> None:
        """Show `1:05, about 3 min left: what 12 of 96, note`. `since` is the clock when the counting began; by default
        that of the first count.

        The time left is that of the whole build, once it can be estimated: of this step, which `left` may know better
        than an estimate by the count, and of the later ones. It is never more than `most` seconds, those of a budget.
        """
        now = self._clock()
        goes_on, self._what = what == self._what, what
        self._since = self._since if goes_on else now
        if goes_on and now - self._last < (_EACH_CHANGE if self._seen else _EACH_LINE):
            return
        self._last = now
        this = left(_seconds_left(done, total, now - (self._since if since is None else since)))
        whole = None if this is None else min(this + self.later(), most)
        text = f"{_clock_text(now - self._start)}{'' if whole is None else f', {_left_text(whole)} left'}: "
        text += ", ".join(filter(None, (f"{what} {done} of {total}", note)))
        if self._seen:
            with self._lock:
                self._show(text)
        else:
            self.line(text)

    def close(self) -> None:
        """Remove the line that changes, and close the log."""
        self.log.close()
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


def _clock_text(seconds: float) -> str:
    """Minutes and seconds, as a clock shows them."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _left_text(seconds: float) -> str:
    """An estimate, no more exact than it is."""
    if seconds < 10:
        return "a few seconds"
    return f"about {math.ceil(seconds / 10) * 10} s" if seconds <= 90 else f"about {math.ceil(seconds / 60)} min"


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


def _seconds_left(done: int, total: int, spent: float) -> float | None:
    """Seconds until all are done. `done` of them took `spent` seconds. None if nothing is known."""
    if done >= total:
        return 0.0
    if spent < _SOONEST or done < max(_LEAST, _SHARE * total):
        return None
    return spent / done * (total - done)
