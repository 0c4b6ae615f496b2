"""The time of a target's turn."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from aot_tune.pipeline.build_time import BuildTime
from aot_tune.pipeline.scheduling import tune_targets
from aot_tune.search.budget import Budget
from aot_tune.support.progress import Progress


@pytest.mark.parametrize(("budget", "left"), [(None, 30.0), (200.0, 20.0)])
def test_what_the_link_takes_shortens_a_turn_only_within_a_budget(
    monkeypatch: pytest.MonkeyPatch, budget: float | None, left: float
) -> None:
    """The time for older CPUs is stated, with or without one."""
    progress = Progress(io.StringIO(), lambda: 0.0)
    session: Any = SimpleNamespace(
        time=BuildTime(Budget(budget, lambda: 0.0), 2), progress=progress, jobs_of=lambda _: SimpleNamespace(count=2)
    )
    turn = session.time.turn(progress, "cpu", kept=10.0, most=30.0)
    monkeypatch.setattr(tune_targets, "seconds_after", lambda _session: 20.0)
    pool: Any = SimpleNamespace(turn=turn, devices=[])
    tune_targets.plan_on(session, pool, [], quiet=True)[1].compiled()
    assert turn.left == left
