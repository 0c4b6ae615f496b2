"""GPUs as devices."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from gpus import H200
from places import ROOT

import aot_tune.bench.devices.cuda as cuda
from aot_tune.bench.devices.cuda import FAMILY, device_of


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
