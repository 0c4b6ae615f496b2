"""What NVML tells of GPUs, and what the monitor makes of it, with a stub of its library that a file controls."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from gpus import H200

from aot_tune.bench.devices.cuda import GpuMonitor
from aot_tune.bench.devices.nvml import Gpu, open_gpu
from aot_tune.bench.protocol.measurement_records import GpuTiming
from aot_tune.support.errors import WorkerError

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
    long long v;
    return look("orphan", &v) ? 0 : int(v);
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
int nvmlEventSetCreate(void** set) { *set = reinterpret_cast<void*>(64); return 0; }
int nvmlDeviceRegisterEvents(void*, unsigned long long kinds, void* set) { return kinds == 8 && set ? 0 : 2; }
int nvmlEventSetWait_v2(void*, unsigned long long* event, unsigned) {  // tells each number once
    static long long told = 0;
    long long v;
    if (look("xid", &v) || v == told) return 10;
    event[2] = told = v;
    return 0;
}
struct Process { unsigned pid; unsigned long long used; unsigned a, b; };
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, Process* rows) {
    unsigned n = 0;
    const int code = put("processes", &n);
    for (unsigned i = 0; i < n && i < *count; ++i) rows[i] = {1000 + i, 0, 0, 0};
    *count = code ? 7 : n;
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
    "capped": 0,
}
Change = Callable[..., None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nvml")


@pytest.fixture
def change(folder: Path) -> Change:
    def write(**values: int | None) -> None:
        known = {k: v for k, v in {**HEALTHY, **values}.items() if v is not None}
        (folder / "state").write_text("".join(f"{k} {v}\n" for k, v in known.items()))

    write()
    return write


@pytest.fixture(scope="module")
def library(folder: Path) -> str:
    source, path = folder / "nvml.cpp", folder / "libnvidia-ml-stub.so"
    source.write_text(STUB)
    state = f'-DSTATE="{folder / "state"}"'
    subprocess.run(["g++", "-shared", "-fPIC", state, "-o", path, source], check=True, timeout=60)
    return str(path)


@pytest.fixture
def gpu(library: str, change: Change) -> Gpu:
    found = open_gpu("GPU-0", library)
    assert found is not None
    return found


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


def test_no_nvml_is_said_once_and_nothing_is_watched(library: str, change: Change, tmp_path: Path) -> None:
    assert open_gpu("GPU-0", str(tmp_path / "none.so")) is None
    assert open_gpu("GPU-7", library) is None
    assert open_gpu("MIG-1", library) is not None
    change(orphan=1)
    assert open_gpu("MIG-1", library) is None
    change(init=9)
    assert open_gpu("GPU-0", library) is None
    monitor, lines = watch(None, Sleeper())
    monitor.begin()
    monitor.begin()
    assert len(lines) == 1
    assert monitor.read([1]) is None
    assert monitor.spoiled(None) == ""


def test_the_bench_waits_for_a_busy_gpu_and_measures_one_that_stays_busy_with_a_note(gpu: Gpu, change: Change) -> None:
    change(percent=80, processes=2)
    sleep = Sleeper(change, after=2.0, percent=0)
    monitor, lines = watch(gpu, sleep)
    monitor.begin()
    assert sleep.total == 2.0
    assert lines == ["NVIDIA H200 is busy, 2 other processes use it: waiting"]
    change(percent=80, processes=2)
    sleep = Sleeper()
    monitor, lines = watch(gpu, sleep)
    monitor.begin()
    assert sleep.total == 10.0
    assert lines[-1].startswith("noisy: NVIDIA H200 is still busy after 10 s, with 2 other processes")
    for own, others in (([1000, 5], 1), ([7], 1), ([7, 8, 9], 0)):  # numbered otherwise: counted
        state = watch(gpu, sleep)[0].read(own)
        assert state is not None
        assert state.others == others


def test_a_gpu_that_serves_no_second_process_is_refused_with_the_remedy(gpu: Gpu, change: Change) -> None:
    for mode, name in ((1, "exclusive"), (2, "prohibited"), (3, "exclusive")):
        change(mode=mode)
        with pytest.raises(WorkerError, match=f"is in compute mode {name}") as caught:
            watch(gpu, Sleeper())[0].begin()
        assert "nvidia-smi -i GPU-0 -c DEFAULT" in caught.value.fix


def test_errors_of_the_driver_are_told_once(gpu: Gpu, change: Change) -> None:
    monitor, _ = watch(gpu, Sleeper())
    monitor.begin()
    assert monitor.faults() == ""
    for number, said in ((31, "Xid 31"), (79, "Xid 79, a fault of the GPU")):
        change(xid=number)
        assert [monitor.faults(), monitor.faults()] == [said, ""]


USUAL = GpuTiming()
SPOILED: tuple[tuple[dict[str, int], str, GpuTiming], ...] = (
    ({"reasons": 0x40, "celsius": 92}, "thermal slowdown at 92 C", USUAL),
    ({"reasons": 0x20}, "software thermal slowdown", USUAL),
    ({"reasons": 0x8}, "hardware slowdown", USUAL),
    ({"reasons": 0x80}, "power brake", USUAL),
    ({"sm": 1188}, "a clock of 1188 MHz instead of 1980", USUAL),
    ({"sm": 1600}, "", USUAL),
    ({"sm": 1188, "reasons": 0x4}, "", USUAL),
    ({"sm": 345, "reasons": 0x1}, "", USUAL),
    ({"sm": 1188, "reasons": 0x2}, "", USUAL),
    ({"reasons": 0x40}, "", GpuTiming(dropped=0x8)),
    ({"reasons": 0x100}, "clock event reasons 0x100", GpuTiming(dropped=0x100)),
    ({"sm": 1188}, "", GpuTiming(least_clock=0.5)),
    ({"sm": 1188, "reasons": 0x4}, "a clock of", GpuTiming(kept=0)),
)


def test_samples_of_a_slowed_gpu_are_spoiled_as_the_policy_says_and_those_under_a_power_cap_are_not(
    gpu: Gpu, change: Change
) -> None:
    for values, why, rules in SPOILED:
        change(**values)
        monitor = GpuMonitor(H200, lambda _line: None, gpu, rules, Sleeper())
        found = monitor.spoiled(monitor.read([]))
        assert found.startswith(why), values
        assert bool(found) == bool(why), values
