"""A session of the CUDA family on the host's tensors: what goes wrong is told, and the next candidate is unaffected."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.spec import problem

torch = pytest.importorskip("torch")

import cuda_session  # noqa: E402
from cuda_session import FAULTS, GOOD, REFUSES, ROUNDED, UNSTEADY, WRONG, WRONG_ONES, Bed  # noqa: E402

from aot_tune.bench.worker.cuda.connection import check_device  # noqa: E402
from aot_tune.bench.worker.cuda.engine import FaultError, Recorded  # noqa: E402
from aot_tune.bench.worker.cuda.state import ProblemState  # noqa: E402


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    return partial(cuda_session.build, tmp_path_factory.mktemp("candidates"))


SMALL = problem(R=13, D=37)


LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"present": ["bias"]},
    {"alignment": {"x": 2, "w": 2, "y": 2}},
    {"strides": {"x": (-37, 1), "w": (0,)}},
    {"strides": {"y": (80, 2)}},
    {"order": {"x": (1, 0), "y": (1, 0)}},
)


def test_layouts_and_bf16(bed: Bed, build: Any) -> None:
    bed.load(build(GOOD, bits=16))
    bed.load(build(WRONG, bits=16), "two")
    for layout in LAYOUTS:
        key = bed.name(problem(R=13, D=37, dtypes={"T": "bf16"}, **layout))
        checked = bed.ask(messages.Verify(handle="one", keys=(key,)))
        assert checked.status == "ok", checked.reason
        assert bed.ask(messages.Verify(handle="two", keys=(key,))).status == "wrong-result"


def test_a_wrong_candidate_is_found_and_the_next_is_unaffected(bed: Bed, build: Any) -> None:
    for number, (body, bits, workspace, given, told) in enumerate(WRONG_ONES):
        shape = {"R": 13, "D": 37, "dtypes": {"T": "f32" if bits == 32 else "bf16"}}
        key = bed.name(problem(**shape), **given)
        for one, status in ((body, "wrong-result"), (GOOD, "ok")):
            handle = f"{number} {status}"
            bed.load(build(one, bits, workspace=workspace), handle)
            checked = bed.ask(messages.Verify(handle=handle, keys=(key,)))
            assert checked.status == status, (told, checked.reason)
            assert status == "ok" or told in checked.reason
            if body is ROUNDED:  # it hides in the rounding of other values
                plain = bed.name(problem(**shape))
                assert bed.ask(messages.Verify(handle=handle, keys=(plain,))).status == "ok"


def test_times_of_calls_that_leave_nothing_in_the_graph_are_none(bed: Bed, build: Any) -> None:
    """Work on a stream of its own is right in the end; an empty graph may take longer than a small call's floor."""
    key = bed.name(SMALL)
    bed.load(build(GOOD))
    assert bed.ask(messages.Verify(handle="one", keys=(key,))).status == "ok"
    record = bed.engine.record

    def empty(calls: Any, framework: bool = False) -> Recorded:
        played = record(calls, framework)
        return Recorded(played.play, 0, played.close)

    bed.engine.record = empty
    raced = bed.ask(messages.Turn(handle="one", key=key, calls=1, warm=1, fresh=True))
    timed = bed.ask(messages.Screen(handle="one", key=key))
    for reply in (raced, timed):
        assert (reply.status, reply.reason) == ("suspicious", "launches nothing on the stream that it is given")


def test_errors_of_functions_are_failures_and_the_worker_lives_on(bed: Bed, build: Any) -> None:
    key = bed.name(SMALL)
    bed.load(build(REFUSES))
    checked = bed.ask(messages.Verify(handle="one", keys=(key,)))
    assert (checked.status, checked.reason.partition(" (")[0]) == ("failed", "candidate_launch returned 9")
    refused = bed.load(build(GOOD, preload=3), "two")
    assert isinstance(refused, messages.Failure)
    assert refused.reason == "candidate_preload returned 3"
    huge = bed.load(build(GOOD, workspace="(1ul << 40)"), "three")
    assert huge == messages.Done()
    checked = bed.ask(messages.Verify(handle="three", keys=(key,)))
    assert checked.status == "skipped"
    assert "asks for 1099511627776 bytes of workspace" in checked.reason


def test_different_bits_are_wrong_where_they_must_be_the_same(bed: Bed, build: Any) -> None:
    path = bed.folder / "operator.py"
    path.write_text(path.read_text().replace('name="axpb",', 'name="axpb",\n    deterministic=True,'))
    key = bed.name(SMALL)
    bed.load(build(UNSTEADY))
    checked = bed.ask(messages.Verify(handle="one", keys=(key,)))
    assert (checked.status, checked.bitwise) == ("wrong-result", False)
    assert checked.reason.startswith("not deterministic: outputs differ between two runs (problem 'R=13 D=37')")
    bed.load(build(GOOD), "two")
    assert bed.ask(messages.Verify(handle="two", keys=(key,))).status == "ok"


