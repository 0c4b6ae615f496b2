"""How many compilers to run at a time."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from aot_tune.errors import OptionError

__all__ = ["MEMORY_PER_COMPILE", "Jobs", "parallel_compiles"]

_VARIABLES = ("AOT_TUNE_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL", "MAX_JOBS")
MEMORY_PER_COMPILE = 1 << 30


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """A number of compilers, and in one line where it came from and how to change it."""

    count: int
    reason: str


def parallel_compiles(environ: Mapping[str, str], *, root: Path = Path("/"), memory: int = MEMORY_PER_COMPILE) -> Jobs:
    """The first of AOT_TUNE_JOBS, CMAKE_BUILD_PARALLEL_LEVEL, MAX_JOBS; else what cores and memory allow.

    Args:
        root: where /proc and /sys are read.
        memory: bytes that one compiler may need, as `Toolchain.memory_per_job` says.

    Raises:
        OptionError: when one of the variables is not a positive integer.
    """
    for name in _VARIABLES:
        text = environ.get(name, "")
        if text:
            if not text.isdecimal() or int(text) < 1:
                raise OptionError(f"{name}={text!r} is not a positive integer", fix=f"set {name} to 1 or more")
            return Jobs(count=int(text), reason=f"{text} compilers at a time ({name})")
    groups = _groups(root)
    cores = min([len(os.sched_getaffinity(0)), *_core_limits(groups)])
    free = min([*_free_memory(root), *_memory_limits(groups)], default=cores * memory)
    count = max(1, min(cores, free // memory))
    each = f", {memory / 2**30:.1f} GiB each" if count < cores else ""
    reason = f"{count} compilers at a time ({cores} cores, {free / 2**30:.1f} GiB free{each}; AOT_TUNE_JOBS changes it)"
    return Jobs(count=count, reason=reason)


def _groups(root: Path) -> list[Path]:
    """Folders of the control groups that this process is in, from its own to the top, of both versions."""
    try:
        rows = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for row in rows:
        _, controllers, path = row.split(":", 2)
        tops = [root / "sys/fs/cgroup" / c for c in controllers.split(",") if c] or [root / "sys/fs/cgroup"]
        for top in tops:
            own = top / path.lstrip("/")
            found += [own, *(p for p in own.parents if p == top or top in p.parents)]
    return list(dict.fromkeys(found))


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().split()[0]
    except (OSError, IndexError):
        return None
    return int(text) if text.lstrip("-").isdecimal() else None


def _core_limits(groups: list[Path]) -> list[int]:
    limits = []
    for group in groups:
        try:
            quota, period = (int(n) for n in (group / "cpu.max").read_text().split())
        except (OSError, ValueError):
            quota, period = _number(group / "cpu.cfs_quota_us") or -1, _number(group / "cpu.cfs_period_us") or 100_000
        if quota > 0 and period > 0:
            limits.append(max(1, math.floor(quota / period)))
    return limits


def _memory_limits(groups: list[Path]) -> list[int]:
    limits = []
    for group in groups:
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most = _number(group / limit)
            if most is not None and most < 1 << 60:
                limits.append(max(0, most - (_number(group / used) or 0)))
    return limits


def _free_memory(root: Path) -> list[int]:
    try:
        rows = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return []
    return [int(r.split()[1]) * 1024 for r in rows if r.startswith("MemAvailable:")]
