"""The roofline of a call: by a GPU's data sheet, or by peaks that nothing beats; always from the record alone."""

from __future__ import annotations

import pytest
from bundled import OPERATORS

from aot_tune.bench.devices.cuda import device_of
from aot_tune.bench.devices.family import make_device
from aot_tune.bench.devices.roofline import floor_of, roofline_of
from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.spec import Operator, Problem, problem

GEMM, SOFTMAX = (OPERATORS[name] for name in ("gemm", "softmax"))


def gpu(name: str) -> Device:
    return device_of(
        name=name, uuid="GPU-0", capability=90, sm_count=132, l2_bytes=50 << 20, memory_bytes=80 << 30, driver="580"
    )


def of(device: Device, operator: Operator, one: Problem) -> tuple[float, str]:
    found = roofline_of(device, operator, one)
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
    found = roofline_of(gpu("NVIDIA H200"), GEMM, row)
    assert found is not None
    assert found.of == "NVIDIA H200's data sheet"


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
    found = roofline_of(cpu, SOFTMAX, problem(R=8, D=4096))
    assert found is not None
    assert found.of.startswith("generous peaks of A CPU: two of the widest multiply-adds a cycle")
