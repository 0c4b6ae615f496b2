"""Several devices of one model: which of them does what, in which thread, and what happens to a fault."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aot_tune.bench import Device
from aot_tune.pipeline.crew import Crew
from aot_tune.pipeline.measure import Measurer
from aot_tune.pipeline.session import Session


def crew_of(count: int) -> Crew:
    """Devices that differ only in their unit; no bench is started, for no job asks for one."""
    devices = [
        Device(family="cuda", name="GPU", slug="cuda-gpu", identity={"name": "GPU"}, unit=f"GPU-{i}")
        for i in range(count)
    ]
    assert len({d.digest for d in devices}) == 1
    return Crew(cast(Session, SimpleNamespace()), devices)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_jobs_of_one_number_run_in_order_on_one_device_and_thread(count: int) -> None:
    done: list[tuple[int, int, int, int]] = []

    def job(number: int, turn: int) -> Any:
        def run(measurer: Measurer) -> None:
            done.append((number, turn, id(measurer), threading.get_ident()))

        return run

    with crew_of(count) as crew:
        for turn in range(4):  # a device keeps its thread from one call to the next: its workers die with it
            crew.each((number, job(number, turn)) for number in range(7))
    assert len(done) == 28
    by_number = {n: [d for d in done if d[0] == n] for n in range(7)}
    for rows in by_number.values():
        assert [r[1] for r in rows] == [0, 1, 2, 3]
        assert len({r[2:] for r in rows}) == 1
    assert len({d[2] for d in done}) == len({d[3] for d in done}) == count
    assert (threading.get_ident() in {d[3] for d in done}) == (count == 1)


@pytest.mark.parametrize("count", [1, 2])
def test_a_fault_of_a_job_ends_all(count: int) -> None:
    begun: list[int] = []

    def job(number: int) -> Any:
        def run(_measurer: Measurer) -> None:
            begun.append(number)
            if number == 1:
                raise RuntimeError("worker lost")

        return run

    with pytest.raises(RuntimeError, match="worker lost"), crew_of(count) as crew:
        crew.each((number, job(number)) for number in range(100))
    assert 1 in begun


def test_two_devices_work_at_the_same_time() -> None:
    meet = threading.Barrier(2, timeout=10)

    def job(_measurer: Measurer) -> None:
        meet.wait()  # broken, and raises, unless both are here at once

    with crew_of(2) as crew:
        crew.each([(0, job), (1, job)])
