"""Jobs of several devices: nothing is idle while there is something to do, and nothing is with two at a time."""

from __future__ import annotations

import threading

from pipelines import pool_of

from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.pipeline.measuring.pool_jobs import Job


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
