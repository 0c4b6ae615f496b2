"""Where a build's time goes, as it goes: seconds by what they went into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from aot_tune.report import SpentOf, TimeSpent

__all__ = ["SpentTime"]


class SpentTime:
    """Adds up the seconds of a build: of the clock by stage, of compilers by backend, of devices by phase."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[SpentOf, str, str], float] = {}

    def add(self, of: SpentOf, what: str, seconds: float, target: str = "") -> None:
        """So many seconds more went into something."""
        key = of, what, target
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    @contextmanager
    def stage(self, what: str) -> Iterator[None]:
        """Count what is done meanwhile as one stage of the build."""
        began = monotonic()
        try:
            yield
        finally:
            self.add("clock", what, monotonic() - began)

    def rows(self) -> tuple[TimeSpent, ...]:
        """What was added up, but only where devices took a part: a build that measures nothing tells no times.

        What it writes is the same each time.
        """
        if not any(of == "device" for of, _, _ in self._seconds):
            return ()
        return tuple(
            TimeSpent(of=of, what=what, target=target, seconds=round(seconds, 2))
            for (of, what, target), seconds in self._seconds.items()
            if seconds >= 0.01
        )
