"""Memory in bytes: what this process and its children may use, and the most that one of them has held."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Sequence
from pathlib import Path

from aot_tune.support.control_groups import control_groups, number_in

__all__ = [
    "allowed_memory",
    "free_memory",
    "group_peak",
    "kept_memory",
    "kills_for_memory",
    "machine_memory",
    "memory_text",
    "note_peak",
    "peaks",
    "size_text",
]

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


def machine_memory(root: Path = _ROOT) -> int:
    """The memory of the machine. `root` is where /proc and /sys are read, here and below."""
    total = _meminfo(root, "MemTotal")
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if total is None else total


def allowed_memory(root: Path = _ROOT) -> int:
    """The memory of the machine, or what the control groups of this process allow if that is less."""
    return min([machine_memory(root), *(most for _, _, most in _limits(control_groups(root)))])


def free_memory(root: Path = _ROOT) -> int | None:
    """What can still be taken of the machine's memory and of the control groups'; None if the system does not tell."""
    left = [
        max(0, most - max(0, (number_in(group / used) or 0) - _file_cache(group)))
        for group, used, most in _limits(control_groups(root))
    ]
    available = _meminfo(root, "MemAvailable")
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
            if (peak := number_in(group / name)) is not None:
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
    found = {**_peaks, _BUILD: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    others = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    if others > max(found.values()):
        found[_OTHERS] = others
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def size_text(size: int) -> str:
    """Bytes as people read them."""
    return f"{size / (1 << 30):.1f} GiB"


def memory_text(root: Path = _ROOT) -> str:
    """How much memory is allowed here, by whom, and how much of it is free."""
    allowed, machine, free = allowed_memory(root), machine_memory(root), free_memory(root)
    whose = f" by a control group; the machine has {size_text(machine)}" if allowed < machine else ""
    return f"{size_text(allowed)} allowed{whose}" + ("" if free is None else f", {size_text(free)} free")


def _limits(groups: Sequence[Path]) -> list[tuple[Path, str, int]]:
    """Each limit of the groups, with its group and the file that tells what it uses."""
    found = []
    for group in groups:
        for limit, used in _LIMITS:
            most = number_in(group / limit)
            if most is not None and 0 < most < _NO_LIMIT:
                found.append((group, used, most))
    return found


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


def _meminfo(root: Path, name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for row in (root / "proc/meminfo").read_text().splitlines():
            if row.startswith(f"{name}:"):
                return int(row.split()[1]) * 1024
    return None
