"""GPUs as devices, and what NVML tells of them, with a stub of its library that a file controls."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import aot_tune.bench.cuda as cuda
from aot_tune.bench import Device, DeviceState, GpuTiming, Policy, devices, identify, policy_for, runs_on
from aot_tune.bench.cuda import FAMILY, device_of
from aot_tune.bench.cuda.monitor import GpuMonitor
from aot_tune.bench.cuda.nvml import Gpu, open_gpu
from aot_tune.errors import WorkerError

ROOT = Path(__file__).resolve().parents[2]

STUB = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
// Each question looks its answer up in a file of lines `name value`; what is not there is not supported (3).
static int look(const char* name, long long* value) {
    FILE* file = std::fopen(STATE, "r");
    char key[64]; long long found;
    int code = 3;
    while (file && std::fscanf(file, "%63s %lld", key, &found) == 2)
        if (!std::strcmp(key, name)) { *value = found; code = 0; }
    if (file) std::fclose(file);
    return code;
}
static int put(const char* name, unsigned* to) {
    long long value;
    const int code = look(name, &value);
    if (!code) *to = unsigned(value);
    return code;
}
extern "C" {
int nvmlInit_v2() { long long v; return look("init", &v) ? 0 : int(v); }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
    *handle = reinterpret_cast<void*>(16);
    return std::strcmp(uuid, "GPU-0") && std::strcmp(uuid, "MIG-1") ? 6 : 0;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void*, void** parent) {
    *parent = reinterpret_cast<void*>(32);
    return 0;
}
int nvmlDeviceGetClockInfo(void*, unsigned kind, unsigned* to) { return put(kind == 1 ? "sm" : "memory", to); }
int nvmlDeviceGetMaxClockInfo(void*, unsigned kind, unsigned* to) {
    return put(kind == 1 ? "max_sm" : "max_memory", to);
}
int nvmlDeviceGetMemoryBusWidth(void*, unsigned* to) { return put("width", to); }
int nvmlDeviceGetTemperature(void*, unsigned, unsigned* to) { return put("celsius", to); }
int nvmlDeviceGetPowerUsage(void*, unsigned* to) { return put("milliwatts", to); }
int nvmlDeviceGetComputeMode(void*, unsigned* to) { return put("mode", to); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* to) {
    long long v; const int code = look("reasons", &v); if (!code) *to = v; return code;
}
int nvmlDeviceGetViolationStatus(void*, unsigned policy, unsigned long long* to) {
    long long v; const int code = policy == 0 ? look("capped", &v) : 3; if (!code) to[1] = v; return code;
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* to) { to[1] = 0; return put("percent", to); }
struct Process { unsigned pid; unsigned long long used; unsigned a, b; };
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, Process* rows) {
    unsigned n = 0;
    const int code = put("processes", &n);
    for (unsigned i = 0; i < n && i < *count; ++i) rows[i] = {1000 + i, 0, 0, 0};
    *count = n;
    return code;
}
}
"""

HEALTHY = {
    "sm": 1980,
    "memory": 3201,
    "max_sm": 1980,
    "max_memory": 3201,
    "width": 6144,
    "celsius": 40,
    "milliwatts": 123456,
    "reasons": 0,
    "percent": 0,
    "processes": 0,
    "mode": 0,
}
Change = Callable[..., None]


@pytest.fixture
def change(tmp_path: Path) -> Change:
    def write(**values: int | None) -> None:
        known = {k: v for k, v in {**HEALTHY, **values}.items() if v is not None}
        (tmp_path / "state").write_text("".join(f"{k} {v}\n" for k, v in known.items()))

    write()
    return write


@pytest.fixture
def library(tmp_path: Path) -> str:
    source, path = tmp_path / "nvml.cpp", tmp_path / "libnvidia-ml-stub.so"
    source.write_text(STUB)
    state = f'-DSTATE="{tmp_path / "state"}"'
    subprocess.run(["g++", "-shared", "-fPIC", state, "-o", path, source], check=True, timeout=60)
    return str(path)


@pytest.fixture
def gpu(library: str, change: Change) -> Gpu:
    found = open_gpu("GPU-0", library)
    assert found is not None
    return found


H200 = device_of(
    name="NVIDIA H200",
    uuid="GPU-0",
    capability=90,
    sm_count=132,
    l2_bytes=60 << 20,
    memory_bytes=150_754_820_096,
    driver="580.159.04",
)


