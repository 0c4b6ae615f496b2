"""How much time is left of the build's budget."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Budget"]


class Budget:
    """Seconds for a whole build; None is no limit. `spent` seconds went by before this object was made.

    `clock` is monotonic, in seconds.
    """

    def __init__(
        self, seconds: float | None, clock: Callable[[], float] = time.monotonic, *, spent: float = 0.0
    ) -> None:
        self._clock, self._start, self.seconds = clock, clock() - spent, seconds

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    @property
    def left(self) -> float:
        """Seconds that remain; infinite without a limit."""
        return float("inf") if self.seconds is None else max(self.seconds - self.spent, 0.0)

    def part(self, parts: int, kept: float = 0.0, most: float = float("inf")) -> Budget:
        """A new budget from now on: an equal share of what is left, less the `kept` seconds, and at most `most`."""
        seconds = min(max(self.left - kept, 0.0) / parts, most)
        return Budget(None if seconds == float("inf") else seconds, self._clock)

    def extend(self, seconds: float) -> None:
        """Let it end later, or earlier if `seconds` is negative."""
        if self.seconds is not None:
            self.seconds += seconds

    def allows(self, seconds: float) -> bool:
        """Whether something that takes `seconds` would end in time."""
        return self.left >= seconds
