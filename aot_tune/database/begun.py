"""Builds that measure again. If such a build does not end, the next one continues with what it has measured."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from aot_tune.support.errors import CacheError
from aot_tune.support.storage import DISK_ERRORS, CacheLocation, check_trust, private_folder, write_file

__all__ = ["Begun", "begin", "forget"]

_ROOM = "begun"
_LONGEST_SECONDS = 24 * 3600.0
"""Measurements older than this do not count as new when everything is to be measured again."""
_COPIED_SECONDS = 60.0
"""A file holds its own time. If that differs by more, it is a copy, so the times of measurements are not to be
trusted."""

_log = logging.getLogger("aot_tune.database")


@dataclass(frozen=True)
class Begun:
    """A build whose measurements count from `since` on, in ns since the epoch.

    `resumed`: an earlier build began it and did not end. Until `leave`, there is no other build of this kind.
    """

    path: Path
    since: int
    resumed: bool
    lock: FileLock

    def end(self) -> None:
        """Everything is measured. The next build begins again."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s stays, so the next build that measures again takes this one's times: %s", self.path, error)

    def leave(self) -> None:
        """This build is over, whether it finished or not."""
        self.lock.release()


def begin(location: CacheLocation, key: str) -> Begun | None:
    """Begin a build that measures again, or continue the unfinished one of that key from the last 24 hours.

    None if the cache is not read and written, or while another such build is at work.
    """
    if location.root is None or location.mode != "rw":
        return None
    path = location.root / _ROOM / key
    lock = FileLock(path.with_suffix(".lock"), mode=0o600)
    try:
        private_folder(path.parent)
        if not location.trusted:
            check_trust(path.parent.lstat(), path.parent)
        lock.acquire(timeout=0)
        resumed = _resumable(path)
        if not resumed:
            path.unlink(missing_ok=True)
            write_file(path, str(time.time_ns()).encode())
        return Begun(path, int(path.read_bytes()), resumed, lock)
    except Timeout:
        return None
    except (OSError, CacheError) as error:
        lock.release()
        if isinstance(error, OSError) and error.errno not in DISK_ERRORS:
            raise
        _log.warning("if this build is interrupted, the next one measures everything again: %s", error)
        return None


def forget(location: CacheLocation, key: str) -> None:
    """Drop what was begun: a build of another kind has ended since, or everything is to be measured again."""
    if location.root is None or location.mode not in ("rw", "fresh"):
        return
    try:
        (location.root / _ROOM / key).unlink(missing_ok=True)
    except OSError as error:
        _log.warning("the next build that measures again takes what an interrupted build has measured: %s", error)


def _resumable(path: Path) -> bool:
    try:
        began, changed = int(path.read_bytes()) / 1e9, path.stat().st_mtime
    except (FileNotFoundError, ValueError):
        return False
    return abs(began - changed) < _COPIED_SECONDS and 0 <= time.time() - changed < _LONGEST_SECONDS
