"""Limits of time and memory for authors' code and templates that run in this process."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from aot_tune.support.processes import data_bytes

SECONDS = 60.0
"""How long such code may take, in seconds."""
MEMORY = 4 << 30
"""By how many bytes it may make the process grow."""

_AGAIN = 0.5
"""Seconds after which code that caught the error gets it again."""


class TooLongError(BaseException):
    """Code took too long. It is not an Exception, because the code may catch those."""


@contextmanager
def limited() -> Iterator[None]:
    """Run the block within the limits. The time limit works only in the main thread, which can be interrupted.

    Raises:
        TooLongError: in the block, when it takes longer than `SECONDS`.
        MemoryError: in the block, when it asks for more than `MEMORY`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = data_bytes() + MEMORY
    lowered = soft == resource.RLIM_INFINITY or most < soft
    if lowered:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        if threading.current_thread() is threading.main_thread():
            with _alarm():
                yield
        else:
            yield
    finally:
        if lowered:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextmanager
def _alarm() -> Iterator[None]:
    """Interrupt the block after a while. A timer that was set before is restored after the block."""
    handler = signal.signal(signal.SIGALRM, _expire)
    left, interval = signal.setitimer(signal.ITIMER_REAL, SECONDS, _AGAIN)
    begun = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - begun), 0.01), interval)


def _expire(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise TooLongError
