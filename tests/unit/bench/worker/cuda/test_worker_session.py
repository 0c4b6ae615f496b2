"""A session of the CUDA family on the host's tensors: what goes wrong is told, and the next candidate is unaffected."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aot_tune.bench.protocol import messages
from aot_tune.spec import problem

pytest.importorskip("torch")

import cuda_session
from cuda_session import FAULTS, GOOD, REFUSES, ROUNDED, UNSTEADY, WRONG, WRONG_ONES, Bed

from aot_tune.bench.worker.cuda_stream import Recorded
from aot_tune.bench.worker.engine import FaultError


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
    assert checked.reason.startswith("not deterministic: 1 bytes of 'y' differ between two runs, first ")
    assert checked.reason.endswith("(problem 'R=13 D=37')")
    bed.load(build(GOOD), "two")
    assert bed.ask(messages.Verify(handle="two", keys=(key,))).status == "ok"


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
        raise FaultError("uncorrectable ECC error encountered (214)", by_kernel=False)

    bed.load(build(GOOD))
    key = bed.name(SMALL)
    monkeypatch.setattr(bed.engine, "check", check)
    reply = bed.ask(messages.Verify(handle="one", keys=(key,)))
    assert (reply.status, reply.last) == ("failed", True)
    assert reply.reason == "in the worker: uncorrectable ECC error encountered (214)"
