"""The benchmark of several devices: what it reads of a build, its clock, and its made-up workers."""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from places import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import devices
from virtual_clock import VirtualClock

LOG = """\
aot_tune: cuda-sm_90a: compiling took 2 s, measuring 30 s, both together 31 s
aot_tune: cuda-sm_90a: 900 measurements made, 0 known from before
aot_tune: cuda-sm_90a: where the measuring went: race 50 s, check 9 s
aot_tune: cuda-sm_90a: GPU-0 was at work for 29.0 s: race 25.0 s
aot_tune: cuda-sm_90a: GPU-1 was at work for 28.0 s: race 25.0 s
"""


def test_a_rate_is_of_the_time_in_which_devices_were_at_work() -> None:
    assert devices.rate(LOG) == 1800
    told = devices.told(2, LOG, 44.4).splitlines()
    assert told[0].startswith("2 GPUs: 1800 measurements a minute, 44 s in all; where the measuring went: race")
    assert [line.split()[0] for line in told[1:]] == ["GPU-0", "GPU-1"]
    with pytest.raises(SystemExit, match="measured nothing"):
        devices.rate("aot_tune: done in 3 s")


def test_made_up_seconds_pass_in_the_order_of_those_who_wait() -> None:
    clock, woken, real = VirtualClock(by=0.0), list[tuple[str, float]](), time.monotonic()

    def wait(name: str, seconds: float, times: int) -> None:
        for _ in range(times):
            clock.sleep(seconds)
            woken.append((name, clock.now()))

    with clock.running(), ThreadPoolExecutor(2) as threads:
        for future in [threads.submit(wait, "short", 40.0, 3), threads.submit(wait, "long", 100.0, 1)]:
            future.result()
        assert time.monotonic() == 120.0
    assert woken == [("short", 40.0), ("short", 80.0), ("long", 100.0), ("short", 120.0)]
    assert 0 <= time.monotonic() - real < 10  # it is the machine's again


def test_who_waits_for_another_thread_waits_as_long() -> None:
    clock, ready = VirtualClock(by=0.0), threading.Event()

    def make() -> None:
        clock.sleep(5.0)
        ready.set()
        clock.sleep(1.0)

    with clock.running(), ThreadPoolExecutor(1) as thread:
        made = thread.submit(make)
        ready.wait()
        assert clock.now() == 5.0
        made.result()
    assert clock.now() == 6.0


def test_a_thread_that_was_there_before_holds_nobody_up() -> None:
    """As one that reads what another process sends."""
    clock, (reading, writing) = VirtualClock(by=0.0), os.pipe()
    with ThreadPoolExecutor(1) as before:
        read = before.submit(os.read, reading, 1)
        with clock.running():
            clock.sleep(3.0)
        os.write(writing, b"1")
        assert read.result() == b"1"
    os.close(reading)
    os.close(writing)
    assert clock.now() == 3.0


def test_who_still_waits_when_a_clock_ends_is_let_go() -> None:
    clock, gone = VirtualClock(by=0.0), threading.Event()

    def wait() -> None:
        clock.sleep(1e9)
        gone.set()

    with clock.running():
        threading.Thread(target=wait).start()
    assert gone.wait(10.0)
    clock.sleep(1e9)


def test_what_threads_compute_counts_one_after_the_other() -> None:
    clock = VirtualClock(by=1000.0)

    def compute() -> float:
        clock.now()
        begun = time.thread_time()
        while time.thread_time() - begun < 0.02:
            pass
        clock.sleep(0.0)
        return clock.now()

    with clock.running(), ThreadPoolExecutor(2) as threads:
        first, second = sorted(f.result() for f in [threads.submit(compute) for _ in range(2)])
    assert first >= 20.0
    assert second >= 40.0
