"""What the end of a budget, and an error, do to what devices are at."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.pipeline.build_time import TuningTurn
from aot_tune.pipeline.measuring.builder import CompileBatch, Job, WorkBuilder
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.search.budget import Budget, Durations
from aot_tune.support.errors import BuildError
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
    """A plan, see `WantedWork`."""

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

    with pool_of(1, None, lambda *_: link("60")) as pool:
        pool.measure(pool.devices[0], Job(0, "screen", lambda _measurer: link("0.6")))
        pool.compile(CompileBatch([], []))
        time.sleep(0.3)
        pool.end_compiles()
        while len(codes) < 2:
            pool.wait(10.0)
    assert codes == [-9, 0]


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
