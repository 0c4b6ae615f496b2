"""Ends things: a command together with its build, because a killed build tool does not end its children; threads."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any

from aot_tune.support.processes import ancestors, stat_of

_GRACE = 1.0
"""Seconds between asking for an end and forcing it."""

_SHELLS = frozenset(("ash", "bash", "dash", "fish", "ksh", "sh", "zsh"))

AGAIN = 0.1
"""Seconds between two attempts to end them."""


@contextlib.contextmanager
def end_with_the_build() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt. Also raise it when a program that started this one ends.

    The programs that count are the ancestors in this process group: the build tool, CMake, the build front end. Shells
    do not count, because a shell may end and leave its jobs running. If the parent is not in this group, though another
    process leads the group, the program that started this one has ended already. Only for the main thread.
    """
    if _is_left_behind():
        raise KeyboardInterrupt("the program that started it is gone")
    wanted = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, _interrupt) for number in wanted}
    watched = _watched()
    if watched:
        threading.Thread(target=_watch, args=(watched,), daemon=True).start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    raise KeyboardInterrupt(signal.Signals(number).name)


def _watch(watched: list[int]) -> None:
    """Wait, without using time, until one of the processes behind the descriptors ends. Then end this process."""
    poll = select.poll()
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN)
    poll.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_GRACE)
    os.kill(os.getpid(), signal.SIGKILL)


def _is_left_behind() -> bool:
    """Whether the program that started this process ended while Python started. A shell leads no group of its pipes."""
    group, parent = os.getpgid(0), os.getppid()
    if group == os.getpid():
        return False
    try:
        return os.getpgid(parent) != group and (parent == 1 or stat_of(parent).name not in _SHELLS)
    except OSError:
        return True


def _watched() -> list[int]:
    """Descriptors of the ancestors to watch; none if the kernel has no such descriptors."""
    watched: list[int] = []
    with contextlib.suppress(OSError, AttributeError):
        for pid, stat in ancestors():
            if pid == 1 or os.getpgid(pid) != os.getpgid(0):
                break
            if stat.name not in _SHELLS:
                watched.append(os.pidfd_open(pid))
    return watched


def end_all(waiting: Collection[Future[Any]], interrupt: Callable[[], object]) -> None:
    """Wait until all threads have ended, interrupting again: workers that only start must be killed later."""
    while wait(waiting, timeout=AGAIN).not_done:
        interrupt()
