"""Limits of time and memory for code and templates of authors that run in this process."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from aot_tune.support.processes import data_bytes

__all__ = ["MEMORY", "SECONDS", "TooLongError", "limited"]

SECONDS = 60.0
"""How long what is run may take."""
MEMORY = 4 << 30
"""By how many bytes it may let the process grow."""

_AGAIN = 0.5
"""Seconds after which code that went on in spite of the error gets it again."""


class TooLongError(BaseException):
    """Code took too long. No Exception: that is what it may catch."""


@contextmanager
def limited() -> Iterator[None]:
    """Run the block within the limits; that of time holds in the main thread alone, which can be interrupted.

    Raises:
        TooLongError: in the block, when it takes longer than `SECONDS`.
        MemoryError: in the block, where it asks for more than `MEMORY`.
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
    """Interrupt the block after a while; whoever set the timer before has it again after it."""
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
