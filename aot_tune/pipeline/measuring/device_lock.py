"""The lock of a device. Builds of one user on one machine hold it in turn."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.search.budget import Budget
from aot_tune.support.errors import BuildError, WorkerError
from aot_tune.support.file_locks import Timeout, TrueLock

__all__ = ["device_lock"]


@contextmanager
def device_lock(
    device: Device, log: Callable[[str], None], budget: Budget | None, ended: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Keep this user's other builds from measuring on the device at the same time.

    Raises:
        WorkerError: when another build still measures at the end of the budget, or when this one has `ended`.
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
        if budget is None or budget.left > 0:
            log(f"waiting: another build measures on {device.name}")
        _wait(lock, device, budget, ended)
    except OSError as error:
        why = error.strerror or error
        log(f"NOTE {lock.lock_file} cannot be locked ({why}): let no other build measure on {device.name} meanwhile")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.release()


def _wait(lock: TrueLock, device: Device, budget: Budget | None, ended: Callable[[], bool]) -> None:
    limit = -1.0 if budget is None or budget.seconds is None else budget.left
    try:
        lock.acquire(timeout=limit, cancel_check=ended)
    except Timeout:
        raise WorkerError(
            f"{device.name} is not free", why="another build measured on it until the budget, or this build, ended"
        ) from None
