"""A bench of the CUDA family on the host's tensors, with real workers, for the tests of it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from compiled import Bed
from places import ROOT

from aot_tune.bench.devices.cuda import device_of
from aot_tune.bench.devices.family import policy_for
from aot_tune.bench.host.bench import Bench
from aot_tune.bench.protocol.measurement_records import Deadlines, Policy

OPERATOR = """
from aot_tune.spec import Baseline, Kernel, Operator, Tensor, dims, problem

R, D = dims("R D")


def reference(xp, call):
    if call.x.shape[0] == 17:
        raise xp.OutOfMemoryError("Tried to allocate 64.00 GiB.")
    y = 2 * call.x + 1
    return {"y": y if call.bias is None else y + call.bias}


def torch_axpb(torch, call):
    return lambda: torch.add(torch.mul(call.x, 2, out=call.y), 1, out=call.y)


operator = Operator(
    name="axpb",
    dims=("R", "D"),
    tensors=(Tensor("x", (R, D)), Tensor("bias", (D,), optional=True), Tensor("y", (R, D), output=True)),
    reference=reference,
    flops=2 * R * D,
    workload=(problem(R=16, D=256),),
    baselines=(Baseline("torch", "torch", torch_axpb), Baseline("numpy", "numpy", torch_axpb)),
    kernels=(Kernel("generic", "axpb/generic.cpp.j2", generic=True),),
)
"""
H200 = device_of(
    name="NVIDIA H200",
    uuid="GPU-0",
    capability=90,
    sm_count=132,
    l2_bytes=60 << 20,
    memory_bytes=150_754_820_096,
    driver="580.159.04",
)
CONTRACT = ROOT / "tests" / "faults" / "candidates"


@contextmanager
def make_bed(root: Path) -> Iterator[Bed]:
    def objects(name: str) -> Path:
        path = root / f"{name}.so"
        if not path.exists():
            command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", path, CONTRACT / f"{name}.cpp"]
            subprocess.run(command, check=True, timeout=60)
        return path

    folder = root / "templates" / "axpb"
    folder.mkdir(parents=True)
    (folder / "operator.py").write_text(OPERATOR)
    policy = policy_for("cuda", Policy(race_ns=20_000_000, screen_ns=1_000_000))
    policy = msgspec.structs.replace(policy, deadlines=Deadlines(handshake=120))
    device = device_of(
        name="Host", uuid="host", capability=90, sm_count=1, l2_bytes=1 << 16, memory_bytes=1 << 30, driver="1"
    )
    lines: list[str] = []
    with Bench(device, policy, scratch=root / "scratch", threads=1, log=lines.append) as bench:
        yield Bed(bench, folder, objects, lines)
