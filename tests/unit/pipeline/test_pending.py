"""What waits on a target and what such things take; what the link will take."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pipelines import FAST, GENERIC, OPERATOR, evidence

from aot_tune.pipeline.pending import PendingWork, task_of
from aot_tune.search import Budget
from aot_tune.support.progress import Progress

ONE, _ = OPERATOR.workload


def pending() -> PendingWork:
    return PendingWork(Progress(stream=cast(Any, SimpleNamespace(write=len, flush=lambda: None))), Budget(None))


@pytest.mark.parametrize(("seconds", "said"), [(None, "about 40 s left"), (52.0, "about 2 s left")])
def test_no_estimate_is_above_what_the_target_has_left(seconds: float | None, said: str) -> None:
    now, out = [0.0], io.StringIO()
    found = PendingWork(Progress(out, clock=lambda: now[0]), Budget(None))
    found.within(Budget(seconds, clock=lambda: now[0]))
    found.expect([evidence(FAST, GENERIC)], [FAST, GENERIC])
    for _ in range(5):
        now[0] += 10.0
        found.screened(task_of(OPERATOR, ONE), 10.0, 0.0, "x")
    assert said in out.getvalue()


def test_what_was_learned_on_one_family_of_devices_says_nothing_of_another() -> None:
    found, task = pending(), task_of(OPERATOR, ONE)
    found.screened(task, 9.0, 9.0, "")
    found.raced(task, 90.0, 0.0)
    cpu = found.durations
    found.begin("cuda")
    gpu = found.durations
    assert gpu.screen(task) < 1.0 < cpu.screen(task)
    assert gpu.prepare(task) > 0.0
    found.screened(task, 0.1, 0.1, "")
    assert gpu.screen(task) == pytest.approx(0.1)
    found.begin("cpu")
    assert found.durations is cpu
    assert cpu.screen(task) == pytest.approx(9.0)
