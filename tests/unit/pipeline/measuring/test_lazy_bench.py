"""Benches that begin late: a device that another build has, workers that do not start at first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from aot_tune.bench.host.findings import Checks
from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.pipeline.measuring import lazy_bench as benching
from aot_tune.pipeline.measuring.device_lock import device_lock
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.session import Session
from aot_tune.search import Budget
from aot_tune.support.errors import WorkerError


def test_a_device_that_another_build_has_is_waited_for_until_the_budget_ends() -> None:
    device = Device(family="cpu", name="CPU", slug="cpu", identity={"name": "of this test alone"})
    lines: list[str] = []
    with device_lock(device, lines.append, None):
        with pytest.raises(WorkerError, match="not free"), device_lock(device, lines.append, Budget(0.1)):
            raise AssertionError
        assert lines == ["waiting: another build measures on CPU"]
    with device_lock(device, lines.append, Budget(0.0)):
        assert len(lines) == 1


class Fickle:
    """A bench that cannot be started the first time."""

    starts: int

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Fickle:
        type(self).starts += 1
        if self.starts == 1:
            raise WorkerError("compute mode exclusive")
        return self

    def __exit__(self, *_: object) -> None:
        pass


def lazy_bench(monkeypatch: pytest.MonkeyPatch, lines: list[str], patience: float) -> LazyBench:
    monkeypatch.setattr(Fickle, "starts", 0, raising=False)
    monkeypatch.setattr(benching, "Bench", Fickle)
    session = SimpleNamespace(
        progress=SimpleNamespace(line=lines.append),
        policy_of=lambda _: None,
        threads=1,
        turn=Budget(None),
        checks=Checks(),
        executor=None,
    )
    device = Device(family="cpu", name="CPU", slug="cpu", identity={"name": "of this other test"})
    return LazyBench(cast(Session, session), device, Budget(patience))
