"""How busy the machine is with other programs, as the compilers of this build show."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CompilerLoad", "children_seconds"]

_TELLING = 0.25
"""CPU seconds of compilers from which they tell how busy the machine is."""
_FADES = 0.5
"""What counts of earlier compiles each time."""


@dataclass
class CompilerLoad:
    """What C++ compilers get of the machine's cores beside other programs, as the last ones that ran show.

    `jobs` run at a time. `granted` is the share of their wall time in which they computed; `each` are the CPU seconds
    of one of the first compiles, None before any.
    """

    jobs: int
    granted: float = 1.0
    each: float | None = None
    _cpu: float = 0.0
    _wall: float = 0.0

    def add(self, cpu: float, walls: Sequence[float]) -> None:
        """Compiles took so many seconds of CPUs in all, and each of them on the wall; none that came from a cache.

        The last ones count most, but few of them that are short tell little of what a link will get.
        """
        if walls and cpu >= _TELLING:
            self._cpu = _FADES * self._cpu + cpu
            self._wall = _FADES * self._wall + sum(walls)
            self.granted = min(max(self._cpu / self._wall, 0.05), 1.0)
            self.each = self.each or cpu / len(walls)


def children_seconds() -> float:
    """CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
