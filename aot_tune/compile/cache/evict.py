"""Bounds the size of the object cache. The entries that were not used for longest go first."""

from __future__ import annotations

import time
from pathlib import Path

from filelock import FileLock, Timeout

from aot_tune.compile.cache.entry import RECORD
from aot_tune.support.storage import TEMPORARIES, discard, sweep_temporaries

__all__ = ["LIMIT_BYTES", "prune"]

LIMIT_BYTES = 1 << 30
_EVERY_SECONDS = 60.0
_IN_USE_SECONDS = 24 * 3600.0


def prune(root: Path, limit: int = LIMIT_BYTES, *, every: float = _EVERY_SECONDS) -> int:
    """Remove the entries that were not used for longest, until all take less than nine tenths of `limit` bytes.

    Does nothing when it ran less than `every` seconds ago, or while another process does it. An entry that was used
    within a day stays, whatever the size, because a running build may need it. Returns the number of removed entries.
    """
    stamp = root / "pruned"
    try:
        if stamp.exists() and 0 <= time.time() - stamp.stat().st_mtime < every:
            return 0
        with FileLock(root / "prune.lock", timeout=0, mode=0o600):
            stamp.touch()
            sweep_temporaries(root / TEMPORARIES)
            _remove_old_locks(root / "locks")
            return _remove_entries(root, limit)
    except (Timeout, OSError, NotImplementedError):  # NotImplementedError: there are no locks
        return 0  # the cache works without pruning, and the next build tries again


def _remove_entries(root: Path, limit: int) -> int:
    entries = []
    for folder in (root / "objects").glob("*/*"):
        size = sum(f.stat().st_size for f in folder.iterdir()) if folder.is_dir() else 0
        record = folder / RECORD
        used = record.stat().st_mtime if record.is_file() else 0.0
        entries.append((used, size, folder))
    total, removed = sum(size for _, size, _ in entries), 0
    if total <= limit:
        return 0
    for used, size, folder in sorted(entries):
        if total <= limit * 0.9 or time.time() - used < _IN_USE_SECONDS:
            break
        discard(folder, root / TEMPORARIES)
        total, removed = total - size, removed + 1
    return removed


def _remove_old_locks(folder: Path) -> None:
    for path in folder.glob("*/*.lock"):
        if time.time() - path.stat().st_mtime < _IN_USE_SECONDS:
            continue
        try:
            with FileLock(path, timeout=0, mode=0o600):
                path.unlink(missing_ok=True)  # whoever waits for it notices the unlinked file and starts over
        except Timeout:
            continue
