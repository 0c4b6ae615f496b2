"""What a bench does so that its workers, and what they leave behind, do no harm: environments and orphans."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from aot_tune.bench.protocol.measurement_records import Status
from aot_tune.support.kernel_features import set_subreaper
from aot_tune.support.run_program import python_environment

__all__ = ["Usage", "environment", "hold_subreaper", "release_subreaper"]

_DISK = 256 << 20
"""The most bytes of all files of a worker together."""

_RSS_SHMEM = re.compile(rb"RssShmem:\s*(\d+)")
_SHARED = Path("/dev/shm")  # noqa: S108
_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "TZ")
_holders: list[bool] = []  # what was set before each of the holders came
_holding = threading.Lock()


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
    children: list[int] = []
    with contextlib.suppress(OSError):  # some kernels lack this file, and threads end
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            children += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return children


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
    for parent, _, names in os.walk(folder):
        total += sum(_size(Path(parent, name)) for name in names)
    return total


def _size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def _shared_memory(pid: int) -> int:
    """Resident bytes that a process shares, without those of files on a disk."""
    with contextlib.suppress(OSError):
        match = _RSS_SHMEM.search(_read(f"/proc/{pid}/status"))
        return int(match[1]) << 10 if match else 0
    return 0


def _shared_files(pid: int) -> set[Path]:
    """Files of shared memory that a process has open."""
    files: set[Path] = set()
    with contextlib.suppress(OSError):
        if not os.listdir(_SHARED):  # noqa: PTH208  # it is mostly empty
            return files
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115
                if target.startswith(f"{_SHARED}/") and os.path.exists(target):  # noqa: PTH110
                    files.add(Path(target))
    return files


def environment(given: Mapping[str, str], import_path: Iterable[str], scratch: Path) -> dict[str, str]:
    """The environment of a worker: an allow-list from the bench's environment, and what is set here.

    `import_path` is the bench's own `sys.path`, because build front ends put build requirements there. The user's
    PYTHONPATH, LD_PRELOAD and the like are not passed on.
    """
    env = {name: given[name] for name in _KEPT if name in given}
    env |= python_environment(import_path) | {"HOME": str(scratch), "TMPDIR": str(scratch), "LC_ALL": "C.UTF-8"}
    return env


def hold_subreaper() -> None:
    """Make orphaned descendants children of this process, until every holder has released it.

    Benches may run in parallel.
    """
    with _holding:
        _holders.append(set_subreaper(True))


def release_subreaper() -> None:
    """Undo one `hold_subreaper`. The last one restores what was set before the first."""
    with _holding:
        before = _holders.pop(0)
        if _holders:
            _holders[0] = before
        else:
            set_subreaper(before)
