"""CPUs and GPUs as devices: their identity, the floor of what calls may take, and the roofline."""

import json
import subprocess
import sys

import msgspec
import pytest
from bundled import OPERATORS
from gpus import H200
from places import ROOT

import aot_tune.bench.devices.cuda as cuda
from aot_tune.bench.devices.cpu import FAMILY as CPU
from aot_tune.bench.devices.cpu import LoadMonitor, busy_seconds, cpu_identity, last_cache_bytes
from aot_tune.bench.devices.cuda import FAMILY, device_of
from aot_tune.bench.devices.family import family, make_device
from aot_tune.bench.devices.roofline import Peaks, TimedCall, floor_of
from aot_tune.bench.protocol.measurement_records import Device, DeviceState, Seen
from aot_tune.spec import Operator, Problem, problem
from aot_tune.support.limits import usable_cores


def test_what_other_processes_take_of_the_cores_is_told() -> None:
    times, busy = iter((0.0, 0.2, 1.0, 3.0)), iter((100.0, 101.5, 106.0))
    own = iter((20.0, 5.0, 20.5, 5.5, 20.5, 9.0))
    monitor = LoadMonitor(lambda: next(busy), lambda _pid: next(own), lambda: next(times))
    told = [monitor.read([1]) for _ in range(4)]
    assert told == [None, None, DeviceState(load=0.5), DeviceState(load=0.5)]
    assert Seen.of(CPU.devices(1)[0], [s for s in told if s is not None]) == Seen(load=0.5)


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
    floor = CPU.floor_ns(device, 2 * 1024**3, 0)
    assert 2 * 1024**3 / floor == pytest.approx(2 * 6 * 64)  # GFLOP/s of two cores at 6 GHz with two FMA of 16 lanes
    assert CPU.floor_ns(device, 0, 1 << 30) > 0
    slower = Device(family="cpu", name="", slug="", identity={**flags, "max_khz": 3_000_000})
    assert CPU.floor_ns(slower, 2 * 1024**3, 0) == pytest.approx(2 * floor)
    narrow = Device(family="cpu", name="", slug="", identity={"threads": 1, "flags": "sse2"})
    assert CPU.floor_ns(narrow, 2 * 1024**3, 0) == pytest.approx(8 * floor)


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


def test_the_whole_version_of_the_driver_is_known_but_its_branch_alone_counts() -> None:
    named = {"name": "NVIDIA H200", "uuid": "", "capability": 90, "sm_count": 132}
    one, two = (
        device_of(**named, l2_bytes=60 << 20, memory_bytes=1 << 37, driver=driver)
        for driver in ("580.65.06", "580.82.07")
    )
    assert (one.driver, two.driver) == ("580.65.06", "580.82.07")
    assert one.identity["driver"] == "580"
    assert one.digest == two.digest


def test_the_floor_is_below_what_an_h200_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "peak_rates", lambda _unit: (1.98e9, 1.25 * 4917.0))
    product = 2 * 4096**3
    assert FAMILY.floor_ns(H200, product, 0, "bf16") < 175_000 / 2
    assert FAMILY.floor_ns(H200, product, 0, "f32") < product / 67e3
    assert FAMILY.floor_ns(H200, product, 0, "f32") > FAMILY.floor_ns(H200, product, 0, "tf32")
    copied = 8192 * 14336 * 6
    assert 0.5 < FAMILY.floor_ns(H200, 0, copied, "bf16") / 166_000 < 0.9
    assert FAMILY.floor_ns(H200, 0, 32 << 20, "bf16") < 2000


def test_the_bench_side_needs_neither_torch_nor_the_driver() -> None:
    code = (
        "import sys, aot_tune.bench.devices.cuda; from aot_tune.bench.devices.family import family; "
        "from aot_tune.bench.protocol.measurement_records import Policy; family('cuda').policy(Policy());"
        "assert not {'torch', 'numpy'} & set(sys.modules); assert 'libcuda' not in open('/proc/self/maps').read()"
    )
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, check=True, timeout=60)


GEMM, SOFTMAX = (OPERATORS[name] for name in ("gemm", "softmax"))


