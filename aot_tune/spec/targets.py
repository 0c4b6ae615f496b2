"""Targets: what is compiled for."""

from __future__ import annotations

import msgspec

__all__ = ["TILES_LEVEL", "Target"]

TILES_LEVEL = 6
"""The level of CPUs with AMX. A process must ask the kernel for its tiles."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A target such as `cpu-x86-64-v3`.

    `family` is the first word of the name. `level` orders the targets of a family: a device of level n runs all targets
    up to n, unless `last` limits that. `facts` are numbers for constraints and templates.

    `last` is the highest level of a device that runs the target; 0 is no limit. An NVIDIA GPU runs only machine code of
    its own generation: `cuda-sm_80` ends at 89, `cuda-sm_90a` at 90.
    """

    name: str
    family: str
    level: int
    facts: dict[str, int] = {}
    last: int = 0

    @property
    def on_host(self) -> bool:
        """Whether it is for the CPU, which compilers use as well."""
        return self.family == "cpu"

    def runs_on(self, level: int) -> bool:
        """Whether a device of that level runs this target."""
        return self.level <= level and (self.last == 0 or level <= self.last)

    def meets(self, other: Target) -> bool:
        """Whether one device may run both this target and another."""
        lowest = max(self.level, other.level)
        return self.family == other.family and self.runs_on(lowest) and other.runs_on(lowest)
