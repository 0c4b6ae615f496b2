"""How busy other programs keep the machine, seen from this build's compilers."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CompilerLoad", "children_seconds"]

_TELLING = 0.25
"""A batch of compiles counts only from this many CPU seconds on."""
_FADES = 0.5
"""The weight that earlier compiles keep each time new ones are added."""


@dataclass
class CompilerLoad:
    """The share of the cores that C++ compilers get beside other programs, from the last ones that ran.

    `jobs` run at a time. `granted` is the share of their wall time in which they computed. `each` is the CPU seconds of
    one of the first compiles, None before any.
    """

    jobs: int
    granted: float = 1.0
    each: float | None = None
    _cpu: float = 0.0
    _wall: float = 0.0

    def add(self, cpu: float, walls: Sequence[float]) -> None:
        """Add compiles: their CPU seconds together, and the wall seconds of each. Those from a cache do not count.

        The last ones count most. A batch of few short ones is ignored, because it says little about a link.
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
