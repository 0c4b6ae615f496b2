"""Benches that begin late: a device that another build has, workers that do not start at first."""

from __future__ import annotations

import pytest

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.pipeline.measuring.device_lock import device_lock
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
