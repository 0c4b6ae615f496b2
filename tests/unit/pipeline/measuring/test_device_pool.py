"""Several devices of one model: which of them does what, in which thread, and faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pipelines import pool_of, session_of

from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.support.errors import WorkerError


@pytest.mark.parametrize("count", [1, 2, 3])
def test_jobs_of_one_number_run_in_order_on_one_device_and_thread(count: int) -> None:
    done: list[tuple[int, int, int, int]] = []
    meet = threading.Barrier(count, timeout=10)

    def job(number: int, turn: int) -> Any:
        def run(measurer: Measurer) -> None:
            if turn == 0 and number < count:
                meet.wait()  # else one device may be done with everything before the others begin
            done.append((number, turn, id(measurer), threading.get_ident()))

        return run

    with pool_of(count) as pool:
        for _ in range(2):  # a device keeps its thread from one call to the next: its workers die with it
            pool.each((number, job(number, turn)) for turn in range(4) for number in range(7))
    assert len(done) == 56
    for number in range(7):
        rows = [d for d in done if d[0] == number]
        assert [r[1] for r in rows] == [0, 1, 2, 3] * 2
        assert len({r[2:] for r in rows[:4]}) == len({r[2:] for r in rows[4:]}) == 1
    assert len({d[2:] for d in done}) == len({d[2] for d in done}) == len({d[3] for d in done}) == count
    assert (threading.get_ident() in {d[3] for d in done}) == (count == 1)


def test_a_fault_on_one_device_ends_what_another_is_busy_with(
    monkeypatch: pytest.MonkeyPatch, no_thread_left: Callable[[], bool]
) -> None:
    """Workers that are only starting are not there to be killed the first time."""
    busy, killed, interrupts, began = threading.Event(), threading.Event(), list[int](), time.monotonic()
    ended: list[str] = []

    def interrupt() -> None:
        interrupts.append(1)
        if len(interrupts) == 3:
            killed.set()

    def screens(measurer: Measurer) -> None:
        busy.set()
        while not measurer.over and time.monotonic() - began < 20:  # as they ask before each candidate
            time.sleep(0.01)
        ended.append("over" if measurer.over else "not told")
        ended.append("killed" if killed.wait(20) else "not killed")

    def fails(_measurer: Measurer) -> None:
        assert busy.wait(20)
        raise KeyboardInterrupt

    with pool_of(2) as pool:
        monkeypatch.setattr(pool, "interrupt", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pool.each([(1, fails), (0, screens), (0, lambda _: ended.append("begun"))])
    assert ended == ["over", "killed"]  # and its next job was not begun
    assert no_thread_left()


@pytest.mark.parametrize("count", [2, 3])
def test_others_do_what_a_lost_device_has_not_done(count: int) -> None:
    """What it was at, what was its own from before, and what nobody had begun; also where the others were done."""
    done: list[tuple[int, int]] = []
    busy, lost = threading.Barrier(count, timeout=10), threading.Event()

    def job(number: int) -> Any:
        def run(measurer: Measurer) -> None:
            if number < count and not lost.is_set():
                busy.wait()
            if number == 0 and not lost.is_set():
                while len(done) < 9:
                    time.sleep(0.001)
                time.sleep(0.05)  # the others have nothing left to do
                lost.set()
                raise WorkerError("a worker never answered", why="GPU 0 is not there", fix="look into the log")
            done.append((number, id(measurer)))

        return run

    session = session_of(count)
    with pool_of(count, session) as pool:
        pool.each((n, job(n)) for n in range(10))
        assert [n for n, _ in sorted(done)] == list(range(10))
        assert {m for _, m in done} == set(map(id, pool.members))
        (line,) = session.said
        assert line.startswith("LOST GPU GPU-")
        assert line.endswith(
            ": a worker never answered; GPU 0 is not there; look into the log; the other devices measure the rest"
        )
        left = [b.device.unit for b in pool.benches]
        assert len(left) == count - 1
        assert left == [d.unit for d in session.devices]
        assert not any(unit in line for unit in left)
        pool.each((n, job(n)) for n in range(10))
        assert len(done) == 20


@pytest.mark.parametrize(("why", "devices"), [("the last device", 2), ("the same jobs", 2), ("the budget", 1)])
def test_workers_that_fail_elsewhere_too_end_all(why: str, devices: int) -> None:
    """Where jobs fail on a second device, they are to blame; what a budget ends says nothing of its device."""
    tried: list[tuple[int, int]] = []
    session = session_of(2 if why == "the last device" else 3)

    def job(number: int) -> Any:
        def run(measurer: Measurer) -> None:
            if why == "the budget":
                session.turn.seconds = 0.0
            if number == 5 or why == "the last device":
                tried.append((number, id(measurer)))
                raise WorkerError("no worker can hold it")

        return run

    with pytest.raises(WorkerError, match="hold"), pool_of(len(session.devices), session) as pool:
        pool.each((n, job(n)) for n in range(6))
    assert len({m for _, m in tried}) == len(tried) == devices
