"""Jobs of several devices: nothing is idle while there is something to do, and nothing is with two at a time."""

from __future__ import annotations

import threading

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
