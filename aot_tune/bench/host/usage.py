"""What a worker takes of the machine beyond what the system has limits for: files in all, and memory that is shared."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from aot_tune.bench.protocol.measurement_records import Status

__all__ = ["Usage"]

_DISK = 256 << 20
"""Bytes that all files of a worker may take together."""

_SHARED = Path("/dev/shm")  # noqa: S108


class Usage:
    """Watches one worker: `pid`, which writes below `folder`, and may share `most` bytes of memory."""

    def __init__(self, pid: int, folder: Path, most: int) -> None:
        self._pid, self._folder, self._most = pid, folder, most
        self._files: set[Path] = set()

    def excess(self) -> tuple[Status, str] | None:
        """What it takes too much of; None while it does not."""
        disk = _size_below(self._folder)
        if disk > _DISK:
            return "too-much-disk", f"its files take {disk >> 20} MiB, {_DISK >> 20} are allowed"
        pids = (self._pid, *_children(self._pid))
        for pid in pids:
            self._files |= _shared_files(pid)
        shared = sum(map(_shared_memory, pids)) + sum(map(_size, self._files))
        if shared > self._most:
            return "oom", f"it shares {shared >> 20} MiB of memory, {self._most >> 20} are allowed"
        return None

    def clear(self) -> None:
        """Remove the shared memory that it was seen to use and left behind."""
        for path in self._files:
            with contextlib.suppress(OSError):
                if path.lstat().st_uid == os.geteuid():
                    path.unlink()
        self._files.clear()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):  # which few kernels lack
        with contextlib.suppress(OSError):
            found += map(int, tasks.read_text().split())
    return found


def _size_below(folder: Path) -> int:
    total = 0
    for here, _, names in os.walk(folder):
        total += sum(_size(Path(here, name)) for name in names)
    return total


def _size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def _shared_memory(pid: int) -> int:
    """Resident bytes that a process shares and no file on a disk has."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("RssShmem:"):
                return int(line.split()[1]) << 10
    return 0


def _shared_files(pid: int) -> set[Path]:
    """Files of shared memory that a process has open."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError):
                target = Path(os.readlink(f"/proc/{pid}/fd/{name}"))  # noqa: PTH115
                if target.parent == _SHARED and target.exists():
                    found.add(target)
    return found
