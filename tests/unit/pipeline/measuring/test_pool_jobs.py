"""Jobs of several devices: nothing is idle while there is something to do, and nothing is with two at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pipelines import pool_of, session_of

from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.pipeline.measuring.pool_jobs import Job
from aot_tune.support.errors import WorkerError


def test_a_device_that_has_nothing_left_gets_more_while_another_is_at_work() -> None:
    """The first job ends only once three others are done, which nobody knew of when it began."""
    done, three = list[int](), threading.Event()
    coming = [[(1, 1)], [], [(2, 2), (3, 3)]]

    def job(number: int) -> Job:
        def run(_measurer: Measurer) -> None:
            if number == 0:
                assert three.wait(10)
            done.append(number)
            if len(done) == 3:
                three.set()

        return run

    with pool_of(2) as pool:
        pool.each([(0, job(0))], lambda: [(n, job(i)) for n, i in coming.pop(0)] if coming else [])
    assert sorted(done) == [0, 1, 2, 3]
    assert done[-1] == 0


def test_one_device_gets_more_too() -> None:
    done, coming = list[int](), [[1, 2], [3]]

    def job(number: int) -> Job:
        return lambda _: done.append(number)

    with pool_of(1) as pool:
        pool.each([(0, job(0))], lambda: [(n, job(n)) for n in coming.pop(0)] if coming else [])
    assert done == [0, 1, 2, 3]


def test_a_number_that_a_device_is_at_waits_for_it() -> None:
    """Also where another device has nothing to do: a problem's race and its screens are on one device at a time."""
    at_work, most, asked = set[int](), list[int](), threading.Event()
    given: list[tuple[int, Job]] = []

    def job(last: bool) -> Job:
        def run(measurer: Measurer) -> None:
            at_work.add(id(measurer))
            most.append(len(at_work))
            if not last:
                assert asked.wait(10)  # then the other device has been given the same number again
                assert not again.wait(0.15)
            else:
                again.set()
            at_work.discard(id(measurer))

        return run

    def more() -> list[tuple[int, Job]]:
        if asked.is_set():
            return []
        given.append((7, job(last=True)))
        asked.set()
        return given

    again = threading.Event()
    with pool_of(2) as pool:
        pool.each([(7, job(last=False))], more)
    assert most == [1, 1]
    assert again.is_set()


def test_devices_keep_to_operators_that_they_are_at_as_far_as_that_goes() -> None:
    """What workers load for an operator they load on few devices; none is idle for that."""
    seen: dict[int, list[int]] = {}
    meet = threading.Barrier(2, timeout=10)

    def job(number: int) -> Job:
        def run(measurer: Measurer) -> None:
            meet.wait()
            seen.setdefault(id(measurer), []).append(number)

        return run

    with pool_of(2) as pool:
        pool.each([(n, job(n)) for n in (0, 1, 2, 3, 10, 11)], of=lambda n: "first" if n < 10 else "second")
    assert sorted(numbers[:2] for numbers in seen.values()) == [[0, 1], [10, 11]]
    assert sorted(numbers[2] for numbers in seen.values()) == [2, 3]


@pytest.mark.parametrize("fault", [RuntimeError("cannot compile"), KeyboardInterrupt()])
def test_what_fails_to_find_more_ends_all(fault: BaseException, no_thread_left: Callable[[], bool]) -> None:
    busy = threading.Event()

    def more() -> Any:
        assert busy.wait(10)
        raise fault

    def job(measurer: Measurer) -> None:
        busy.set()
        while not measurer.ended:
            threading.Event().wait(0.01)

    with pytest.raises(type(fault)), pool_of(2) as pool:
        pool.each([(0, job)], more)
    assert no_thread_left()


def test_a_device_that_waits_for_more_takes_over_what_a_lost_one_was_at() -> None:
    done, idle = list[tuple[int, str]](), threading.Event()
    session = session_of(2)

    def first(measurer: Measurer) -> None:
        if not lost:
            assert idle.wait(10)
            lost.append(measurer)
            raise WorkerError("a worker never answered")
        done.append((0, measurer.bench.device.unit))

    def more() -> list[tuple[int, Job]]:
        idle.set()
        return []

    lost: list[Measurer] = []
    with pool_of(2, session) as pool:
        pool.each([(0, first)], more)
        assert [n for n, _ in done] == [0]
        assert done[0][1] != lost[0].bench.device.unit
    assert session.said[0].startswith(f"LOST GPU {lost[0].bench.device.unit}: a worker never answered")


def test_it_is_told_how_long_each_device_was_at_work() -> None:
    meet = threading.Barrier(2, timeout=10)

    def job(measurer: Measurer) -> None:
        meet.wait()
        measurer.spent["race"] += 2.0 if measurer is pool.members[0] else 0.0
        threading.Event().wait(0.06)

    with pool_of(2) as pool:
        pool.each([(0, job), (1, job)])
        first, second = pool.told()
        assert all(0.05 < m.at_work < 5 for m in pool.members)
    assert first.startswith("GPU-0 was at work for 0.")
    assert first.endswith(" s: race 2.0 s")
    assert second.endswith(" s: nothing")
