"""Times on a clock that the tests turn: grouping, early stop, statistics, and the floor of a device."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from aot_tune.bench.devices.cpu import FAMILY, cpu_identity, last_cache_bytes, usable_cores
from aot_tune.bench.devices.family import devices, family
from aot_tune.bench.protocol.measurement_records import Device, Policy, group_size
from aot_tune.bench.worker.cpu.timing import (
    Repeater,
    Sampler,
    beside_empty,
    measure_empty,
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


def test_functions_of_a_baseline_rotate() -> None:
    clock, called = Clock(), []

    def make(name: str, cost: int) -> object:
        def run() -> str:
            clock.now += cost
            called.append(name)
            return name

        return run

    assert Repeater([make("a", 10), make("b", 30)], clock).sample(3) == pytest.approx(50 / 3)
    assert called == ["a", "b", "a"]


@given(st.floats(1, 1e12), st.integers(1000, 1_000_000))
def test_groups_make_samples_long_enough(call: float, sample: int) -> None:
    calls = group_size(call, sample)
    assert 1 <= calls <= 4096
    assert calls in (1, 4096) or calls * call == pytest.approx(sample, rel=0.5)


def test_a_screen_of_a_slow_candidate_stops_after_two_samples() -> None:
    policy = Policy()
    taken: list[int] = []

    def sample(calls: int) -> float:
        taken.append(calls)
        return 1e6

    assert screen(sample, policy, best_ns=0.6e6) == [1e6, 1e6]
    assert taken == [1, 1, 1]
    assert len(screen(sample, policy, best_ns=0.7e6)) == 20
    assert len(screen(sample, policy, best_ns=None)) == 20


def test_a_screen_goes_on_when_only_one_of_two_samples_is_slow() -> None:
    costs = iter([2e6, 2e6, 1e6, *[1e6] * 100])
    assert len(screen(lambda _calls: next(costs), Policy(), best_ns=1e6)) > 2


def test_a_screen_of_short_calls_groups_them_and_warms_up() -> None:
    taken: list[int] = []

    def sample(calls: int) -> float:
        taken.append(calls)
        return 100.0 if len(taken) > 2 else 5000.0

    samples = screen(sample, Policy(sample_ns=50_000, screen_samples=7), best_ns=None)
    assert samples == [100.0] * 7
    assert taken[:3] == [1, 8, 10]
    assert set(taken[3:]) == {500}


@pytest.mark.parametrize("disturbed", [{0}, {0, 1}, {1}, {2}, {3}])
def test_a_disturbance_while_a_screen_warms_up_does_not_make_its_samples_short(disturbed: set[int]) -> None:
    taken: list[int] = []

    def sample(calls: int) -> float:
        taken.append(calls)
        return 1000.0 + (5e6 / calls if len(taken) - 1 in disturbed else 0.0)

    screen(sample, Policy(sample_ns=50_000), best_ns=None)
    wanted = 1 if disturbed == {0, 1} else 50  # what seems long twice is taken for it
    assert set(taken[5:]) == {wanted}


def test_a_screen_ends_with_its_time() -> None:
    policy = Policy(screen_ns=10_000_000)
    assert len(screen(lambda _c: 4e6, policy, None)) == 3
    assert len(screen(lambda _c: 50e6, policy, None)) == 2


@pytest.mark.parametrize(
    ("counts", "samples", "want"),
    [
        ([0, 0], [5.0], 5.0),
        ([0, 1, 1, 1], [9.0, 5.0], 5.0),
        ([0, 1, 1, 2], [9.0, 8.0, 7.0], 7.0),
        ([0, 3], [5e6], 5e6),
    ],
)
def test_a_sample_that_was_preempted_is_taken_again(counts: list[int], samples: list[float], want: float) -> None:
    count, sample = iter(counts), iter(samples)
    assert undisturbed(lambda _calls: next(sample), 1, lambda: next(count)) == want
    assert list(sample) == []
    assert list(count) == []


def test_an_empty_call_costs_less_than_a_microsecond_or_two() -> None:
    assert 0 < measure_empty(lambda *_: 0, (1, 2, 3)) < 20_000


def test_a_screen_compares_without_the_cost_of_a_call() -> None:
    samples = screen(lambda _calls: 700.0, Policy(), best_ns=150.0, overhead=550.0)
    assert len(samples) > 2  # 150 ns are no more than the best
    assert len(screen(lambda _calls: 700.0, Policy(), best_ns=90.0, overhead=550.0)) == 2


@pytest.mark.parametrize(
    ("speeds", "want", "overhead"),
    [
        ([1, 1, 1], 100.0, 500.0),
        ([2, 2, 2], 200.0, 1000.0),  # slow throughout
        ([2, 2, 1], 700.0, 500.0),  # it recovered: too much rather than too little
        ([1, 2, 2], 700.0, 500.0),
        ([2, 1, 2, 1, 1, 1], 100.0, 500.0),  # seemingly less than nothing: taken again
    ],
)
def test_empty_calls_are_timed_when_samples_are(speeds: list[int], want: float, overhead: float) -> None:
    """An empty call costs 500 ns, another 600, and both so many times as much at each moment."""
    speed = iter(speeds)
    samples, found = beside_empty(lambda _empty: [600.0 * next(speed)], lambda: 500.0 * next(speed))
    assert (samples[0] - found, found) == (want, overhead)
    assert list(speed) == []


def test_calls_that_are_never_longer_than_empty_ones_are_not_taken_for_ever() -> None:
    taken: list[float] = []

    def take(empty: float) -> list[float]:
        taken.append(empty)
        return [40.0]

    assert beside_empty(take, lambda: 50.0) == ([40.0], 50.0)
    assert taken == [50.0] * 4


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


@pytest.mark.parametrize(
    ("flags", "math", "times"),
    [
        ("avx512f", "bf16", 1),
        ("avx512f avx512_bf16", "bf16", 2),
        ("avx512f avx512_bf16", "f16", 1),
        ("avx512f avx512_bf16", "f32", 1),
        ("amx_bf16 avx512_bf16 avx512f", "bf16", 16),
    ],
)
def test_instructions_for_a_dtype_may_do_more_than_those_for_f32(flags: str, math: str, times: int) -> None:
    known = Device(family="cpu", name="", slug="", identity={"threads": 2, "flags": flags})
    floor = FAMILY.floor_ns(known, 2 * 1024**3, 0)
    assert FAMILY.floor_ns(known, 2 * 1024**3, 0, math) == pytest.approx(floor / times)


@pytest.mark.parametrize("name", ["none", "", "../cpu", "records", "cpu.x", "CPU"])
def test_an_unknown_family_is_an_error(name: str) -> None:
    with pytest.raises(WorkerError, match="there is no device family"):
        family(name)


def test_the_bench_side_of_the_cpu_needs_no_numpy() -> None:
    code = "import sys, aot_tune.bench; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, check=True, timeout=60)


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


def test_what_a_clock_takes_is_not_in_the_time_of_a_baseline() -> None:
    now = iter(range(0, 100_000, 7))
    repeater = Repeater([lambda: None], lambda: next(now), [lambda: None])
    assert repeater.sample(5) == 0
    assert measure_empty(lambda *_: 0, (1, 2), undone=True) > 0