class Sleeper:
    def __init__(self, change: Change | None = None, after: float = 1e9, **values: int) -> None:
        self.total, self._change, self._after, self._values = 0.0, change, after, values

    def __call__(self, seconds: float) -> None:
        self.total += seconds
        if self._change is not None and self.total >= self._after:
            self._change(**self._values)


def watch(gpu: Gpu | None, sleep: Sleeper) -> tuple[GpuMonitor, list[str]]:
    lines: list[str] = []
    return GpuMonitor(H200, lines.append, gpu, GpuTiming(), sleep), lines


def test_what_nvml_tells(gpu: Gpu) -> None:
    monitor, _ = watch(gpu, Sleeper())
    assert monitor.read([]) == DeviceState(sm_mhz=1980, memory_mhz=3201, celsius=40, watts=123.5)
    assert gpu.memory_rate() == pytest.approx(2 * 3.201 * 6144 / 8)
    assert monitor.spoiled(monitor.read([])) == ""


def test_an_nvml_that_answers_little_is_no_fault(gpu: Gpu, change: Change) -> None:
    change(**dict.fromkeys(HEALTHY))
    monitor, lines = watch(gpu, Sleeper())
    monitor.begin()
    assert monitor.read([1]) == DeviceState()
    assert monitor.spoiled(monitor.read([])) == ""
    assert lines == []


def test_no_nvml_is_said_once_and_nothing_is_watched(library: str, change: Change, tmp_path: Path) -> None:
    assert open_gpu("GPU-0", str(tmp_path / "none.so")) is None
    assert open_gpu("GPU-7", library) is None
    assert open_gpu("MIG-1", library) is not None
    change(init=9)
    assert open_gpu("GPU-0", library) is None
    monitor, lines = watch(None, Sleeper())
    monitor.begin()
    monitor.begin()
    assert len(lines) == 1
    assert monitor.read([1]) is None
    assert monitor.spoiled(None) == ""


def test_the_bench_waits_for_a_busy_gpu_and_goes_on_when_it_is_idle(gpu: Gpu, change: Change) -> None:
    change(percent=80, processes=2)
    sleep = Sleeper(change, after=2.0, percent=0)
    monitor, lines = watch(gpu, sleep)
    monitor.begin()
    assert sleep.total == 2.0
    assert lines == ["NVIDIA H200 is busy, 2 other processes use it: waiting"]


def test_a_gpu_that_stays_busy_is_measured_with_a_note(gpu: Gpu, change: Change) -> None:
    change(percent=80, processes=2)
    sleep = Sleeper()
    monitor, lines = watch(gpu, sleep)
    monitor.begin()
    assert sleep.total == 10.0
    assert lines[-1].startswith("noisy: NVIDIA H200 is still busy after 10 s, with 2 other processes")
    state = monitor.read([1000, 5])
    assert state is not None
    assert state.others == 1
    state = watch(gpu, sleep)[0].read([7])  # numbered otherwise: counted
    assert state is not None
    assert state.others == 1
    state = watch(gpu, sleep)[0].read([7, 8, 9])
    assert state is not None
    assert state.others == 0


@pytest.mark.parametrize(("mode", "name"), [(1, "exclusive"), (2, "prohibited"), (3, "exclusive")])
def test_a_gpu_that_serves_no_second_process_is_refused_with_the_remedy(
    gpu: Gpu, change: Change, mode: int, name: str
) -> None:
    change(mode=mode)
    monitor, _ = watch(gpu, Sleeper())
    with pytest.raises(WorkerError, match=f"is in compute mode {name}") as caught:
        monitor.begin()
    assert "nvidia-smi -i GPU-0 -c DEFAULT" in caught.value.fix


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"reasons": 0x40, "celsius": 92}, "thermal slowdown at 92 C"),
        ({"reasons": 0x20}, "software thermal slowdown"),
        ({"reasons": 0x8}, "hardware slowdown"),
        ({"reasons": 0x80}, "power brake"),
        ({"sm": 1188}, "a clock of 1188 MHz, 1980 are expected"),
        ({"sm": 1600}, ""),
        ({"sm": 1188, "reasons": 0x4}, ""),
        ({"sm": 345, "reasons": 0x1}, ""),
        ({"sm": 1188, "reasons": 0x2}, ""),
    ],
)
def test_samples_of_a_slowed_gpu_are_spoiled_and_those_under_a_power_cap_are_not(
    gpu: Gpu, change: Change, values: dict[str, int], why: str
) -> None:
    monitor, _ = watch(gpu, Sleeper())
    change(**values)
    found = monitor.spoiled(monitor.read([]))
    assert found.startswith(why)
    assert bool(found) == bool(why)


