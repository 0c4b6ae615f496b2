"""GPUs as devices."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from cuda_bench import H200
from places import ROOT

import aot_tune.bench.devices.cuda as cuda
from aot_tune.bench.devices.cuda import FAMILY, device_of
from aot_tune.bench.devices.family import devices, runs_on


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
    monkeypatch.setattr(cuda, "query_driver", query(*rows))
    assert [d.unit for d in devices("cuda", 1)] == ["GPU-0", "GPU-1", "GPU-2"]
    monkeypatch.setattr(
        cuda, "query_driver", query(error="CUDA_VISIBLE_DEVICES='' leaves no GPU visible", fix="unset it")
    )
    assert devices("cuda", 1) == []


def test_the_floor_is_below_what_an_h200_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "peak_rates", lambda _unit: (1.98e9, 1.25 * 4917.0))
    product = 2 * 4096**3
    assert FAMILY.floor_ns(H200, product, 0, "bf16") < 175_000 / 2
    assert FAMILY.floor_ns(H200, product, 0, "f32") < product / 67e3
    assert FAMILY.floor_ns(H200, product, 0, "f32") > FAMILY.floor_ns(H200, product, 0, "tf32")
    copied = 8192 * 14336 * 6
    assert 0.5 < FAMILY.floor_ns(H200, 0, copied, "bf16") / 166_000 < 0.9
    assert FAMILY.floor_ns(H200, 0, 32 << 20, "bf16") < 2000


def test_what_computes_on_the_host_is_no_baseline_of_a_gpu() -> None:
    assert not runs_on("cuda", "numpy")
    assert runs_on("cuda", "torch.nn.functional")
    assert runs_on("cpu", "numpy")


def test_the_bench_side_needs_neither_torch_nor_the_driver() -> None:
    code = (
        "import sys, aot_tune.bench.devices.cuda; from aot_tune.bench.devices.family import policy_for; "
        "from aot_tune.bench.protocol.measurement_records import Policy; policy_for('cuda', Policy());"
        "assert not {'torch', 'numpy'} & set(sys.modules); assert 'libcuda' not in open('/proc/self/maps').read()"
    )
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, check=True, timeout=60)
