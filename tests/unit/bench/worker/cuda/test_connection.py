"""A session's first touch of its device, on the host's tensors, and what it says of a device that is at fault."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.spec import problem

torch = pytest.importorskip("torch")

from cuda_session import FAULTS, GOOD, Bed, build  # noqa: E402

from aot_tune.bench.worker.cuda.connection import check_device  # noqa: E402
from aot_tune.bench.worker.cuda.engine import FaultError  # noqa: E402

SMALL = problem(R=13, D=37)


def test_a_fault_of_the_device_is_the_last_word(tmp_path: Path, monkeypatch: Any) -> None:
    bed = Bed(tmp_path)
    key = bed.name(SMALL)
    bed.load(build(tmp_path, FAULTS))
    monkeypatch.setattr(bed.engine, "forget", lambda: setattr(bed.engine, "broken", True))
    reply = bed.ask(messages.Verify(handle="one", keys=(key,)))
    assert reply == messages.Failure(
        kind="FaultError", reason="illegal memory access (700)", status="crashed", last=True
    )


def test_a_fault_of_the_machine_is_not_the_candidates(tmp_path: Path, monkeypatch: Any) -> None:
    bed = Bed(tmp_path)

    def check() -> None:
        raise FaultError(214, "uncorrectable ECC error encountered")

    bed.load(build(tmp_path, GOOD))
    key = bed.name(SMALL)
    monkeypatch.setattr(bed.engine, "check", check)
    reply = bed.ask(messages.Verify(handle="one", keys=(key,)))
    assert (reply.status, reply.last) == ("failed", True)
    assert reply.reason == "in the worker: uncorrectable ECC error encountered (214)"


def test_a_device_that_cannot_be_used_is_told_with_a_remedy(tmp_path: Path) -> None:
    bed = Bed(tmp_path)

    def connect() -> Any:
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nmore")

    bed.session._connect = connect
    reply = bed.ask(messages.Prepare(key="none"))
    assert reply.last
    assert reply.reason.startswith("in the worker: the GPU cannot be used: CUDA error: CUDA-capable device(s)")
    assert "set its compute mode to default" in reply.reason


def test_the_device_is_not_touched_before_it_is_needed(tmp_path: Path) -> None:
    bed = Bed(tmp_path)

    def connect() -> Any:
        raise AssertionError

    bed.session._connect = connect
    assert isinstance(bed.ask(messages.Ping()), messages.Pong)
    work = messages.Work(key="k", operator_folder=str(bed.folder), check=Check(problem=SMALL), folder="")
    assert bed.ask(work) == messages.Done()


def test_another_device_than_was_asked_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(tmp_path)
    seen = SimpleNamespace(name="Host", multi_processor_count=2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: seen)
    with pytest.raises(FaultError, match=r"another device: Host with 2 .* instead of Host with 1 .*: build again"):
        check_device(bed.engine, bed.session._device)
    seen.multi_processor_count = 1
    check_device(bed.engine, bed.session._device)


def test_a_device_that_computes_a_wrong_sum_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(tmp_path)
    monkeypatch.setattr(torch, "arange", lambda *_, **__: torch.zeros(4096))
    reply = bed.ask(messages.Prepare(key="none"))
    assert (reply.last, reply.status) == (True, "failed")
    assert reply.reason.startswith("in the worker: the GPU computes a wrong sum: it needs a reset")