@pytest.mark.parametrize(
    ("rules", "values", "spoiled"),
    [
        (GpuTiming(dropped=0x8), {"reasons": 0x40}, False),
        (GpuTiming(dropped=0x100), {"reasons": 0x100}, True),
        (GpuTiming(least_clock=0.5), {"sm": 1188}, False),
        (GpuTiming(kept=0), {"sm": 1188, "reasons": 0x4}, True),
    ],
)
def test_the_policy_says_what_spoils_samples(
    gpu: Gpu, change: Change, rules: GpuTiming, values: dict[str, int], spoiled: bool
) -> None:
    monitor = GpuMonitor(H200, lambda _line: None, gpu, rules, Sleeper())
    change(**values)
    assert bool(monitor.spoiled(monitor.read([]))) == spoiled


def test_the_power_cap_is_told(gpu: Gpu, change: Change) -> None:
    monitor, _ = watch(gpu, Sleeper())
    for reasons, capped in ((0, False), (0x4, True), (0x44, True), (0x40, False)):
        change(reasons=reasons)
        state = monitor.read([])
        assert state is not None
        assert monitor.capped(state) == capped


def test_a_power_cap_that_ended_before_the_reading_is_told(gpu: Gpu, change: Change) -> None:
    change(capped=5000)
    monitor, lines = watch(gpu, Sleeper())
    seen = []
    for capped, sm, reasons in ((5000, 1200, 0), (6000, 1200, 0), (6000, 1200, 0), (9000, 1200, 0x40), (None, 1200, 0)):
        change(capped=capped, sm=sm, reasons=reasons)
        state = monitor.read([])
        assert state is not None
        seen.append((monitor.capped(state), bool(monitor.spoiled(state))))
    assert seen == [(False, True), (True, False), (False, True), (True, True), (False, True)]
    assert not lines  # nothing was waited for


def test_a_pause_says_why(gpu: Gpu, change: Change) -> None:
    monitor, lines = watch(gpu, Sleeper())
    change(sm=1000)
    assert monitor.spoiled(monitor.read([]))
    monitor.recover()
    (line,) = lines
    assert line == (
        "NVIDIA H200: a clock of 1000 MHz, 1980 are expected: what was just timed is timed again in 5 s "
        "(1 of at most 12 times)"
    )


