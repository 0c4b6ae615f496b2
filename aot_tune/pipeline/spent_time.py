"""Where a build's time goes: seconds by activity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from aot_tune.report.report_records import SpentOf, TimeSpent

__all__ = ["SpentTime"]


class SpentTime:
    """Adds up the seconds of a build: wall time by stage, compilers by backend, devices by phase."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[SpentOf, str, str], float] = {}

    def add(self, of: SpentOf, what: str, seconds: float, target: str = "") -> None:
        """Add seconds to an activity."""
        key = of, what, target
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    @contextmanager
    def stage(self, what: str) -> Iterator[None]:
        """Count the time of the block as one stage of the build."""
        began = monotonic()
        try:
            yield
        finally:
            self.add("clock", what, monotonic() - began)

    def rows(self) -> tuple[TimeSpent, ...]:
        """The sums, if devices took part. A build that measures nothing reports no times.

        So its output is the same each time.
        """
        if not any(of == "device" for of, _, _ in self._seconds):
            return ()
        return tuple(
            TimeSpent(of=of, what=what, target=target, seconds=round(seconds, 2))
            for (of, what, target), seconds in self._seconds.items()
            if seconds >= 0.01
        )
