"""An append-only log of JSON lines that many processes may write, and that survives the death of any of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from filelock import FileLock

__all__ = ["Journal"]


class Journal:
    """A file of one JSON object per line. What a killed writer left of a line costs that line only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path.with_name(path.name + ".lock"), mode=0o600)

    def append(self, record: Mapping[str, object]) -> None:
        """Add one line; the line break of a torn one before it is put right first."""
        line = msgspec.json.encode(record) + b"\n"
        with self._lock:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line
                while line:
                    line = line[os.write(descriptor, line) :]
            finally:
                os.close(descriptor)

    def read(self) -> tuple[list[dict[str, object]], int]:
        """All whole lines, and the number of lines that are not."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return [], 0
        found: list[dict[str, object]] = []
        broken = 0
        for line in lines:
            if not line:
                continue
            try:
                found.append(msgspec.json.decode(line, type=dict[str, object]))
            except (msgspec.DecodeError, UnicodeDecodeError):
                broken += 1
        return found, broken
