"""Benches that verify the variants of a linked library in turn."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from aot_tune.bench.protocol.measurement_records import Device, Measurement
from aot_tune.pipeline.measuring import job_queue as turns
from aot_tune.pipeline.measuring.job_queue import JobQueue, work_off
from aot_tune.pipeline.session import Session
from aot_tune.spec import problem
from aot_tune.support.errors import WorkerError

GPU = Device(family="cuda", name="GPU", slug="gpu", identity={"memory_gib": 139})


class Bench:
    """Stands in for `LazyBench`; notes who was there, and which thread had it."""

    made: ClassVar[list[Bench]] = []

    def __init__(self, session: Any, device: Device, *, exclusive: bool, shared: object) -> None:
        self.session, self.device, self.exclusive, self.shared = session, device, exclusive, shared
        self.thread, self.left, self.interrupted, self.got = 0, False, threading.Event(), False
        self.made.append(self)

    def __enter__(self) -> Bench:
        self.thread = threading.get_ident()
        return self

    def __exit__(self, *_: object) -> None:
        self.left = True

    def get(self) -> None:
        assert len(self.made) == 1  # nobody else is there yet
        self.got = True

    def interrupt(self) -> None:
        self.interrupted.set()


def measured(status: str = "ok", reason: str = "") -> Measurement:
    return Measurement(
        candidate="", code="", problem=problem(N=1), device="", policy="", status=cast(Any, status), reason=reason
    )


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[JobQueue[int], list[str]]]:
    monkeypatch.setattr(turns, "LazyBench", Bench)
    monkeypatch.setattr(turns, "usable_cores", lambda: 16)
    monkeypatch.setattr(Bench, "made", [])
    monkeypatch.setattr(turns, "BenchFiles", lambda *_: contextlib.nullcontext("shared"))

    def run(one: Callable[[Bench, int], Measurement], count: int = 60, enough: int = 8, device: Device = GPU) -> Any:
        lines: list[str] = []
        session = SimpleNamespace(progress=SimpleNamespace(line=lines.append))
        given: JobQueue[int] = JobQueue(range(count), cast(Any, one), enough)
        work_off(cast(Session, session), device, given)
        return given, lines

    return run


def test_what_fails_beside_others_is_run_again_alone(verify: Callable[..., Any]) -> None:
    met, tried = threading.Barrier(3, timeout=30), list[int]()
    alone: dict[int, tuple[int, list[bool]]] = {}

    def one(bench: Bench, number: int) -> Measurement:
        if not bench.interrupted.is_set():
            bench.interrupted.set()
            met.wait()
        tried.append(number)
        again = tried.count(number) == 2
        if again:
            alone[number] = Bench.made.index(bench), [b.left for b in Bench.made]
        if number == 7 or (number == 3 and not again):
            return measured("oom")
        if number == 5 and not again:
            raise WorkerError("no worker can hold it")
        return measured()

    done, _ = verify(one)
    assert [(n, m.status) for n, m in done.found] == [(n, "oom" if n == 7 else "ok") for n in range(60)]
    assert [n for n in range(60) if tried.count(n) != 1] == [3, 5, 7]
    assert [alone[n] for n in (3, 7)] == [(0, [False, True, True])] * 2  # the first bench, when the others had left
