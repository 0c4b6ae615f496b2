"""What this process and its children may use: memory in bytes and cores, by the machine and by control groups.

Control groups are read in both versions. `runtime/cpu_threads.cpp` reads the same quotas. Of memory, the module also
knows the most that one process has held.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
from collections.abc import Sequence
from pathlib import Path

from aot_tune.support.processes import stated_bytes

_ROOT = Path("/")
_LIMITS = (
    ("memory.max", "memory.current"),
    ("memory.high", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Files of a group's limits, in both versions, and of what it uses."""
_NO_LIMIT = 1 << 60
_MOST_KEPT = 1 << 30
_BUILD, _OTHERS = "the build itself", "a compiler or another program"
_peaks: dict[str, int] = {}


def control_groups(root: Path) -> list[Path]:
    """Folders of the control groups of this process, from its own to the top, in both versions."""
    try:
        rows = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = []
    for row in rows:
        _, colon, rest = row.partition(":")
        controllers, second, path = rest.partition(":")
        if not colon or not second:
            continue
        mounts = dict.fromkeys([controllers, *controllers.split(",")])  # names of version 1; version 2 has none
        tops = [root / "sys/fs/cgroup" / name for name in mounts]
        for top in tops:
            own = top / path.lstrip("/")
            groups += [own, *(p for p in own.parents if p == top or top in p.parents)]
    return list(dict.fromkeys(groups))


def _number_in(path: Path) -> int | None:
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
                _number_in(group / "cpu.cfs_quota_us") or -1,
                _number_in(group / "cpu.cfs_period_us") or 100_000,
            )
        if quota > 0 and period > 0:
            limits.append(max(1, math.floor(quota / period)))
    return limits


def usable_cores(root: Path = _ROOT) -> int:
    """Cores that this process may run on, at most as many as its control groups' quotas pay for.

    Args:
        root: where /proc and /sys are read.
    """
    return min([len(os.sched_getaffinity(0)), *core_limits(control_groups(root))])


def _machine_memory(root: Path = _ROOT) -> int:
    """The memory of the machine. `root` is where /proc and /sys are read, here and below."""
    total = stated_bytes(root / "proc/meminfo", "MemTotal")
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if total is None else total


def allowed_memory(root: Path = _ROOT) -> int:
    """The memory of the machine, or what the control groups of this process allow if that is less."""
    return min([_machine_memory(root), *(most for _, _, most in _limits(control_groups(root)))])


def free_memory(root: Path = _ROOT) -> int | None:
    """What can still be taken of the machine's memory and of the control groups'; None if the system does not tell."""
    left = [
        max(0, most - max(0, (_number_in(group / used) or 0) - _file_cache(group)))
        for group, used, most in _limits(control_groups(root))
    ]
    available = stated_bytes(root / "proc/meminfo", "MemAvailable")
    return min([*left, *(() if available is None else (available,))], default=None)


def kept_memory(root: Path = _ROOT) -> int:
    """The most that a process keeps beside what it works on: 1 GiB, or an eighth of what is allowed."""
    return min(_MOST_KEPT, allowed_memory(root) // 8)


def kills_for_memory(root: Path = _ROOT) -> int:
    """How many processes the kernel has killed so far because memory ran out, where it tells."""
    files = [root / "proc/vmstat"]
    for group in control_groups(root):
        files += [group / "memory.events", group / "memory.oom_control"]
    return sum(_field(file, "oom_kill") for file in files)


def group_peak(root: Path = _ROOT) -> int | None:
    """The most that the innermost limited control group of this process has ever held; None without a limit."""
    for group, _, _ in _limits(control_groups(root)):
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            if (peak := _number_in(group / name)) is not None:
                return peak
    return None


def note_peak(kind: str, held: int) -> None:
    """A process of some kind, such as `a worker for candidates`, has held so many bytes."""
    _peaks[kind] = max(held, _peaks.get(kind, 0))


def peaks() -> dict[str, int]:
    """The most bytes that one process of each kind has held since this one began, the largest first.

    Of compilers it is known only where it exceeds what workers and this process held: the system tells one number of
    all children, and a child's counts from what its parent held at the start.
    """
    held = {**_peaks, _BUILD: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    others = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    if others > max(held.values()):
        held[_OTHERS] = others
    return dict(sorted(held.items(), key=lambda pair: -pair[1]))


def size_text(size: int) -> str:
    """Bytes as people read them."""
    return f"{size / (1 << 30):.1f} GiB"


def memory_text(root: Path = _ROOT) -> str:
    """How much memory is allowed here, by whom, and how much of it is free."""
    allowed, machine, free = allowed_memory(root), _machine_memory(root), free_memory(root)
    whose = f" by a control group; the machine has {size_text(machine)}" if allowed < machine else ""
    return f"{size_text(allowed)} allowed{whose}" + ("" if free is None else f", {size_text(free)} free")


def _limits(groups: Sequence[Path]) -> list[tuple[Path, str, int]]:
    """Each limit of the groups, with its group and the file that tells what it uses."""
    limits = []
    for group in groups:
        for limit, used in _LIMITS:
            most = _number_in(group / limit)
            if most is not None and 0 < most < _NO_LIMIT:
                limits.append((group, used, most))
    return limits


def _file_cache(group: Path) -> int:
    """Bytes of cached files. They count as used, but are freed when memory is needed."""
    return _field(group / "memory.stat", "total_inactive_file") or _field(group / "memory.stat", "inactive_file")


def _field(path: Path, name: str) -> int:
    """The number behind a name in a file of names and numbers, 0 if there is none."""
    with contextlib.suppress(OSError, ValueError):
        for row in path.read_text().splitlines():
            if row.startswith(f"{name} "):
                return int(row.split()[1])
    return 0
