"""This CPU as a device: its identity, and the floor of what calls may take."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from aot_tune.bench.devices.cpu import FAMILY, LoadMonitor, busy_seconds, cpu_identity, last_cache_bytes
from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Device, DeviceState, Seen
from aot_tune.support.limits import usable_cores


def test_what_other_processes_take_of_the_cores_is_told() -> None:
    times, busy = iter((0.0, 0.2, 1.0, 3.0)), iter((100.0, 101.5, 106.0))
    own = iter((20.0, 5.0, 20.5, 5.5, 20.5, 9.0))
    monitor = LoadMonitor(lambda: next(busy), lambda _pid: next(own), lambda: next(times))
    told = [monitor.read([1]) for _ in range(4)]
    assert told == [None, None, DeviceState(load=0.5), DeviceState(load=0.5)]
    assert Seen.of(FAMILY.devices(1)[0], [s for s in told if s is not None]) == Seen(load=0.5)


def test_the_load_of_this_machine_is_known() -> None:
    assert busy_seconds() > 0
    times = iter((0.0, 1.0))
    monitor = LoadMonitor(now=lambda: next(times))
    assert monitor.read([]) is None
    assert monitor.read([]) is not None


def test_the_identity_of_this_cpu() -> None:
    device = family("cpu").devices(2)[0]
    assert device.family == "cpu"
    assert set(device.identity) >= {"model_name", "family", "model", "stepping", "flags", "caches", "cores", "threads"}
    assert device.identity["threads"] == 2
    assert device.slug == family("cpu").devices(2)[0].slug
    assert device.slug != family("cpu").devices(1)[0].slug
    assert device.digest != family("cpu").devices(1)[0].digest
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
