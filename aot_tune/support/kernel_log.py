"""What the kernel tells of processes that died: by its log, which few may read, and by its counters."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from aot_tune.support.limits import kills_for_memory
from aot_tune.support.processes import NAME

_RECORD = 8192
"""Bytes that a record of the log has at most."""
_KILLED = re.compile(r"Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)")
_XID = re.compile(r"NVRM: Xid \([^)]*\): (?P<number>\d+)(?:, pid='?(?P<pid>\d+)'?, name=(?P<name>[^,]*))?")
_OF_THE_GPU = (48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140)
"""Numbers of NVIDIA's list that are faults of a GPU or its firmware. Most others may follow from a kernel's fault."""


def xid_text(number: int) -> str:
    """An error that NVIDIA's driver reports (Xid), for people."""
    return f"Xid {number}{', a fault of the GPU' if number in _OF_THE_GPU else ''}"


class KernelLog:
    """The part of the log that is written from now on. Without the right to read it, only counters tell."""

    def __init__(self, path: Path = Path("/dev/kmsg"), kills: Callable[[], int] = kills_for_memory) -> None:
        self._file, self._kills, self._killed = -1, kills, kills()
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)

    def of(self, pid: int) -> str:
        """Why a worker died, as far as it was told since the last call; or empty.

        In a container the log may number processes otherwise. Then the name tells.
        """
        before, self._killed = self._killed, self._kills()
        text = self._new()
        for pattern in (_KILLED, _XID):
            for told in pattern.finditer(text):
                if told["pid"] in (None, str(pid)) or told["name"] == NAME:
                    number = told.groupdict().get("number")
                    return xid_text(int(number)) if number else "the kernel killed it: memory ran out"
        return "memory ran out: the kernel killed a process" if self._killed > before else ""

    def _new(self) -> str:
        records = []
        while self._file >= 0:
            try:
                record = os.read(self._file, _RECORD)
            except BrokenPipeError:  # records were overwritten
                continue
            except OSError:
                break
            if not record:
                break
            records.append(record)
        return b"".join(records).decode(errors="replace")

    def close(self) -> None:
        """Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
