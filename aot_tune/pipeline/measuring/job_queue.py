"""Runs the variants of a linked library. Nothing is timed, so several benches share a GPU."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Device, Measurement
from aot_tune.pipeline.measuring.bench_files import BenchFiles
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.session import Session
from aot_tune.support.errors import WorkerError
from aot_tune.support.interrupts import end_all
from aot_tune.support.limits import usable_cores

__all__ = ["JobQueue", "unavailable", "work_off"]

T = TypeVar("T")

_UNAVAILABLE = re.compile(r"\breturned -100\b")
"""AOT_TUNE_UNAVAILABLE: a variant needs something that is missing, such as a vendor's library. Dispatch skips it."""
_MOST, _CORES, _GIB, _EACH = 3, 4, 24, 16
"""Limits on how many benches run at a time: in all, by cores, by the device's memory and by variants.

A bench is three processes, which take seconds to start."""


class JobQueue(Generic[T]):
    """Jobs that benches take in turn. `run` is called with each, until `enough` of them have failed.

    `found` has the results, in the order of the jobs. A job may fail only because other benches run beside it. So a
    bench that is alone runs failed jobs `again`.
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
        """The jobs that were run, with their results."""
        return [(self._given[i], m) for i, m in sorted(self._found.items())]

    def work(self, bench: LazyBench) -> None:
        """Run one job after the other, until none is left.

        Raises:
            WorkerError: when a worker cannot be started. Others do the job then.
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
        """Run once more the jobs that failed, and those that nobody could run."""
        failed = [number for number, found in sorted(self._found.items()) if _failed(found)]
        for number in failed:
            del self._found[number]
        self._left.extendleft(reversed(failed))
        self.work(bench)

    def help(self, bench: LazyBench) -> None:
        """Work beside another bench, with a bench of one's own. If this bench fails, the other one does all."""
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
    """Run all jobs on a device. A CPU is shared with other builds; a GPU's memory is not.

    Raises:
        WorkerError: when no worker can be started.
    """
    count = _benches(device, len(turns))
    with (
        BenchFiles(session, count, lambda: turns.ended) as shared,
        LazyBench(session, device, exclusive=not family(device.family).on_host, shared=shared) as first,
        ThreadPoolExecutor(count) as threads,
    ):
        first.get()  # it must have the device for itself before others start
        others = [LazyBench(session, device, exclusive=False, shared=shared) for _ in range(count - 1)]
        helping = [threads.submit(turns.help, bench) for bench in others]  # workers die with their thread
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
    if family(device.family).on_host:
        return 1
    memory = int(device.identity.get("memory_gib", 0))
    return max(1, min(_MOST, usable_cores() // _CORES, memory // _GIB, count // _EACH))
