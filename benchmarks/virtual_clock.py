"""A simulated clock for programs with threads. It moves on when every thread waits for it, or for another thread.

Computing in threads counts too, one thread after the other, as Python runs them. Other programs on the machine do not
count. So a simulation of minutes takes seconds, and gives nearly the same result each time.
"""

from __future__ import annotations

import concurrent.futures.thread
import heapq
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

__all__ = ["VirtualClock"]

_LOOK = 0.0002
"""Real seconds between two looks at what threads do."""


class VirtualClock:
    """A clock on which threads `sleep`. `by` is the simulated time of one second of this machine's processor.

    It waits for the thread that runs it, but not for other threads that existed before.
    """

    def __init__(self, by: float = 1.0) -> None:
        self._by, self._lock, self._numbers = by, threading.Lock(), itertools.count()
        self._now = self._free = 0.0
        self._own: dict[int, tuple[float, float]] = {}
        self._waiting: list[tuple[float, int, threading.Lock]] = []
        self._strangers = frozenset[int]()
        self._ended = False

    def now(self) -> float:
        """Simulated seconds since the beginning, up to the end of this thread's computing."""
        with self._lock:
            return self._counted()

    def _counted(self) -> float:
        me, used = threading.get_ident(), time.thread_time()
        before, until = self._own.get(me, (used, 0.0))
        if used > before:
            until = max(self._now, self._free, until) + (used - before) * self._by
            self._free = until
        self._own[me] = (used, until)
        return max(self._now, until)

    def sleep(self, seconds: float) -> None:
        """Wait this long, or not at all once the clock has ended."""
        gate = threading.Lock()
        gate.acquire()
        with self._lock:
            if self._ended:
                return
            heapq.heappush(self._waiting, (self._counted() + max(seconds, 0.0), next(self._numbers), gate))
        self._wait(gate)

    def _wait(self, gate: threading.Lock) -> None:
        gate.acquire()

    def _move(self) -> None:
        """When all threads wait, wake the one whose time comes first."""
        still, before = _still(self._wait.__func__.__code__), ""  # type: ignore[attr-defined]
        while not self._ended:
            time.sleep(_LOOK)
            places = _places(still, self._strangers)
            if places and places == before and not _runnable():
                with self._lock:
                    if self._waiting:
                        wake, _, gate = heapq.heappop(self._waiting)
                        self._now = max(self._now, wake)
                        gate.release()
                places = ""
            before = places

    @contextmanager
    def running(self) -> Iterator[None]:
        """In the block, `time.monotonic` of this process is this clock's time."""
        mover = threading.Thread(target=self._move, daemon=True)
        real = time.monotonic
        self._strangers = frozenset(sys._current_frames()) - {threading.get_ident()}
        mover.start()
        time.monotonic = self.now
        try:
            yield
        finally:
            time.monotonic = real
            self._ended = True
            mover.join()
            self._release()

    def _release(self) -> None:
        """Wake the threads that still wait, because the caller may join them next."""
        with self._lock:
            for _, _, gate in self._waiting:
                gate.release()
            self._waiting.clear()


def _still(wait: CodeType) -> frozenset[CodeType]:
    """Functions in which a thread does nothing."""
    waits = (threading.Condition.wait, threading.Thread.join, concurrent.futures.thread._worker)
    return frozenset((wait, *(w.__code__ for w in waits), *_joins()))


def _joins() -> Iterator[CodeType]:
    old = getattr(threading.Thread, "_wait_for_tstate_lock", None)
    if old is not None:
        yield old.__code__


def _runnable() -> bool:
    """Whether the kernel still has to run another thread of this process, because other programs use the cores."""
    me = threading.get_native_id()
    try:
        for task in Path("/proc/self/task").iterdir():
            state = (task / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            if state == "R" and int(task.name) != me:
                return True
    except OSError:  # it has ended meanwhile
        return True
    return False


def _places(still: frozenset[CodeType], strangers: frozenset[int]) -> str:
    """The places of all other threads except strangers; empty if one of them is at work."""
    found = []
    for thread, frame in sys._current_frames().items():
        if thread != threading.get_ident() and thread not in strangers:
            if frame.f_code not in still or _starts_another(frame):
                return ""
            found.append(f"{thread} {frame.f_code.co_name} {id(frame)}")
    return " ".join(found)


def _starts_another(frame: FrameType) -> bool:
    """Whether a thread waits for one that it starts. That one may be missing among the frames."""
    start, callers = threading.Thread.start.__code__, 0
    here: FrameType | None = frame
    while here is not None and callers < 4:  # start, Event.wait, Condition.wait
        if here.f_code is start:
            return True
        here, callers = here.f_back, callers + 1
    return False
