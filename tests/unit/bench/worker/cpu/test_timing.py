"""Times on a clock that the tests turn: grouping, early stop, statistics, and the floor of a device."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot_tune.bench.devices.cpu import FAMILY, cpu_identity, last_cache_bytes, usable_cores
from aot_tune.bench.devices.family import devices, family
from aot_tune.bench.protocol.measurement_records import Device, Policy, group_size
from aot_tune.bench.worker.cpu.timing import (
    Repeater,
    Sampler,
    screen,
    undisturbed,
)
from aot_tune.bench.worker.loaded_objects import LaunchError
from aot_tune.support.errors import WorkerError


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def timed(costs: list[int]) -> tuple[Sampler, list[int], Clock]:
    """A sampler of functions that take so many ns in turn, and the order in which they were called."""
    clock, called = Clock(), []

    def run(index: int) -> int:
        clock.now += costs[index]
        called.append(index)
        return 0

    return Sampler(run, [(i,) for i in range(len(costs))], clock), called, clock


def test_a_sample_is_the_mean_of_its_calls_and_copies_rotate() -> None:
    sampler, called, _ = timed([10, 20, 60])
    assert sampler.sample(2) == 15
    assert sampler.sample(4) == (60 + 10 + 20 + 60) / 4
    assert called == [0, 1, 2, 0, 1, 2]


def test_a_call_that_returns_an_error_is_not_a_time() -> None:
    sampler = Sampler(lambda: 3, [()], Clock())
    with pytest.raises(LaunchError, match=r"^3$"):
        sampler.sample(4)


@given(st.floats(1, 1e12), st.integers(1000, 1_000_000))
def test_groups_make_samples_long_enough(call: float, sample: int) -> None:
    calls = group_size(call, sample)
    assert 1 <= calls <= 4096
    assert calls in (1, 4096) or calls * call == pytest.approx(sample, rel=0.5)


def test_a_screen_ends_after_two_samples_of_a_slow_candidate_and_with_its_time() -> None:
    assert screen(lambda _calls: 1e6, Policy(), best_ns=0.6e6) == [1e6, 1e6]
    assert len(screen(lambda _calls: 1e6, Policy(), best_ns=0.7e6)) == 20
    policy = Policy(screen_ns=10_000_000)
    assert len(screen(lambda _calls: 4e6, policy, None)) == 3
    assert len(screen(lambda _calls: 50e6, policy, None)) == 2


def test_a_sample_that_was_preempted_is_taken_again() -> None:
    for counts, samples, want in (
        ([0, 0], [5.0], 5.0),
        ([0, 1, 1, 1], [9.0, 5.0], 5.0),
        ([0, 1, 1, 2], [9.0, 8.0, 7.0], 7.0),
        ([0, 3], [5e6], 5e6),
    ):
        count, sample = iter(counts), iter(samples)
        assert undisturbed(lambda _calls, sample=sample: next(sample), 1, lambda count=count: next(count)) == want
        assert not [*sample, *count]


def test_the_identity_of_this_cpu() -> None:
    device = devices("cpu", 2)[0]
    assert device.family == "cpu"
    assert set(device.identity) >= {"model_name", "family", "model", "stepping", "flags", "caches", "cores", "threads"}
    assert device.identity["threads"] == 2
    assert device.slug == devices("cpu", 2)[0].slug
    assert device.slug != devices("cpu", 1)[0].slug
    assert device.digest != devices("cpu", 1)[0].digest
    assert device.slug.replace("-", "").isalnum()
    assert 1 <= usable_cores() <= int(subprocess.check_output(["nproc", "--all"]))
    assert last_cache_bytes() >= 1 << 18
    code = "import json; from aot_tune.bench.devices.cpu import cpu_identity; print(json.dumps(cpu_identity()))"
    assert json.loads(subprocess.check_output([sys.executable, "-c", code])) == cpu_identity()  # in another process


def test_the_floor_is_below_what_is_possible_and_grows_with_work() -> None:
    flags = {"threads": 2, "flags": "avx avx2 avx512f fma"}
    device = Device(family="cpu", name="", slug="", identity=flags)
    floor = FAMILY.floor_ns(device, 2 * 1024**3, 0)
    assert 2 * 1024**3 / floor == pytest.approx(2 * 6 * 64)  # GFLOP/s of two cores at 6 GHz with two FMA of 16 lanes
    assert FAMILY.floor_ns(device, 0, 1 << 30) > 0
    slower = Device(family="cpu", name="", slug="", identity={**flags, "max_khz": 3_000_000})
    assert FAMILY.floor_ns(slower, 2 * 1024**3, 0) == pytest.approx(2 * floor)
    narrow = Device(family="cpu", name="", slug="", identity={"threads": 1, "flags": "sse2"})
    assert FAMILY.floor_ns(narrow, 2 * 1024**3, 0) == pytest.approx(8 * floor)


def test_an_unknown_family_is_an_error() -> None:
    for name in ("none", "", "../cpu", "records", "cpu.x", "CPU"):
        with pytest.raises(WorkerError, match="there is no device family"):
            family(name)


def test_calls_that_are_undone_are_timed_one_by_one_without_what_undoes_them() -> None:
    clock, done = Clock(), list[str]()

    def run(index: int) -> int:
        clock.now += 10 * (index + 1)
        done.append(f"call {index}")
        return 0

    def undo(index: int) -> None:
        clock.now += 1_000_000
        done.append(f"undo {index}")

    restores = [partial(undo, 0), partial(undo, 1)]
    sampler = Sampler(run, [(0,), (1,)], clock, restores)
    assert sampler.sample(3) == (10 + 20 + 10) / 3
    assert sampler.sample(1) == 20
    assert done == ["call 0", "undo 0", "call 1", "undo 1"] * 2
    repeater = Repeater([partial(run, 0), partial(run, 1)], clock, restores)
    assert repeater.sample(4) == 15
    with pytest.raises(LaunchError, match=r"^4$"):
        Sampler(lambda: 4, [()], clock, [lambda: None]).sample(2)
