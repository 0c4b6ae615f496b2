"""What the build prints while it runs: one line at a time, at once, with an honest time left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import TextIO

from aot_tune.support.time_left import seconds_left

__all__ = ["Progress"]


class Progress:
    """Prints lines to `stream`; counted lines at most once a second, and always the last one.

    Plain `pip install` hides the output, so the last line is also kept as a status on the terminal, if there is one.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream or sys.stdout, clock
        self._start = clock()
        self._last = float("-inf")
        self._terminal = _terminal() if stream is None and not self._stream.isatty() else None

    def line(self, text: str) -> None:
        """Print a line."""
        with contextlib.suppress(OSError):  # a closed or full output is no reason to lose measurements
            print(f"aot_tune: {text}\n", end="", file=self._stream, flush=True)  # one write: other threads print too
        self._status(f"aot_tune: {text}"[:120])

    def close(self) -> None:
        """Remove the status line from the terminal."""
        self._status("")
        if self._terminal is not None:
            self._terminal.close()
            self._terminal = None

    def _status(self, text: str) -> None:
        """One line in place on the terminal: with `pip install -v` the lines themselves are there already."""
        if self._terminal is not None:
            try:
                self._terminal.write(f"\r\x1b[K{text}")
                self._terminal.flush()
            except OSError:
                self._terminal = None

    def count(
        self,
        what: str,
        done: int,
        total: int,
        note: str = "",
        since: float | None = None,
        most: float = float("inf"),
    ) -> None:
        """Print `what 12 of 96, note, time left`; `since` is the clock when the counting began.

        No more time left is told of than `most` seconds, those of a budget.
        """
        now = self._clock()
        if done < total and now - self._last < 1.0:
            return
        self._last = now
        parts = [f"{what} {done} of {total}"]
        if note:
            parts.append(note)
        spent = now - (self._start if since is None else since)
        if done == total:
            parts.append(f"took {_duration(spent)}")
        if (left := seconds_left(done, total, spent, most)) is not None:
            parts.append(f"about {_duration(left)} left")
        self.line(", ".join(parts))

    def now(self) -> float:
        """The clock, in seconds."""
        return self._clock()


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min"


def _terminal() -> TextIO | None:
    """The controlling terminal, when pip runs in one and keeps our output from it; None without one (ENXIO)."""
    try:
        terminal = open("/dev/tty", "w", encoding="utf-8")  # noqa: SIM115, PTH123 - open as long as the build
    except OSError:
        return None
    return terminal
