"""What the control groups of a process allow, in both versions. `runtime/cpu_threads.cpp` reads the same quotas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

__all__ = ["control_groups", "core_limits", "number_in"]


def control_groups(root: Path) -> list[Path]:
    """Folders of the control groups of this process, from its own to the top, in both versions."""
    try:
        rows = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for row in rows:
        _, colon, rest = row.partition(":")
        controllers, second, path = rest.partition(":")
        if not colon or not second:
            continue
        mounts = dict.fromkeys([controllers, *controllers.split(",")])  # names of version 1; version 2 has none
        tops = [root / "sys/fs/cgroup" / name for name in mounts]
        for top in tops:
            own = top / path.lstrip("/")
            found += [own, *(p for p in own.parents if p == top or top in p.parents)]
    return list(dict.fromkeys(found))


def number_in(path: Path) -> int | None:
    """The number at the beginning of a file; None if there is none."""
    try:
        text = path.read_text().split()[0]
    except (OSError, IndexError):
        return None
    return int(text) if text.lstrip("-").isdecimal() else None


def core_limits(groups: Sequence[Path]) -> list[int]:
    """For each quota among the groups, how many whole cores it pays for, at least one."""
    limits = []
    for group in groups:
        try:
            quota, period = (int(n) for n in (group / "cpu.max").read_text().split())
        except (OSError, ValueError):
            quota, period = (
                number_in(group / "cpu.cfs_quota_us") or -1,
                number_in(group / "cpu.cfs_period_us") or 100_000,
            )
        if quota > 0 and period > 0:
            limits.append(max(1, math.floor(quota / period)))
    return limits
