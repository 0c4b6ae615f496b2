"""Several devices of one model: which of them does what, in which thread, and faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pipelines import pool_of, session_of

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.pipeline.scheduling.tune import nothing_is_known
from aot_tune.pipeline.session import Session
from aot_tune.search import Budget
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


@pytest.mark.parametrize("count", [1, 2])
def test_a_fault_of_a_job_ends_all(count: int) -> None:
    begun: list[int] = []

    def job(number: int) -> Any:
        def run(_measurer: Measurer) -> None:
            begun.append(number)
            if number == 1:
                raise RuntimeError("worker lost")

        return run

    with pytest.raises(RuntimeError, match="worker lost"), pool_of(count) as pool:
        pool.each((number, job(number)) for number in range(100))
    assert 1 in begun


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


def test_a_second_interrupt_does_not_wait_for_what_a_device_is_busy_with(
    monkeypatch: pytest.MonkeyPatch, no_thread_left: Callable[[], bool]
) -> None:
    """As Ctrl-C comes once from the terminal, and once as the build tool above dies of it."""
    busy, killed, interrupts = threading.Event(), threading.Event(), list[int]()
    ended: list[bool] = []

    def interrupt() -> None:
        interrupts.append(1)
        if len(interrupts) == 1:
            raise KeyboardInterrupt("the second")
        killed.set()

    def screens(_measurer: Measurer) -> None:
        busy.set()
        ended.append(killed.wait(10))

    def fails(_measurer: Measurer) -> None:
        assert busy.wait(10)
        raise KeyboardInterrupt("the first")

    pool = pool_of(2)
    monkeypatch.setattr(pool, "interrupt", interrupt)
    with pytest.raises(KeyboardInterrupt, match="second"), pool:
        pool.each([(1, fails), (0, screens)])
    assert ended == [True]
    assert no_thread_left()


@pytest.mark.parametrize(
    ("mode", "knew_any", "recorded", "seconds", "early"),
    [
        ("auto", False, "", None, True),
        ("auto", False, "", 60.0, True),
        ("auto", False, "", 0.0, False),
        ("auto", True, "", None, False),
        ("auto", False, "GPU", None, False),
        ("auto", False, "another", None, True),
        ("auto", False, "GPU, another policy", None, True),  # its times are not taken
        ("tune", False, "GPU", None, True),
    ],
)
def test_workers_start_early_where_all_is_to_be_measured_and_there_is_time(
    mode: str, knew_any: bool, recorded: str, seconds: float | None, early: bool
) -> None:
    def device(name: str) -> Device:
        return Device(family="cuda", name=name, slug="cuda-gpu", identity={"name": name})

    name, _, policy = recorded.partition(", ")
    session: Any = SimpleNamespace(
        options=SimpleNamespace(mode=mode),
        store=SimpleNamespace(knew_any=knew_any),
        databases=[SimpleNamespace(device=device(name), policy_digest=policy)] if recorded else [],
        policy_of=lambda _: SimpleNamespace(digest=""),
        is_recorded=lambda one: Session.is_recorded(session, one),
        turn=Budget(seconds),
    )
    assert nothing_is_known(session, device("GPU")) == early


def test_what_a_device_measured_before_it_was_left_out_is_counted_and_the_others_go_on() -> None:
    done: list[int] = []
    meet = threading.Barrier(2, timeout=10)

    def job(measurer: Measurer) -> None:
        if len(pool.members) == 2 and len(done) < 2:
            meet.wait()
        done.append(id(measurer))

    with pool_of(3) as pool:
        pool.members[1].measured = 5
        pool.members[0].spent.update(bench=1.0, race=2.0)
        pool.members[1].spent.update(race=1.5, check=0.5)
        pool.leave_out(1)
        assert pool.measured == 5
        assert list(pool.spent.items()) == [("race", 3.5), ("bench", 1.0), ("check", 0.5)]
        assert pool.slow_reference == ""
        pool.members[0].referred.update(quick=1.0, loops=7.0)
        assert pool.slow_reference == ""  # 7 s are soon over
        pool.members[1].referred.update(loops=5.0)
        assert pool.slow_reference.startswith("operator loops: its reference took 12 s of that.")
        pool.members[0].spent["race"] += 100.0
        assert pool.slow_reference == ""
        pool.each((n, job) for n in range(2))
        pool.each((n, job) for n in range(2, 6))
        assert set(done) == {id(m) for m in pool.members}
        pool.leave_out(1)
        pool.each((n, job) for n in range(6))  # also those that were the other's
        assert len(done) == 12
    assert [bench.device.unit for bench in pool.benches] == ["GPU-0"]


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