def gpu(name: str) -> Device:
    return device_of(
        name=name, uuid="GPU-0", capability=90, sm_count=132, l2_bytes=50 << 20, memory_bytes=80 << 30, driver="580"
    )


def of(device: Device, operator: Operator, one: Problem) -> tuple[float, str]:
    found = Peaks({device.digest: device}).roofline(device.digest, operator, one)
    assert found is not None
    return found.ns, found.bound


def test_known_gpus_are_judged_by_their_data_sheets() -> None:
    large = problem(M=4096, N=4096, K=4096, dtypes={"T": "bf16"})
    ns, bound = of(gpu("NVIDIA H200"), GEMM, large)
    assert bound == "compute"
    assert ns == pytest.approx(2 * 4096**3 / 989.4e3, rel=0.01)
    row = problem(M=1, N=4096, K=4096, dtypes={"T": "bf16"})
    ns, bound = of(gpu("NVIDIA H200"), GEMM, row)
    assert bound == "memory"
    assert ns == pytest.approx(2 * (4096**2 + 2 * 4096) / 4800, rel=0.01)
    assert of(gpu("NVIDIA H100 80GB HBM3"), GEMM, row)[0] == pytest.approx(ns * 4800 / 3352)


def test_what_f32_may_be_multiplied_in_decides() -> None:
    large = problem(M=4096, N=4096, K=4096)
    exact, rounded = (problem(M=4096, N=4096, K=4096, attributes={"math": m}) for m in ("ieee", "tf32"))
    assert of(gpu("NVIDIA H200"), GEMM, large)[0] == pytest.approx(of(gpu("NVIDIA H200"), GEMM, exact)[0])
    assert of(gpu("NVIDIA H200"), GEMM, exact)[0] > 7 * of(gpu("NVIDIA H200"), GEMM, rounded)[0]


def test_other_devices_are_judged_by_peaks_that_nothing_beats() -> None:
    identity: dict[str, str | int] = {"flags": "avx2 fma avx512f", "threads": 4, "max_khz": 3_000_000}
    cpu = make_device("cpu", "A CPU", "4t", identity)
    for operator, one in ((GEMM, problem(M=256, N=256, K=256)), (SOFTMAX, problem(R=8, D=4096))):
        assert of(cpu, operator, one) == (pytest.approx(floor_of(cpu, operator, one)), "")


def test_bytes_take_as_long_as_in_the_fastest_calls_that_moved_them() -> None:
    """From memory, also what is cold or does not fit in the last cache, and from caches. Multiplying tells nothing."""
    cpu = make_device("cpu", "A CPU", "4t", {"flags": "avx2 fma", "threads": 4, "caches": "L1d=32K L3=32768K L1i=99M"})
    large, small, between = (problem(R=r, D=4096) for r in (8192, 64, 1536))
    calls = [TimedCall(cpu.digest, SOFTMAX, one, ns) for one, ns in ((large, 6e6), (large, 5.4e6), (small, 2e4))]
    product = problem(M=512, N=512, K=512)
    peaks = Peaks(
        {cpu.digest: cpu}, (*calls, TimedCall(cpu.digest, GEMM, product, 1.0), TimedCall("", GEMM, product, 1))
    )
    memory, caches = SOFTMAX.compulsory_bytes(large) / 5.4e6, SOFTMAX.compulsory_bytes(small) / 2e4
    known = {one.id: peaks.roofline(cpu.digest, SOFTMAX, one) for one in (large, small, between)}
    assert [(round(found.ns), found.bound) for found in known.values() if found is not None] == [
        (5_400_000, "memory"),
        (20_000, "memory"),
        (round((SOFTMAX.compulsory_bytes(between) - (32 << 20)) / memory + (32 << 20) / caches), "memory"),
    ]
    row = problem(M=1, N=1024, K=1024)
    found = peaks.roofline(cpu.digest, GEMM, row)
    assert found is not None
    assert found.ns == pytest.approx(4 * 1024**2 / memory + 4 * 2 * 1024 / caches)
    assert found.of.endswith(
        f"{memory:.3g} GB/s from memory, {caches:.3g} GB/s from caches, as in the fastest calls here"
    )
    assert peaks.roofline("", GEMM, row) is None
