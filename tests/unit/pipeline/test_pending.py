"""What waits on a target and what such things take; what the link will take."""

from __future__ import annotations

import io
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pipelines import FAST, GENERIC, OPERATOR, evidence

from aot_tune.pipeline.compiler_load import CompilerLoad
from aot_tune.pipeline.pending import PendingWork, task_of
from aot_tune.pipeline.scheduling import time_to_link
from aot_tune.pipeline.scheduling.time_to_link import seconds_after
from aot_tune.pipeline.session import Session
from aot_tune.search import Budget
from aot_tune.support.progress import Progress

ONE, _ = OPERATOR.workload


def session_with(
    monkeypatch: pytest.MonkeyPatch,
    load: CompilerLoad,
    known: float | None,
    module: str = "",
    targets: int = 1,
    devices: Sequence[str] = ("cpu",),
    tuned: str = "cpu",
    links: bool = True,
) -> Session:
    monkeypatch.setattr(time_to_link, "link_memory", lambda _: None)
    monkeypatch.setattr(time_to_link, "link_seconds", lambda _: known)
    plan = SimpleNamespace(families=["cpu"], module=module)
    operators = {"fast": SimpleNamespace(operator=OPERATOR)}
    given = SimpleNamespace(
        load=load,
        links=links,
        plan=plan,
        operators=operators,
        targets=[SimpleNamespace(family=tuned)] * targets,
        devices=[SimpleNamespace(family=f) for f in devices],
    )
    return cast(Session, given)


def test_the_link_is_reckoned_from_the_first_compiles_until_one_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = CompilerLoad(2, each=0.2), CompilerLoad(2, each=0.8)
    guesses = [seconds_after(session_with(monkeypatch, load, None)) for load in (quick, slow)]
    assert guesses[0] < guesses[1] < 4 * guesses[0]
    assert seconds_after(session_with(monkeypatch, quick, None, module="ops")) > guesses[0]
    assert seconds_after(session_with(monkeypatch, quick, None, targets=50)) > guesses[0] + 1  # more to verify
    assert seconds_after(session_with(monkeypatch, quick, None, devices=("cpu", "cuda"))) > guesses[0] + 4  # torch
    assert seconds_after(session_with(monkeypatch, slow, 7.0)) == 7.0
    assert seconds_after(session_with(monkeypatch, slow, 7.0, links=False)) == 0.0


def test_other_programs_that_take_the_cores_make_the_link_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    load = CompilerLoad(2)
    load.add(cpu=4.0, walls=[1.0] * 8)
    assert (load.granted, load.each) == (0.5, 0.5)
    assert seconds_after(session_with(monkeypatch, load, 7.0)) == 14.0
    load.add(cpu=0.1, walls=[])  # all from the cache
    load.add(cpu=0.1, walls=[4.0])  # too short to tell
    assert load.granted == 0.5
    load.add(cpu=0.5, walls=[1.0])  # one alone, beside the same programs
    assert load.granted == 0.5
    load.add(cpu=0.5, walls=[0.5])  # a short moment of quiet
    assert 0.5 < load.granted < 0.75
    for _ in range(10):
        load.add(cpu=8.0, walls=[2.0] * 4)
    assert load.granted == pytest.approx(1.0, abs=0.01)
    assert load.each == 0.5


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
