"""What the probes tell on a real GPU, beside what NVML says of it."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

import pytest

from aot_tune.bench.devices.family import devices

pytestmark = pytest.mark.alone

PROBES = """
import json, subprocess, sys, time
import torch
from aot_tune.bench.protocol.measurement_records import Policy; from aot_tune.bench.devices.family import policy_for
from aot_tune.bench.worker.cuda.engine import GpuEngine
from aot_tune.bench.devices.nvml import open_gpu
from aot_tune.bench.worker.cuda.probes import Probes
from aot_tune.bench.worker.cuda.timing import measure_empty

OTHER = "import torch; x = torch.rand(2048, 2048, device='cuda'); x @ x; torch.cuda.synchronize()"
unit, l2 = sys.argv[1], int(sys.argv[2])
engine, gpu = GpuEngine(), open_gpu(unit)
policy = policy_for("cuda", Policy())
probes = Probes(engine, policy)
found = {"clocks": [], "nvml": [], "seconds": [], "empty": [], "many": []}
with engine.guard():
    end = time.monotonic() + 0.3
    while time.monotonic() < end:  # so that the clock is that of a GPU at work
        torch.cuda._sleep(1_000_000)
        engine.check()
    for _ in range(21):
        begin = time.monotonic()
        found["clocks"].append(probes.clock_mhz())
        found["seconds"].append(time.monotonic() - begin)
        found["nvml"].append(gpu.sm_mhz() if gpu else None)
    for _ in range(3):
        subprocess.run([sys.executable, "-c", OTHER], check=True)
        engine.use_streams(policy.on_gpu.streams)
        found["empty"].append(measure_empty(engine, policy.on_gpu))
        for stream in [torch.cuda.Stream() for _ in range(24)]:  # those of a program that uses more of them
            with torch.cuda.stream(stream):
                for _ in range(16):
                    torch.ones(4096, device=engine.device).cumsum(0)
        torch.cuda.synchronize()
        found["many"].append(measure_empty(engine, policy.on_gpu))
    copies = [torch.rand(1 << 20, device=engine.device).view(torch.uint8) for _ in range(-(-l2 // (1 << 20)) + 1)]
    found["remark"] = probes.rotation(copies, l2)
    found["copies"] = engine.read_rate(copies)
    found["memory"], found["peak"] = probes._memory.get(4 << 20, 0.0), gpu.memory_rate() if gpu else 0.0
    found["one"] = engine.read_rate(copies[:1] * 64)
found["said"] = probes.said
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def told(import_path: str) -> Any:
    device = devices("cuda", 1)[0]
    environment = {**os.environ, "PYTHONPATH": import_path, "CUDA_VISIBLE_DEVICES": device.unit}
    argv = [sys.executable, "-c", PROBES, device.unit, str(device.identity["l2_bytes"])]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print("probes:", {k: v for k, v in found.items() if k not in ("clocks", "nvml", "seconds")})
    print(f"probes: clocks {found['clocks']} MHz, NVML {found['nvml']}, ms {[1e3 * s for s in found['seconds']]}")
    return found


def test_no_probe_fails(told: Any) -> None:
    assert told["said"] == ""


def test_the_clock_is_what_nvml_tells(told: Any) -> None:
    if not all(told["nvml"]):
        pytest.skip("there is no NVML to compare with")
    assert statistics.median(told["clocks"]) == pytest.approx(statistics.median(told["nvml"]), rel=0.05)


def test_memory_is_read_no_faster_than_it_can_be_and_a_rotation_of_four_caches_is_cold(told: Any) -> None:
    assert told["remark"] == ""
    assert told["copies"] > 0
    if told["peak"]:
        assert 0.1 * told["peak"] < told["memory"] < 1.1 * told["peak"]


def test_after_a_workers_launches_more_of_them_change_no_time(told: Any) -> None:
    """Though another process used the device before."""
    assert told["empty"] == pytest.approx(told["many"], rel=0.1)