def test_cold_tensors_rotate_until_the_cache_is_full_and_share_the_rest(bed: Bed) -> None:
    key = bed.name(problem(R=1, D=4096))
    state = bed.session._state(key)
    sets = state.rotation()
    assert len(sets) == min(bed.policy.copies, 4 * (1 << 16) // (4 * 4096))
    assert len({s.storages["w"].data_ptr() for s in sets}) == len(sets)
    assert len({s.storages["x"].data_ptr() for s in sets}) == 1
    assert all(s.storages["w"].data_ptr() % 512 == 0 for s in sets)
    assert len(state.cold()) == len(sets)
    assert state.exact().storages["w"].data_ptr() % 128 == 64


@pytest.mark.parametrize("failures", [1, 2])
def test_nothing_of_an_attempt_that_lacked_memory_is_held_when_it_is_cleaned_up(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """What frames of the error hold would be missing in the next attempt, and then in the other worker."""
    key = bed.name(problem(R=16, D=256))
    got: list[Any] = []
    held: list[bool] = []
    rotation, clean = ProblemState.rotation, bed.session.clean

    def lacking(state: ProblemState) -> Any:
        if len(got) == failures:
            return rotation(state)
        part = rotation(state)[0].arena
        got.append(weakref.ref(part))
        raise torch.OutOfMemoryError("Tried to allocate 64.00 GiB.\nmore")

    def cleaned() -> None:
        clean()
        held.append(got[-1]() is not None)

    monkeypatch.setattr(ProblemState, "rotation", lacking)
    monkeypatch.setattr(bed.session, "clean", cleaned)
    reply = bed.ask(messages.Prepare(key=key))
    assert held == [False] * failures
    if failures == 1:
        assert isinstance(reply, messages.Done)
    else:
        assert isinstance(reply, messages.Failure)
        assert (reply.status, reply.reason) == ("oom", "Tried to allocate 64.00 GiB.")


def test_a_fault_of_the_device_is_the_last_word(bed: Bed, build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    key = bed.name(SMALL)
    bed.load(build(FAULTS))
    monkeypatch.setattr(bed.engine, "forget", lambda: setattr(bed.engine, "broken", True))
    reply = bed.ask(messages.Verify(handle="one", keys=(key,)))
    assert reply == messages.Failure(
        kind="FaultError", reason="illegal memory access (700)", status="crashed", last=True
    )


def test_a_fault_of_the_machine_is_not_the_candidates(bed: Bed, build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        raise FaultError(214, "uncorrectable ECC error encountered")

    bed.load(build(GOOD))
    key = bed.name(SMALL)
    monkeypatch.setattr(bed.engine, "check", check)
    reply = bed.ask(messages.Verify(handle="one", keys=(key,)))
    assert (reply.status, reply.last) == ("failed", True)
    assert reply.reason == "in the worker: uncorrectable ECC error encountered (214)"


def test_a_device_that_cannot_be_used_is_told_with_a_remedy(bed: Bed) -> None:
    def connect() -> Any:
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nmore")

    bed.session._connect = connect
    reply = bed.ask(messages.Prepare(key="none"))
    assert reply.last
    assert reply.reason.startswith("in the worker: the GPU cannot be used: CUDA error: CUDA-capable device(s)")
    assert "set its compute mode to default" in reply.reason


def test_the_device_is_not_touched_before_it_is_needed(bed: Bed) -> None:
    def connect() -> Any:
        raise AssertionError

    bed.session._connect = connect
    assert isinstance(bed.ask(messages.Ping()), messages.Pong)
    work = messages.Work(key="k", operator_folder=str(bed.folder), check=Check(problem=SMALL), folder="")
    assert bed.ask(work) == messages.Done()


def test_another_device_than_was_asked_for_is_refused(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = SimpleNamespace(name="Host", multi_processor_count=2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: seen)
    with pytest.raises(FaultError, match=r"another device: Host with 2 .* instead of Host with 1 .*: build again"):
        check_device(bed.engine, bed.session._device)
    seen.multi_processor_count = 1
    check_device(bed.engine, bed.session._device)


def test_a_device_that_computes_a_wrong_sum_is_not_used(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "arange", lambda *_, **__: torch.zeros(4096))
    reply = bed.ask(messages.Prepare(key="none"))
    assert (reply.last, reply.status) == (True, "failed")
    assert reply.reason.startswith("in the worker: the GPU computes a wrong sum: it needs a reset")
