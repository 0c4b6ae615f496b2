"""A bench that starts at first use: an interrupt ends the wait for its device, and its compilers."""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.search.budget import Budget
from aot_tune.support.errors import ToolchainError, WorkerError
from aot_tune.support.interrupts import AGAIN


@pytest.mark.parametrize("seconds", [None, 60.0])
def test_an_interrupt_ends_the_wait_for_a_device_that_another_build_has(seconds: float | None) -> None:
    """Else Ctrl-C would do nothing until the other build ends."""
    device = Device(family="cpu", name="this", slug="this", unit=f"test {os.getpid()}", identity={})
    waits = threading.Event()
    session: Any = SimpleNamespace(executor=None, progress=SimpleNamespace(line=lambda _line: waits.set()))
    folder = Path(f"/tmp/aot_tune-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    held = folder / f"cpu-{hashlib.sha256(device.unit.encode()).hexdigest()[:16]}.lock"
    with LazyBench(session, device, Budget(seconds)) as bench, ThreadPoolExecutor(1) as thread, FileLock(held):
        started = thread.submit(bench.get)
        assert waits.wait(10.0)
        for _ in range(20):
            if wait([started], AGAIN).not_done:
                bench.interrupt()
        with pytest.raises(WorkerError, match="is not free"):
            started.result(timeout=0)
    held.unlink()


def test_an_interrupt_reaches_a_bench_of_another_machine_that_only_starts() -> None:
    """It may wait for its device there."""

    class Remote(AbstractContextManager["Remote"]):
        waits, ended = threading.Event(), threading.Event()
        interrupt = ended.set

        def __enter__(self) -> Remote:
            self.waits.set()
            assert self.ended.wait(10.0)
            raise WorkerError("this is not free")

        def __exit__(self, *_: object) -> None:
            pass

    device, remote = Device(family="cpu", name="this", slug="this", unit="", identity={}), Remote()
    executor = SimpleNamespace(has=lambda _device: True, bench=lambda *_args, **_given: remote)
    session: Any = SimpleNamespace(executor=executor, threads=1, checks=None)
    with LazyBench(session, device) as bench, ThreadPoolExecutor(1) as thread:
        started = thread.submit(bench.get)
        assert remote.waits.wait(10.0)
        bench.interrupt()
        with pytest.raises(WorkerError, match="is not free"):
            started.result()


def test_a_compiler_that_an_interrupt_killed_says_nothing_about_its_candidate() -> None:
    """A record knows it, so that it is compiled when it races."""
    killed: Any = SimpleNamespace(object=None, compiled=False, error="died of signal 9")
    known = list[object]()

    def compile_(variants: list[Any], _what: str, _into: object, ready: Any) -> list[Any]:
        bench.interrupt()
        ready(variants[0])
        known.extend(variants)
        return variants

    session: Any = SimpleNamespace(compile=compile_)
    bench = LazyBench(session, Device(family="cpu", name="this", slug="this", unit="", identity={}))
    with pytest.raises(ToolchainError, match="has ended"):
        bench.linked(killed)
    assert not known
