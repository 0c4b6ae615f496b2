"""Verifies variants of a linked library one after the other.

On a GPU several benches do so, because nothing is timed.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from aot_tune.bench.devices.cpu import usable_cores
from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Device, Measurement
from aot_tune.pipeline.measuring.bench_files import BenchFiles
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.session import Session
from aot_tune.support.errors import WorkerError
from aot_tune.support.threads import end_all

__all__ = ["JobQueue", "unavailable", "work_off"]

T = TypeVar("T")

_UNAVAILABLE = re.compile(r"\breturned -100\b")
"""AOT_TUNE_UNAVAILABLE: something that a variant needs, such as a vendor's library, is missing. Dispatch takes the next
one."""
_MOST, _CORES, _GIB, _EACH = 3, 4, 24, 16
"""The most benches at a time. Each needs so many cores, so much of the device's memory and so many variants. A bench is
three processes, which take seconds to start."""


class JobQueue(Generic[T]):
    """Items that benches take in turn. `run` is called with each, until `enough` of them have failed.

    `found` holds the results in the given order. A failure may be due to other benches on the device, so the item is
    run `again` by a bench that is alone.
    """

    def __init__(self, given: Sequence[T], run: Callable[[LazyBench, T], Measurement], enough: int) -> None:
        self._given, self._run, self._enough = given, run, enough
        self._left = deque(range(len(given)))
        self._lock = threading.Lock()
        self._found: dict[int, Measurement] = {}
        self.ended = False

    def __len__(self) -> int:
        return len(self._given)

    @property
    def found(self) -> list[tuple[T, Measurement]]:
        """What was run, and the results."""
        return [(self._given[i], m) for i, m in sorted(self._found.items())]

    def work(self, bench: LazyBench) -> None:
        """Take one item after the other, until none is left.

        Raises:
            WorkerError: when a worker cannot be started. The item is left to other benches.
        """
        while (number := self._next()) is not None:
            try:
                found = self._run(bench, self._given[number])
            except WorkerError:
                with self._lock:
                    self._left.append(number)
                raise
            with self._lock:
                self._found[number] = found

    def again(self, bench: LazyBench) -> None:
        """Run once more what has failed, and what no bench could do."""
        failed = [number for number, found in sorted(self._found.items()) if _failed(found)]
        for number in failed:
            del self._found[number]
        self._left.extendleft(reversed(failed))
        self.work(bench)

    def help(self, bench: LazyBench) -> None:
        """Do the same with a bench of one's own, beside another bench. If that bench fails, the other does the rest."""
        try:
            with bench:
                self.work(bench)
        except WorkerError as error:
            if not self.ended:
                bench.session.progress.line(
                    f"{bench.device.name}: one of the benches that verify was lost; the others go on: {error}"
                )

    def _next(self) -> int | None:
        with self._lock:
            failed = sum(map(_failed, self._found.values()))
            return None if self.ended or failed >= self._enough or not self._left else self._left.popleft()


def unavailable(found: Measurement) -> bool:
    """Whether a variant could not run because something that it needs is missing."""
    return found.status == "failed" and bool(_UNAVAILABLE.search(found.reason))


def _failed(found: Measurement) -> bool:
    return found.status != "ok" and not unavailable(found)


def work_off(session: Session, device: Device, turns: JobQueue[T]) -> None:
    """Have all items done on a device. A CPU is shared with other builds, but a GPU's memory is not.

    Raises:
        WorkerError: when no worker can be started.
    """
    count = _benches(device, len(turns))
    with (
        BenchFiles(session, count, lambda: turns.ended) as shared,
        LazyBench(session, device, exclusive=family(device.family).is_exclusive, shared=shared) as first,
        ThreadPoolExecutor(count) as threads,
    ):
        first.get()  # it has the device to itself before others begin on it
        others = [LazyBench(session, device, exclusive=False, shared=shared) for _ in range(count - 1)]
        # Workers die with the thread that started them.
        helping = [threads.submit(turns.help, bench) for bench in others]
        try:
            with contextlib.suppress(*([WorkerError] if others else [])):
                turns.work(first)
            for one in helping:
                one.result()
            if others:
                turns.again(first)
        except BaseException:
            turns.ended = True
            end_all(helping, lambda: _interrupt(others))
            raise


def _interrupt(benches: Sequence[LazyBench]) -> None:
    for bench in benches:
        bench.interrupt()


def _benches(device: Device, count: int) -> int:
    if not family(device.family).is_exclusive:
        return 1
    memory = int(device.identity.get("memory_gib", 0))
    return max(1, min(_MOST, usable_cores() // _CORES, memory // _GIB, count // _EACH))
