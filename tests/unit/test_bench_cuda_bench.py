"""The whole bench of the CUDA family, with worker processes, on the host's tensors."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from aot_tune.bench import Bench, Deadlines, DeviceState, Entry, Measurement, Policy, Prepared, policy_for
from aot_tune.bench.cuda import device_of
from aot_tune.library import load_operator
from aot_tune.spec import problem

pytest.importorskip("torch")

OPERATOR = """
from aot_tune.spec import Baseline, Kernel, Operator, Tensor, dims, problem

R, D = dims("R D")


def reference(xp, call):
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
CONTRACT = Path(__file__).resolve().parents[1] / "faults" / "candidates"


class Bed:
    def __init__(self, bench: Bench, folder: Path, objects: Callable[[str], Path]) -> None:
        self.bench, self.folder, self._objects = bench, folder, objects
        self.operator = load_operator(folder)

    def prepare(self, **dims: int) -> Prepared:
        return self.bench.prepare(self.folder, self.operator, problem(**(dims or {"R": 16, "D": 256})))

    def entry(self, name: str) -> Entry:
        path = self._objects(name)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        candidate = SimpleNamespace(id=name)
        return Entry(candidate=candidate, shared_object=path, symbol="candidate", object_digest=digest)

    def screen(self, name: str, **options: Any) -> Measurement:
        e = self.entry(name)
        return self.bench.screen(self.prepare(), e.shared_object, "candidate", e.candidate, e.object_digest, **options)


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("objects")

    def get(name: str) -> Path:
        path = folder / f"{name}.so"
        if not path.exists():
            command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", path, CONTRACT / f"{name}.cpp"]
            subprocess.run(command, check=True, timeout=60)
        return path

    return get


@pytest.fixture
def bed(tmp_path: Path, objects: Callable[[str], Path]) -> Iterator[Bed]:
    folder = tmp_path / "templates" / "axpb"
    folder.mkdir(parents=True)
    (folder / "operator.py").write_text(OPERATOR)
    policy = policy_for("cuda", Policy(race_ns=20_000_000, screen_ns=1_000_000))
    policy = msgspec.structs.replace(policy, deadlines=Deadlines(handshake=120, load=20, check=3, verify=3, bench=20))
    device = device_of(
        name="Host", uuid="host", capability=90, sm_count=1, l2_bytes=1 << 16, memory_bytes=1 << 30, driver="1"
    )
    with Bench(device, policy, scratch=tmp_path / "scratch", threads=1) as bench:
        yield Bed(bench, folder, objects)


def test_candidates_are_screened_and_stay_loaded(bed: Bed) -> None:
    measured = bed.screen("good")
    assert measured.status == "ok", measured.reason
    assert len(measured.screen) >= 2
    assert measured.bitwise is True
    assert {"load", "check", "verify", "bench"} <= set(measured.phases)
    again = bed.screen("good", best_ns=1.0)
    assert (again.status, len(again.screen)) == ("ok", 2)
    assert "load" not in again.phases
    worker = bed.bench.pool.candidates()
    assert list(worker.loaded) == [bed.entry("good").object_digest]


@pytest.mark.parametrize(
    ("name", "status", "pattern"),
    [
        ("segfault", "crashed", "SIGSEGV in R="),
        ("past_end", "wrong-result", "oob: guard zone of 'y'"),
        ("one_wrong", "wrong-result", "1 of"),
        ("refuses", "failed", "candidate_launch returned 5"),
        ("exits", "no-result", "ended with status 0"),
        ("huge_workspace", "skipped", "bytes of workspace"),
        ("later", "wrong-result", "timed calls"),
        ("hangs", "timeout", "no answer within 3 s"),
    ],
)
def test_a_fault_is_a_status_and_the_next_candidate_is_unaffected(
    bed: Bed, name: str, status: str, pattern: str
) -> None:
    assert bed.screen("good").status == "ok"
    measured = bed.screen(name, tune_checks=name != "later")
    assert measured.status == status, measured
    assert pattern in measured.reason
    assert bed.screen("good").status == "ok"


def test_a_race_pairs_candidates_and_baselines_that_compute_on_the_device(bed: Bed) -> None:
    raced = {m.candidate: m for m in bed.bench.race(bed.prepare(), [bed.entry("good"), bed.entry("one_wrong")])}
    assert set(raced) == {"good", "one_wrong", "baseline:torch"}
    assert raced["one_wrong"].status == "wrong-result"
    good, torch = raced["good"], raced["baseline:torch"]
    assert good.status == torch.status == "ok", (good.reason, torch.reason)
    assert good.final is not None
    assert torch.final is not None
    assert len(good.final) == len(torch.final) >= 7
    assert good.race == torch.race


class Monitor:
    """A device that is too slow for the first so many batches."""

    def __init__(self, slow: int) -> None:
        self.slow, self.waits, self.reads = slow, 0, 0

    def begin(self) -> None: ...

    def read(self, workers: Any) -> DeviceState:
        assert len(workers) == 3
        self.reads += 1
        return DeviceState(sm_mhz=self.reads)

    def spoiled(self, state: Any) -> str:
        self.slow -= 1
        return "slow" if self.slow >= 0 else ""

    def recover(self) -> None:
        self.waits += 1


def test_spoiled_samples_are_taken_again_but_not_for_ever(bed: Bed) -> None:
    bed.bench.monitor = monitor = Monitor(slow=1)
    measured = bed.screen("good")
    assert measured.status == "ok", measured.reason
    assert measured.screen
    assert monitor.waits == 1
    assert [s.sm_mhz for s in measured.conditions] == [3, 4]
    bed.bench.monitor = monitor = Monitor(slow=1000)
    measured = bed.screen("good")
    assert measured.screen
    assert monitor.waits == 2
    bed.bench.monitor = monitor = Monitor(slow=1000)
    raced = bed.bench.race(bed.prepare(), [bed.entry("good")])
    assert all(m.status == "ok" and m.final for m in raced)
    assert monitor.waits == 3
    assert len(raced[0].conditions) == 2
