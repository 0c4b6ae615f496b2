"""Locks of files, by the operating system alone."""

from __future__ import annotations

import errno
import os

from filelock import FileLock, Timeout

__all__ = ["Timeout", "TrueLock"]


class TrueLock(FileLock):
    """A lock that a killed process leaves. Where files cannot be locked, acquiring it raises OSError.

    `FileLock` itself would then take a file that exists for a lock that is held, and true locks leave such files.
    """

    def _fallback_to_soft_lock(self) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
