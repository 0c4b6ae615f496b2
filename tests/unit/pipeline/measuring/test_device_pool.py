"""Devices and their benches: what an interrupt or the end of a budget ends."""

from __future__ import annotations

import hashlib
import io
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock
from processes import becomes_true, processes

from aot_tune.bench.protocol.measurement_records import Device, Policy
from aot_tune.pipeline.build_time import TuningTurn
from aot_tune.pipeline.measuring.builder import CompileBatch, Job, WorkBuilder
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.search.budget import Budget, Durations
from aot_tune.support.errors import BuildError, ToolchainError, WorkerError
from aot_tune.support.interrupts import AGAIN
from aot_tune.support.progress import Progress
from aot_tune.support.run_program import run


def pool_of(devices: int, seconds: float | None, compile_: Callable[..., object] | None = None) -> DevicePool:
    session: Any = SimpleNamespace(executor=None, compile=compile_, jobs_of=lambda _: SimpleNamespace(count=1))
    turn = TuningTurn(Progress(io.StringIO()), Durations(), Budget(seconds))
    named = [Device(family="cpu", name="this", slug="this", unit=f"{i}", identity={}) for i in range(devices)]
    return DevicePool(session, named, turn)


def links(folder: Path) -> None:
    """A linker that takes a minute."""
    run(["sleep", "60"], folder=folder, environ=dict(os.environ), timeout=60.0)


class OneJob:
    def __init__(self, job: Job) -> None:
        self._jobs = [job]

    def batch(self) -> CompileBatch | None:
        return None

    def job(self, device: object) -> Job | None:
        return self._jobs.pop() if self._jobs else None

    def stops_compiling(self) -> bool:
        return False

    def measured(self, job: Job) -> None:
        pass

    arrived = compiled = lost = measured


def test_the_end_of_a_budget_ends_a_linker_that_a_device_waits_for(tmp_path: Path) -> None:
    with pool_of(1, 0.3) as pool:
        plan: Any = OneJob(Job(0, "screen", lambda _measurer: links(tmp_path)))
        begun = time.monotonic()
        WorkBuilder(plan, pool, pool.turn.budget, time.monotonic).run()
        assert time.monotonic() - begun < 10.0


def test_the_end_of_a_budget_ends_what_all_devices_do_together(tmp_path: Path) -> None:
    with pool_of(2, 0.3) as pool:
        begun = time.monotonic()
        pool.each_member(lambda _measurer: links(tmp_path))
        assert time.monotonic() - begun < 10.0


def test_when_compilers_are_ended_a_device_goes_on_linking(tmp_path: Path) -> None:
    """Else a candidate would seem not to link, as when races must begin."""
    codes = list[int]()

    def link(seconds: str) -> None:
        codes.append(run(["sleep", seconds], folder=tmp_path, environ=dict(os.environ), timeout=60.0).code)

    def runs(seconds: str) -> bool:
        return bool(processes(lambda entry: (entry / "cmdline").read_bytes() == b"sleep\0%b\0" % seconds.encode()))

    with pool_of(1, None, lambda *_: link("61")) as pool:
        pool.measure(pool.devices[0], Job(0, "screen", lambda _measurer: link("1.3")))
        pool.compile(CompileBatch([], []))
        assert becomes_true(lambda: runs("61"), 10)
        pool.end_compiles()
        while len(codes) < 2:
            pool.wait(10.0)
    assert sorted(codes) == [-9, 0]


def test_an_error_on_one_device_ends_what_the_others_do(tmp_path: Path) -> None:
    def work(measurer: Measurer) -> None:
        if measurer is last:
            raise BuildError("it ends")
        links(tmp_path)

    begun = time.monotonic()
    with pool_of(2, None) as pool:
        last = pool.devices[-1]
        with pytest.raises(BuildError):
            pool.each_member(work)
    assert time.monotonic() - begun < 10.0


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
    session: Any = SimpleNamespace(executor=executor, threads=1, checks=None, policy=lambda _family: Policy())
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
