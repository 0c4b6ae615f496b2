"""The whole bench of the CUDA family, with worker processes, on the host's tensors."""

from __future__ import annotations

import hashlib
import math
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from aot_tune.bench import (
    Bench,
    Deadlines,
    DeviceState,
    Entry,
    Measurement,
    Policy,
    Prepared,
    messages,
    policy_for,
    verify_linked,
)
from aot_tune.bench.attempt import Remarks
from aot_tune.bench.cuda import device_of
from aot_tune.errors import AotTuneError
from aot_tune.library import load_operator
from aot_tune.spec import problem

pytest.importorskip("torch")

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
LIBRARY = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "good.cpp"
struct Execution { void *stream, *workspace; size_t size; };
#define CALL const DLTensor *x, const DLTensor *bias, const DLTensor *y
EXPORT int32_t my_axpb(CALL, const Execution* how) {
  return candidate_launch(x, bias, y, how->workspace, how->size, how->stream);
}
EXPORT int32_t my_axpb_workspace(CALL, size_t* size) { return candidate_workspace(x, bias, y, size); }
EXPORT int32_t my_axpb_explain(CALL, const Execution*, char* text, size_t size) {
  static const char* const forced = std::getenv("AOT_TUNE_FORCE");
  std::snprintf(text, size, "variant: %s\n", std::strchr(forced, ':') + 1);
  return 0;
}
EXPORT const char* my_last_error() { return ""; }
__attribute__((destructor)) static void go() { std::abort(); }
"""
"""A library that takes its process with it when it is unloaded."""
CONTRACT = Path(__file__).resolve().parents[1] / "faults" / "candidates"


class Bed:
    def __init__(self, bench: Bench, folder: Path, objects: Callable[[str], Path], lines: list[str]) -> None:
        self.bench, self.folder, self._objects, self.lines = bench, folder, objects, lines
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


@contextmanager
def make_bed(root: Path, objects: Callable[[str], Path]) -> Iterator[Bed]:
    folder = root / "templates" / "axpb"
    folder.mkdir(parents=True)
    (folder / "operator.py").write_text(OPERATOR)
    policy = policy_for("cuda", Policy(race_ns=20_000_000, screen_ns=1_000_000))
    policy = msgspec.structs.replace(policy, deadlines=Deadlines(handshake=120, load=20, check=3, verify=3, bench=20))
    device = device_of(
        name="Host", uuid="host", capability=90, sm_count=1, l2_bytes=1 << 16, memory_bytes=1 << 30, driver="1"
    )
    lines: list[str] = []
    with Bench(device, policy, scratch=root / "scratch", threads=1, log=lines.append) as bench:
        yield Bed(bench, folder, objects, lines)


@pytest.fixture
def bed(tmp_path: Path, objects: Callable[[str], Path]) -> Iterator[Bed]:
    with make_bed(tmp_path, objects) as found:
        yield found


@pytest.fixture(scope="module")
def kept_bed(tmp_path_factory: pytest.TempPathFactory, objects: Callable[[str], Path]) -> Iterator[Bed]:
    """For tests in which no worker dies."""
    with make_bed(tmp_path_factory.mktemp("bed"), objects) as found:
        yield found


@pytest.fixture(scope="module")
def worn_bed(tmp_path_factory: pytest.TempPathFactory, objects: Callable[[str], Path]) -> Iterator[Bed]:
    """For tests in which workers die: others have taken their place before the next."""
    with make_bed(tmp_path_factory.mktemp("bed"), objects) as found:
        yield found


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
    worn_bed: Bed, name: str, status: str, pattern: str
) -> None:
    assert worn_bed.screen("good").status == "ok"
    measured = worn_bed.screen(name, tune_checks=name != "later")
    assert measured.status == status, measured
    assert pattern in measured.reason
    assert worn_bed.screen("good").status == "ok"


def test_a_reference_that_takes_too_much_memory_says_what_to_do(worn_bed: Bed) -> None:
    with pytest.raises(AotTuneError, match=r"no reference for problem 'R=17 D=4'") as caught:
        worn_bed.prepare(R=17, D=4)
    assert caught.value.why == "Tried to allocate 64.00 GiB. (out of memory)"
    assert "some rows at a time, or leave the problem out of the workload" in caught.value.fix
    assert worn_bed.screen("good").status == "ok"


def test_a_race_pairs_candidates_and_baselines_that_compute_on_the_device(kept_bed: Bed) -> None:
    raced = {
        m.candidate: m
        for m in kept_bed.bench.race(kept_bed.prepare(), [kept_bed.entry("good"), kept_bed.entry("one_wrong")])
    }
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

    def capped(self, state: DeviceState) -> bool:
        return False

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


def test_what_the_device_is_like_is_not_asked_again_at_once(bed: Bed) -> None:
    bed.bench.monitor = Monitor(slow=0)
    states = [bed.screen("good").conditions for _ in range(2)]
    assert [[s.sm_mhz for s in found] for found in states] == [[1, 2], [2, 3]]
    assert bed.bench.conditions() == DeviceState(sm_mhz=4)


class Clocks:
    """Answers to turns that ask for the clock get one MHz after the other; 1980 after the last."""

    def __init__(self, bed: Bed, clocks: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds, self._clocks, self._request = 0, iter(clocks), bed.bench.pool.request
        self.last: dict[str, float] = {}
        self.samples: list[float] = []
        monkeypatch.setattr(bed.bench.pool, "request", self.request)

    def request(self, worker: Any, request: Any, seconds: float) -> Any:
        reply = self._request(worker, request, seconds)
        if isinstance(request, messages.Turn) and request.handle == "race-0" and reply.samples:
            self.samples.append(reply.samples[0])
        if isinstance(request, messages.Turn) and request.clock:
            self.rounds += 1
            return msgspec.structs.replace(reply, mhz=next(self._clocks, 1980.0))
        return reply


def test_rounds_under_a_changed_clock_are_taken_again(kept_bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed, lines = kept_bed, list[str]()
    monkeypatch.setattr(bed.bench, "log", lines.append)
    clocks = Clocks(bed, [1980.0, 1500.0, 1980.0, 1200.0], monkeypatch)
    raced = bed.bench.race(bed.prepare(), [bed.entry("good")])
    assert [m.status for m in raced] == ["ok", "ok"]
    assert all(set(m.clocks) == {1980} and m.final and len(m.clocks) == len(m.final) for m in raced)
    assert len(raced[0].clocks) == clocks.rounds - 2
    kept = [s for i, s in enumerate(clocks.samples[1:]) if i not in (1, 3)]  # after the one that sizes them
    assert list(raced[0].final or ()) == kept
    assert lines == ["axpb R=16 D=256: 2 rounds of its race were under a changed clock"]


@pytest.mark.parametrize("strangers", [0, 1])
def test_a_worker_is_told_when_another_had_its_turn(
    kept_bed: Bed, monkeypatch: pytest.MonkeyPatch, strangers: int
) -> None:
    """A process that is not of the build may use the device at any time."""
    bed, turns, monitor = kept_bed, list[messages.Turn](), Monitor(slow=0)
    monkeypatch.setattr(bed.bench, "monitor", monitor)
    monkeypatch.setattr(monitor, "read", lambda _workers: DeviceState(others=strangers))
    ask = bed.bench.pool.request

    def request(worker: Any, message: Any, seconds: float) -> Any:
        turns.extend([message] if isinstance(message, messages.Turn) else [])
        return ask(worker, message, seconds)

    monkeypatch.setattr(bed.bench.pool, "request", request)
    bed.bench.race(bed.prepare(), [bed.entry("good"), bed.entry("good")])
    sizing = len({t.handle for t in turns})  # before the device is looked at
    of_entries = [t.handle.startswith("race") for t in turns]
    wanted = [True] + [a != b for a, b in pairwise(of_entries)]
    assert [t.resumed for t in turns] == [w or (strangers > 0 and i >= sizing) for i, w in enumerate(wanted)]
    assert set(wanted[sizing:]) == {True, False}


def test_a_clock_that_never_holds_still_does_not_take_all_rounds(
    kept_bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, policy = kept_bed, kept_bed.bench.policy
    clocks = Clocks(bed, [1000.0 + 100 * (i * 7 % 20) for i in range(100)], monkeypatch)
    raced = bed.bench.race(bed.prepare(), [bed.entry("good")])
    assert clocks.rounds <= policy.race_rounds + math.ceil(policy.on_gpu.repeats * policy.race_rounds)
    assert all(m.status == "ok" and len(m.final or ()) == len(m.clocks) >= policy.race_least for m in raced)


def test_a_clock_that_the_power_cap_holds_down_is_kept(kept_bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed, monitor = kept_bed, Monitor(slow=0)
    monkeypatch.setattr(bed.bench, "monitor", monitor)
    monkeypatch.setattr(monitor, "capped", lambda state: state.sm_mhz == 5)  # which is its number: seen once
    clocks = Clocks(bed, [1980.0, 1500.0, 1700.0], monkeypatch)
    raced = bed.bench.race(bed.prepare(), [bed.entry("good")])
    assert raced[0].clocks[:4] == (1980, 1500, 1700, 1980)
    assert len(raced[0].clocks) == clocks.rounds


def test_without_a_probe_the_race_goes_on_and_that_is_said_once(kept_bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed, lines = kept_bed, list[str]()
    monkeypatch.setattr(bed.bench, "remarks", Remarks(lines.append))
    for _ in range(2):
        raced = bed.bench.race(bed.prepare(), [bed.entry("good")])
        assert all(m.status == "ok" and m.clocks and not any(m.clocks) for m in raced)
    assert lines == ["the clock of multiprocessors cannot be probed: what NVML tells of it has to do"]


class Crowded(Monitor):
    """Another process comes and goes while a race is on."""

    def read(self, workers: Any) -> DeviceState:
        self.reads += 1
        return DeviceState(others=int(self.reads == 3))


def test_a_process_beside_a_race_is_noted_in_its_measurements(kept_bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = kept_bed
    for monitor, others in ((Crowded(slow=0), 1), (Monitor(slow=0), 0)):
        monkeypatch.setattr(bed.bench, "monitor", monitor)
        assert all(m.others == others for m in bed.bench.race(bed.prepare(), [bed.entry("good")]))


def test_what_is_said_of_a_problem_is_said_of_all_its_times(kept_bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed, remarks = kept_bed, Remarks(lambda _line: None)
    prepared = bed.prepare()
    remarks.prepare(prepared, lambda _request: messages.Done(remark="not cold"))
    monkeypatch.setattr(bed.bench, "remarks", remarks)
    assert bed.screen("good").reason == "not cold"
    assert all(m.reason.endswith("not cold") for m in bed.bench.race(prepared, [bed.entry("good")]))


def test_only_the_first_worker_of_a_problem_probes_it(kept_bed: Bed) -> None:
    prepared, lines, asked = kept_bed.prepare(), list[str](), list[bool]()
    remarks = Remarks(lines.append)

    def ask(request: messages.Prepare) -> messages.Reply:
        asked.append(request.probe)
        return messages.Done(remark="not cold" if request.probe else "", log="no probe")

    for _ in range(3):
        remarks.prepare(prepared, ask)
    assert asked == [True, False, False]
    assert lines == ["axpb R=16 D=256: not cold", "no probe"]
    assert remarks.on(prepared, "a note") == "a note; not cold"
    failing = Remarks(lines.append)
    for _ in range(2):
        failing.prepare(prepared, lambda request: messages.Failure(kind="", reason=str(request.probe)))
    assert (len(lines), failing.on(prepared, "")) == (2, "")


def test_libraries_stay_loaded_once_a_worker_died_as_one_went(bed: Bed, tmp_path: Path) -> None:
    """Else each variant of a library would cost a worker, which takes seconds to start on a GPU."""
    library = tmp_path / "libmy.so"
    (tmp_path / "my.cpp").write_text(LIBRARY)
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-I", CONTRACT, "-o", library, tmp_path / "my.cpp"]
    subprocess.run(command, check=True, timeout=60)
    for variant in ("one", "two", "three", "four"):
        found = verify_linked(bed.bench, library, "my_axpb", f"axpb:{variant}", [bed.prepare(), bed.prepare(R=3, D=5)])
        assert found.status == "ok", found.reason
    assert bed.bench.pool.deaths == 1
    told = [line for line in bed.lines if "libraries stay loaded" in line]
    assert len(told) == 1
    assert "SIGABRT" in told[0]
