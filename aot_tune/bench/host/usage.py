"""What a worker uses of the machine where the system has no limits: the size of all its files, and shared memory."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from aot_tune.bench.protocol.measurement_records import Status

__all__ = ["Usage"]

_DISK = 256 << 20
"""The most bytes of all files of a worker together."""

_RSS_SHMEM = re.compile(rb"RssShmem:\s*(\d+)")
_SHARED = Path("/dev/shm")  # noqa: S108


class Usage:
    """Watches one worker: process `pid`, which writes below `folder` and may share `most` bytes of memory."""

    def __init__(self, pid: int, folder: Path, most: int) -> None:
        self._pid, self._folder, self._most = pid, folder, most
        self._files: set[Path] = set()

    def excess(self) -> tuple[Status, str] | None:
        """What it uses too much of, or None."""
        disk = _size_below(self._folder)
        if disk > _DISK:
            return "too-much-disk", f"its files take {disk >> 20} MiB, but only {_DISK >> 20} are allowed"
        pids = (self._pid, *_children(self._pid))
        for pid in pids:
            self._files |= _shared_files(pid)
        shared = sum(map(_shared_memory, pids)) + sum(map(_size, self._files))
        if shared > self._most:
            return "oom", f"it shares {shared >> 20} MiB of memory, but only {self._most >> 20} are allowed"
        return None

    def clear(self) -> None:
        """Remove the shared memory that it used and left behind."""
        for path in self._files:
            with contextlib.suppress(OSError):
                if path.lstat().st_uid == os.geteuid():
                    path.unlink()
        self._files.clear()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # some kernels lack this file, and threads end
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def _read(path: str) -> bytes:
    """Read a small file of `/proc`.

    This runs between the turns of candidates, so it avoids the extra work of Python's files.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)


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
    """Resident bytes that a process shares, without those of files on a disk."""
    with contextlib.suppress(OSError):
        found = _RSS_SHMEM.search(_read(f"/proc/{pid}/status"))
        return int(found[1]) << 10 if found else 0
    return 0


def _shared_files(pid: int) -> set[Path]:
    """Files of shared memory that a process has open."""
    found: set[Path] = set()
    with contextlib.suppress(OSError):
        if not os.listdir(_SHARED):  # noqa: PTH208  # it is mostly empty
            return found
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115
                if target.startswith(f"{_SHARED}/") and os.path.exists(target):  # noqa: PTH110
                    found.add(Path(target))
    return found
