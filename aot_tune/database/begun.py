"""Builds that measure anew what is known: where one did not end, the next goes on with what it has measured."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from aot_tune.errors import CacheError
from aot_tune.storage import DISK_ERRORS, CacheLocation, check_trust, private_folder, write_file

__all__ = ["Begun", "begin"]

_ROOM = "begun"
_LONGEST_SECONDS = 24 * 3600.0
"""Measurements older than that are not what is asked for when all is to be measured again."""

_log = logging.getLogger("aot_tune.database")


@dataclass(frozen=True)
class Begun:
    """A build whose measurements count from `since` on: ns, by the clock of the cache's file system.

    `resumed`: an earlier build began it, and did not end.
    """

    path: Path
    since: int
    resumed: bool

    def end(self) -> None:
        """All is measured: the next build begins anew."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning(
                "%s stays, and the next build that measures again takes this one's times: %s", self.path, error
            )


def begin(location: CacheLocation, key: str) -> Begun | None:
    """Begin a build that measures anew, or go on with the one of that key which did not end in the last 24 hours.

    None where the cache keeps nothing, or cannot be written to.
    """
    if location.root is None or location.mode != "rw":
        return None
    path = location.root / _ROOM / key
    try:
        private_folder(path.parent)
        if not location.trusted:
            check_trust(path.parent.lstat(), path.parent)
        resumed = path.is_file() and 0 <= time.time() - path.stat().st_mtime < _LONGEST_SECONDS
        if not resumed:
            path.unlink(missing_ok=True)
            write_file(path, b"")
        return Begun(path, path.stat().st_mtime_ns, resumed)
    except (OSError, CacheError) as error:
        if isinstance(error, OSError) and error.errno not in DISK_ERRORS:
            raise
        _log.warning("should this build be interrupted, the next one measures all again: %s", error)
        return None