def test_processes_that_come_later_are_noted_and_said_once(
    gpu: Gpu, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aot_tune.bench.cuda.monitor._COUNT_SECONDS", 0.0)
    monitor, lines = watch(gpu, Sleeper())
    monitor.begin()
    counts = []
    for processes in (1, 2, 4, 3):
        change(processes=processes)
        state = monitor.read([1000, 1001])
        assert state is not None
        counts.append(state.others)
    assert counts == [0, 0, 2, 1]
    assert lines == ["noisy: other processes use NVIDIA H200 while it is measured on; it is noted"]


def test_a_clock_that_stays_low_is_what_is_expected_from_then_on(gpu: Gpu, change: Change) -> None:
    sleep = Sleeper()
    monitor, lines = watch(gpu, sleep)
    change(sm=1000)
    answers = []
    for _ in range(4):
        answers.append(bool(monitor.spoiled(monitor.read([]))))
        if answers[-1]:
            monitor.recover()
    assert answers == [True, True, True, False]
    assert sleep.total == 15.0
    assert "noisy" in lines[-1]
    assert monitor.spoiled(monitor.read([])) == ""
    change(sm=700)
    assert monitor.spoiled(monitor.read([])) != ""


def test_a_gpu_that_stays_hot_does_not_stop_the_build(gpu: Gpu, change: Change) -> None:
    sleep = Sleeper()
    monitor, _ = watch(gpu, sleep)
    change(reasons=0x40)
    for _ in range(100):
        if monitor.spoiled(monitor.read([])):
            monitor.recover()
    assert sleep.total == 60.0


def test_equal_gpus_share_measurements_and_differ_in_their_unit() -> None:
    other = msgspec.structs.replace(H200, unit="GPU-1")
    assert H200.digest == other.digest
    assert H200.slug.startswith("cuda-nvidia-h200-132sm-")
    assert len(H200.slug.rpartition("-")[2]) == 8
    assert H200.identity["memory_gib"] == 140
    assert "GPU-0" not in str(H200.identity)
    newer = device_of(
        name="NVIDIA H200", uuid="", capability=90, sm_count=132, l2_bytes=60 << 20, memory_bytes=1 << 37, driver="581"
    )
    assert newer.digest != H200.digest
    assert b"unit" not in msgspec.json.encode(newer)


@pytest.mark.parametrize("unit", ["GPU-1f2e", "MIG-44", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"])
def test_a_worker_gets_the_name_of_its_gpu_as_it_is(unit: str, tmp_path: Path) -> None:
    device = msgspec.structs.replace(H200, unit=unit)
    environment = FAMILY.environment(device, 16, "candidate", tmp_path)
    assert environment["CUDA_VISIBLE_DEVICES"] == unit
    assert environment["CUDA_MODULE_LOADING"] == "LAZY"
    assert environment["CUDA_CACHE_PATH"].startswith(str(tmp_path))
    assert Path("/proc/self/task") in FAMILY.writable()
    assert FAMILY.seen(device, 1) == H200.identity


def query(*rows: Any, **fields: Any) -> Callable[[], Any]:
    return lambda: SimpleNamespace(devices=rows, **{"driver": 13000, "driver_text": "580", "error": "", **fields})


def test_every_visible_gpu_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        SimpleNamespace(
            name="G", uuid=f"GPU-{i}", capability=90, sm_count=1, l2_bytes=1, memory_bytes=1, compute_mode="default"
        )
        for i in range(3)
    ]
    monkeypatch.setattr(cuda, "_query", query(*rows))
    assert [d.unit for d in devices("cuda", 1)] == ["GPU-0", "GPU-1", "GPU-2"]
    assert identify("cuda", 1).unit == "GPU-0"
    monkeypatch.setattr(cuda, "_query", query(error="CUDA_VISIBLE_DEVICES='' leaves no GPU visible", fix="unset it"))
    assert devices("cuda", 1) == []
    with pytest.raises(WorkerError, match="there is no GPU to measure on: CUDA_VISIBLE_DEVICES=''"):
        identify("cuda", 1)


def test_the_floor_is_below_what_an_h200_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_peaks", lambda _unit: (1.98e9, 1.25 * 4917.0))
    product = 2 * 4096**3
    assert FAMILY.floor_ns(H200, product, 0, "bf16") < 175_000 / 2
    assert FAMILY.floor_ns(H200, product, 0, "f32") < product / 67e3
    assert FAMILY.floor_ns(H200, product, 0, "f32") > FAMILY.floor_ns(H200, product, 0, "tf32")
    copied = 8192 * 14336 * 6
    assert 0.5 < FAMILY.floor_ns(H200, 0, copied, "bf16") / 166_000 < 0.9
    assert FAMILY.floor_ns(H200, 0, 32 << 20, "bf16") < 2000


def test_the_cpu_is_measured_as_before() -> None:
    base = Policy()
    assert policy_for("cpu", base) is base
    other = policy_for("cuda", base)
    assert other.digest != base.digest
    assert (other.cold_factor, other.seed) == (4.0, base.seed)
    assert policy_for("cpu", base).gpu is msgspec.UNSET
    assert isinstance(other.gpu, GpuTiming)
    assert base.digest == "f7f882a7c5a98204ef7a692976293e4202171a7509c7c2877338d76fe68816bc"


def test_what_computes_on_the_host_is_no_baseline_of_a_gpu() -> None:
    assert not runs_on("cuda", "numpy")
    assert runs_on("cuda", "torch.nn.functional")
    assert runs_on("cpu", "numpy")


def test_the_bench_side_needs_neither_torch_nor_the_driver() -> None:
    code = (
        "import sys, aot_tune.bench.cuda; from aot_tune.bench import policy_for, Policy; policy_for('cuda', Policy());"
        "assert not {'torch', 'numpy'} & set(sys.modules); assert 'libcuda' not in open('/proc/self/maps').read()"
    )
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, check=True, timeout=60)


def test_records_of_devices_without_a_unit_are_as_they_were() -> None:
    device = Device(family="cpu", name="n", slug="s", identity={"a": 1})
    assert msgspec.json.encode(device) == b'{"family":"cpu","name":"n","slug":"s","identity":{"a":1}}'
