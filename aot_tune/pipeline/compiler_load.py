"""How busy other programs keep the machine, seen from this build's compilers."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aot_tune.support.limits import usable_cores

__all__ = ["CompilerLoad", "children_seconds", "idle_seconds"]

_TELLING = 0.25
"""A batch of compiles counts only from this many CPU seconds on."""
_FADES = 0.5
"""The weight that earlier compiles keep each time new ones are added."""


@dataclass
class CompilerLoad:
    """The share of the cores that C++ compilers get beside other programs, from the last ones that ran.

    `jobs` run at a time. `granted` is the share of their wall time in which they computed, except for the time in which
    they waited although cores were idle, such as for files from a disk. `each` is the CPU seconds of one of the first
    compiles, None before any.
    """

    jobs: int
    granted: float = 1.0
    each: float | None = None
    _cpu: float = 0.0
    _wall: float = 0.0

    def add(self, cpu: float, walls: Sequence[float], idle: float = 0.0) -> None:
        """Add compiles: their CPU seconds together, and the wall seconds of each. Those from a cache do not count.

        `idle` is how many seconds the cores were idle meanwhile, added up. The last compiles count most. A batch of few
        short ones is ignored, because it says little about a link.
        """
        if walls and cpu >= _TELLING:
            self._cpu = _FADES * self._cpu + cpu
            self._wall = _FADES * self._wall + cpu + max(sum(walls) - cpu - idle, 0.0)
            self.granted = min(max(self._cpu / self._wall, 0.05), 1.0)
            self.each = self.each or cpu / len(walls)


def children_seconds() -> float:
    """CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def idle_seconds(root: Path = Path("/")) -> float:
    """Seconds that the cores of this process have been idle since the machine started, added up.

    It is 0 where a control group's quota limits this process, since idle cores may not be its to use, and where the
    system does not tell.

    Args:
        root: where /proc and /sys are read.
    """
    cores = os.sched_getaffinity(0)
    if usable_cores(root) < len(cores):
        return 0.0
    try:
        lines = (root / "proc/stat").read_text().splitlines()
    except OSError:
        return 0.0
    wanted = {f"cpu{core}" for core in cores}
    ticks = [line.split()[4:6] for line in lines if line.split(" ", 1)[0] in wanted]
    return sum(int(tick) for pair in ticks for tick in pair) / os.sysconf("SC_CLK_TCK")
