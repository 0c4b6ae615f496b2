"""The lock of a device. Builds of one user on one machine hold it in turn."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.search.budget import Budget
from aot_tune.support.errors import BuildError, WorkerError
from aot_tune.support.file_locks import Timeout, TrueLock


@contextmanager
def device_lock(
    device: Device, log: Callable[[str], None], budget: Budget | None, ended: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Keep this user's other builds from measuring on the device at the same time.

    A wait counts against the whole budget of a build, not against a part of it. Lines say whom it waits for, and how
    long it did.

    Raises:
        WorkerError: when another build still measures at the end of the whole budget, or when this one has `ended`.
    """
    shared = Path("/tmp")  # noqa: S108 - builds that must not measure together may have different TMPDIR
    folder = (shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())) / f"aot_tune-{os.getuid()}"
    digest = hashlib.sha256(device.unit.encode()).hexdigest() if device.unit else device.digest
    lock = TrueLock(folder / f"{device.family}-{digest[:16]}.lock")
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if not folder.is_dir() or folder.is_symlink() or folder.lstat().st_uid != os.getuid():
            raise BuildError(f"{folder} is not a folder of yours", why="builds lock the device there", fix="remove it")
        lock.acquire(timeout=0)
    except Timeout:
        _wait(lock, device, log, budget or Budget(None), ended)
    except OSError as error:
        why = error.strerror or error
        log(f"NOTE {lock.lock_file} cannot be locked ({why}): let no other build measure on {device.name} meanwhile")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.release()


def _wait(
    lock: TrueLock, device: Device, log: Callable[[str], None], budget: Budget, ended: Callable[[], bool]
) -> None:
    holder, begun, told = _holder(Path(lock.lock_file)), time.monotonic(), budget.patience > 0
    if told:
        log(f"waiting: another build measures on {device.name}{holder}")
    limit = -1.0 if budget.patience == math.inf else budget.patience
    try:
        with budget.waiting():
            lock.acquire(timeout=limit, cancel_check=ended)
    except Timeout:
        raise WorkerError(
            f"{device.name} is not free",
            why=f"another build{holder} measured on it until the budget, or this build, ended",
        ) from None
    finally:
        if told:
            log(f"waited {time.monotonic() - begun:.0f} s for {device.name}")


def _holder(file: Path) -> str:
    """Which process has a file locked, in words; empty if the system does not tell."""
    with contextlib.suppress(OSError):
        number = str(file.stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()  # 1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE FIRST LAST
            if len(words) > 5 and words[5].rpartition(":")[2] == number and int(words[4]) > 0:
                return f" (process {words[4]})"
    return ""
