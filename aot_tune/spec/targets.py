"""What is compiled for."""

from __future__ import annotations

import msgspec

__all__ = ["TILES_LEVEL", "Target"]

TILES_LEVEL = 6
"""The level of CPUs with AMX, whose tiles a process gets when it asks the kernel for them."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A target such as `cpu-x86-64-v3`.

    `family` is the first word of the name, `level` orders the targets of a family (a device of level n runs all targets
    up to n, unless `last` says where that ends), `facts` are numbers that constraints and templates may use.

    `last` is the highest level of a device that runs the target; 0 is no upper limit. An NVIDIA GPU runs the machine
    code of its own generation only: `cuda-sm_80` ends at 89, `cuda-sm_90a` at 90.
    """

    name: str
    family: str
    level: int
    facts: dict[str, int] = {}
    last: int = 0

    @property
    def on_host(self) -> bool:
        """Whether it is for the CPU, on which compilers run as well."""
        return self.family == "cpu"

    def runs_on(self, level: int) -> bool:
        """Whether a device of that level runs this target."""
        return self.level <= level and (self.last == 0 or level <= self.last)

    def meets(self, other: Target) -> bool:
        """Whether a device may run both this target and another."""
        lowest = max(self.level, other.level)
        return self.family == other.family and self.runs_on(lowest) and other.runs_on(lowest)
