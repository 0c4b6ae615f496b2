"""Folders of other caches, read beside one's own. They are never written, and their faults end nothing."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from aot_tune.support.errors import CacheError
from aot_tune.support.storage import check_trust, open_quietly

_LOST = frozenset({errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ENODEV})
"""Errors of a mounted folder that is gone. Then nothing more is read from it."""


class CacheTier:
    """One such folder, laid out as a cache. `log` gets each kind of fault once. Any thread may use it.

    Its files may belong to its `owner`, because who names the folder trusts its owner. With `trusted`, they may belong
    to anybody.
    """

    def __init__(self, path: Path, *, trusted: bool, log: Callable[[str], None]) -> None:
        self.path, self.trusted, self.owner = path, trusted, -1
        self._log, self._lock = log, threading.Lock()
        self._usable, self._told = True, set[str]()
        self._objects = self._measurements = self._passed_over = 0
        try:
            status = path.stat()
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            self.owner = status.st_uid
            if not trusted:
                check_trust(status, path, self.owner)
            if not os.access(path, os.R_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except (OSError, CacheError) as error:
            self._lose(error)

    @property
    def usable(self) -> bool:
        """Whether the folder exists and can be read."""
        return self._usable

    def check_schema(self, room: str, depth: int, record: str, schema: int) -> bool:
        """Report a room that was written under another schema, because nothing would be found in it.

        Returns whether there is any such file.

        Args:
            room: folder below the tier.
            depth: number of folders between it and the files.
            record: the ending of the names of its files, whose first line names the schema.
            schema: the schema of this version.
        """
        try:
            sealed = next(_files(self.path / room, depth, record), None) if self._usable else None
            if sealed is None:
                return False
            first = json.loads(_first_line(sealed))
            other = first.get("header", first).get("schema", schema)
        except (OSError, ValueError, AttributeError):  # reported when it is read
            return False
        if other != schema:
            self._tell(room, f"its {room} are of another version: schema {other}, and this one reads {schema}")
        return True

    def pass_over(self, path: Path, error: Exception) -> None:
        """Note that something there cannot be used. The first time, report what."""
        if isinstance(error, OSError) and error.errno in _LOST:
            self._lose(error)
            return
        with self._lock:
            self._passed_over += 1
        self._tell(
            "entry", f"{path.relative_to(self.path)} is not used: {_words(error)}; others like it are not reported"
        )

    def served_object(self) -> None:
        """Count an object that was taken from it."""
        with self._lock:
            self._objects += 1

    def served_measurements(self) -> None:
        """Count a file of measurements that was taken from it."""
        with self._lock:
            self._measurements += 1

    def summary(self) -> str:
        """What it served, in one line."""
        if not (self._usable or self._objects or self._measurements):
            return f"cache tier {self.path} served nothing: it cannot be used"
        over = f"; {_count(self._passed_over, 'entry', 'entries')} passed over" if self._passed_over else ""
        objects = _count(self._objects, "object", "objects")
        return f"cache tier {self.path} served {objects}, {_count(self._measurements, 'result', 'results')}{over}"

    def _lose(self, error: Exception) -> None:
        self._usable = False
        self._tell("lost", f"NOT used: {_words(error)}")

    def _tell(self, kind: str, text: str) -> None:
        with self._lock:
            first = kind not in self._told
            self._told.add(kind)
        if first:
            self._log(f"cache tier {self.path}: {text}")


def open_tiers(paths: Sequence[Path], *, trusted: bool, log: Callable[[str], None]) -> tuple[CacheTier, ...]:
    """The tiers at these folders, in the order in which they are searched. A folder that is named twice counts once."""
    return tuple(CacheTier(path, trusted=trusted, log=log) for path in dict.fromkeys(paths))


def _files(folder: Path, depth: int, ending: str) -> Iterator[Path]:
    """Files below a folder. Their access times stay as they are."""
    descriptor = open_quietly(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        names = sorted(entry.name for entry in os.scandir(descriptor))
    finally:
        os.close(descriptor)
    for name in names:
        if depth:
            yield from _files(folder / name, depth - 1, ending)
        elif name.endswith(ending):
            yield folder / name


def _first_line(path: Path) -> bytes:
    with os.fdopen(open_quietly(path, os.O_RDONLY), "rb") as file:
        return file.readline()


def _words(error: Exception) -> str:
    if isinstance(error, CacheError):
        return f"{error.what}; {error.why}" if error.why else error.what
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
