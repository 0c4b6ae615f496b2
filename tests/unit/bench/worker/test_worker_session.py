"""A session of the CUDA family on the host's tensors: what of a device goes wrong is told."""

import faulthandler
import os
import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import in_place
import msgspec
import pytest
from gpus import H200
from in_place import Bed
from stand_ins import StandIn
from stand_ins import build as stub

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check, Policy
from aot_tune.spec import problem

torch = pytest.importorskip("torch")

from host_engine import HostEngine, mapper_of  # noqa: E402

from aot_tune.bench.worker import cuda_engine, watched_calls  # noqa: E402
from aot_tune.bench.worker.cuda_stream import Recorded, check_device  # noqa: E402
from aot_tune.bench.worker.engine import FaultError  # noqa: E402

SMALL = problem(R=13, D=37)


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    """Nothing that a worker does for CUDA C++ imports Triton: here that fails."""
    monkeypatch.setitem(sys.modules, "triton", None)
    return Bed(tmp_path, "cuda")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return partial(in_place.build, tmp_path_factory.mktemp("candidates"))


def test_times_of_calls_that_leave_nothing_in_the_graph_are_none(bed: Bed, build: Any) -> None:
    """Work on a stream of its own is right in the end; an empty graph may take longer than a small call's floor."""
    key = bed.name(SMALL)
    bed.load(build("GOOD"))
    assert bed.verify(key).status == "ok"
    record = bed.stream.record

    def empty(calls: Any, framework: bool = False) -> Recorded:
        played = record(calls, framework)
        return Recorded(played.play, 0, played.close)

    bed.stream.record = empty
    raced = bed.ask(messages.Turn(handle="one", key=key, calls=1, warm=1, fresh=True))
    timed = bed.ask(messages.Screen(handle="one", key=key))
    for reply in (raced, timed):
        assert (reply.status, reply.reason) == ("suspicious", "launches nothing on the stream that it is given")


def test_a_candidate_whose_preload_fails_is_a_failure(bed: Bed, build: Any) -> None:
    refused = bed.ask(messages.Load(handle="one", path=str(build("REFUSES")), symbol="candidate"))
    assert isinstance(refused, messages.Failure)
    assert refused.reason == "candidate_preload returned 3"


def test_what_a_candidate_declines_is_left_to_others_and_only_all_of_it_is_a_failure(bed: Bed, build: Any) -> None:
    served, declined, too = (bed.name(problem(R=r, D=37)) for r in (13, 15, 16))
    bed.load(build("DECLINES"))
    assert bed.verify(declined).status == "skipped"
    assert bed.ask(messages.SurveyOne(handle="one", key=declined, first=True)).status == "skipped"
    assert bed.ask(messages.Verify(handle="one", keys=(served, declined))).status == "ok"
    refused = bed.ask(messages.Verify(handle="one", keys=(declined, too)))
    assert refused.status == "failed"
    assert refused.reason.startswith("candidate_workspace returned -100 (it cannot serve this call")


def test_what_a_candidate_says_of_itself_is_beside_its_time(bed: Bed, build: Any) -> None:
    key = bed.name(SMALL)
    bed.load(build("DECLINES"))
    assert bed.verify(key).status == "ok"
    raced = bed.ask(messages.Turn(handle="one", key=key, calls=1, warm=1, fresh=True))
    assert (raced.status, raced.reason) == ("ok", "version 7")


def test_row_75_a_call_that_does_not_wait_for_other_kernels_is_wrong(bed: Bed, build: Any) -> None:
    """Here the kernel before it writes only when it has ended, and in a graph those after it have begun too early."""
    key, copying, record, late = bed.name(SMALL), bed.stream.copying, bed.stream.record, list[Any]()
    bed.load(build("GOOD"))
    assert bed.verify(key).status == "ok"

    def not_yet(pairs: Any, waits: bool = False) -> Any:
        copy = copying(pairs)
        return (lambda: [do() for do in (*late, copy)] and late.clear()) if waits else (lambda: late.append(copy))

    bed.stream.copying = not_yet
    told = r"^(state|out|total)\[.*: got .* \(problem 'R=13 D=37', between kernels that write its inputs\)$"
    assert re.search(told, bed.verify(key).reason)
    bed.stream.copying = copying
    bed.stream.record = lambda calls: record([calls[0], *calls[2:], calls[1]])
    assert re.search(told.replace(" \\(", " in a graph \\("), bed.verify(key).reason)
    bed.stream.record = record
    assert bed.verify(key).status == "ok"


