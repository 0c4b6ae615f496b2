"""What is compiled for."""

from __future__ import annotations

import msgspec

__all__ = ["Target"]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A target such as `cpu-x86-64-v3`.

    `family` is the first word of the name, `level` orders the targets of a family (a device of level n runs all targets
    up to n), `facts` are numbers that constraints and templates may use.
    """

    name: str
    family: str
    level: int
    facts: dict[str, int] = {}