def test_a_fault_of_the_device_is_the_last_word(bed: Bed, build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[FaultError] = []

    def check() -> None:
        if broken:
            raise broken[0]

    key = bed.name(SMALL)
    bed.load(build("SPOILS"))
    monkeypatch.setattr(bed.stream, "check", check)
    fault = FaultError("illegal memory access (700)", by_kernel=True)
    monkeypatch.setattr(bed.stream, "forget", lambda: broken.append(fault))
    assert bed.verify(key) == messages.Failure(kind="FaultError", reason=str(fault), status="crashed", last=True)


def test_a_fault_of_the_machine_is_not_the_candidates(bed: Bed, build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        raise FaultError("uncorrectable ECC error encountered (214)", by_kernel=False)

    bed.load(build("GOOD"))
    key = bed.name(SMALL)
    monkeypatch.setattr(bed.stream, "check", check)
    reply = bed.verify(key)
    assert (reply.status, reply.last) == ("failed", True)
    assert reply.reason == "in the worker: uncorrectable ECC error encountered (214)"


def test_another_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = SimpleNamespace(name="NVIDIA L4", multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: seen)
    said = "this is another device: NVIDIA L4 with 132 multiprocessors instead of NVIDIA H200"
    with pytest.raises(FaultError, match=said):
        check_device(torch.device("cuda", 0), H200)


def test_of_several_problems_the_first_is_verified_at_the_end_of_memory(bed: Bed, build: Any, tmp_path: Path) -> None:
    """On a GPU: what a kernel reads past a tensor there is no memory. Here, the driver is a stand-in."""
    driver = StandIn(stub(tmp_path, "libcuda.of_memory.so"))  # other tests load one by its usual name
    bed.stream.mapper = mapper_of(driver)
    first, second = bed.name(SMALL), bed.name(problem(R=14, D=37))
    bed.load(build("GOOD"))
    places: list[str] = []
    request = messages.Verify(handle="one", keys=(first, second), renewed=True)
    reply = bed.session.handle(request, lambda message: places.append(message.place))
    assert (reply.status, reply.reason) == ("ok", "")
    at_end = [place for place in places if place.endswith("end where memory that may be read ends")]
    assert len(at_end) == 1
    assert "R=13" in at_end[0]
    created = len(driver.log())
    assert created > 0
    bed.load(build("READS_PAST"), "past")
    assert bed.verify(second, "past").status == "ok"  # nothing is seen of it among guards
    assert len(driver.log()) == created
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        signal.alarm(20)
        torch.set_num_threads(1)  # the others stayed in the parent
        bed.session.handle(msgspec.structs.replace(request, handle="past"), lambda _message: None)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV


def test_a_variant_makes_its_calls_for_a_sanitizer(
    bed: Bed, build: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(cuda_engine, "GpuStream", HostEngine)
    device, checks = H200, (Check(problem=SMALL), Check(problem=problem(R=15, D=37)))
    variants = [
        messages.WatchedCalls(path=str(build(body)), symbol="candidate", operator_folder=str(bed.folder), checks=checks)
        for body in ("GOOD", "DECLINES")
    ]
    job = messages.WatchedJob(device=device, policy=Policy(), scratch=str(tmp_path), variants=tuple(variants))
    (tmp_path / "job.json").write_bytes(msgspec.json.encode(job))
    assert watched_calls.main([str(tmp_path / "job.json")]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines == [
        *(f"@{n} {where}" for n in range(2) for where in ("load", *(check.place for check in checks))),
        "@ done",
    ]
