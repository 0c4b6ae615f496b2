"""How long a build has left: what the link will take, and compiles, screens and races before it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pipelines import FAST, GENERIC, OPERATOR, evidence

from aot_tune.pipeline.pending import Outlook, task_of
from aot_tune.pipeline.scheduling import deadline
from aot_tune.pipeline.scheduling.deadline import seconds_after
from aot_tune.pipeline.session import Load, Session
from aot_tune.search import Budget
from aot_tune.support.progress import Progress

ONE, TWO = OPERATOR.workload


def session_with(
    monkeypatch: pytest.MonkeyPatch,
    load: Load,
    known: float | None,
    module: str = "",
    targets: int = 1,
    devices: Sequence[str] = ("cpu",),
    tuned: str = "cpu",
) -> Session:
    monkeypatch.setattr(deadline, "link_memory", lambda _: None)
    monkeypatch.setattr(deadline, "link_seconds", lambda _: known)
    plan = SimpleNamespace(families=["cpu"], module=module)
    operators = {"fast": SimpleNamespace(operator=OPERATOR)}
    given = SimpleNamespace(
        load=load,
        plan=plan,
        operators=operators,
        targets=[SimpleNamespace(family=tuned)] * targets,
        devices=[SimpleNamespace(family=f) for f in devices],
    )
    return cast(Session, given)


def test_the_link_is_reckoned_from_the_first_compiles_until_one_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = Load(2, each=0.2), Load(2, each=0.8)
    guesses = [seconds_after(session_with(monkeypatch, load, None)) for load in (quick, slow)]
    assert guesses[0] < guesses[1] < 4 * guesses[0]
    assert seconds_after(session_with(monkeypatch, quick, None, module="ops")) > guesses[0]
    assert seconds_after(session_with(monkeypatch, quick, None, targets=50)) > guesses[0] + 1  # more to verify
    assert seconds_after(session_with(monkeypatch, quick, None, devices=("cpu", "cuda"))) > guesses[0] + 4  # torch
    assert seconds_after(session_with(monkeypatch, slow, 7.0)) == 7.0


def test_other_programs_that_take_the_cores_make_the_link_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(2)
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


def outlook(budget: Budget, *, overlap: bool, devices: int = 1) -> Outlook:
    found = Outlook(Progress(stream=cast(Any, SimpleNamespace(write=len, flush=lambda: None))), budget)
    found.durations.compiled(5.0, 10.0)  # FAST's kernel says 5 seconds
    for problem in OPERATOR.workload:
        task = task_of(OPERATOR, problem)
        found.durations.screened(task, 1.0, 0.0)
        for _ in range(1000):
            found.durations.raced(task, 3.0)
    found.after = 5.0
    assert (found.left() is None) == (budget.seconds is None)
    found.expect([evidence(FAST, GENERIC)], [FAST], overlap=overlap, devices=devices)
    return found


@pytest.mark.parametrize(
    ("overlap", "devices", "seconds"),
    [(False, 1, 10 + 4 + 6 + 5), (True, 1, 10 + 6 + 5), (True, 2, 10 + 3 + 5)],
)
def test_the_time_left_is_of_compiles_and_screens_and_races_and_the_link(
    overlap: bool, devices: int, seconds: float
) -> None:
    found = outlook(Budget(None), overlap=overlap, devices=devices)
    assert found.left() == pytest.approx(seconds, rel=0.05)
    found.screened(task_of(OPERATOR, ONE), 1.0, 0.0, "")
    found.raced(task_of(OPERATOR, ONE), 3.0, 0.0)
    assert found.left() == pytest.approx(seconds - (3 + (not overlap)) / devices, rel=0.05)
    found.expect((), ())
    assert found.left() == 5.0


def test_what_is_compiled_beside_the_first_is_not_taken_to_follow_it() -> None:
    """The first of 16 took 3 s; by that alone 1273 more were said to take half an hour."""
    left = []
    for jobs in (1, 2, 16):
        found = outlook(Budget(None), overlap=False)
        found.expect([evidence(FAST, GENERIC)], [FAST], jobs=jobs)
        left.append(found.left() or 0.0)
    compiling = found.durations.compile(5.0)
    assert left[0] - left[1] == pytest.approx(compiling / 3)  # half of another one was done meanwhile
    assert left[2] == left[1]  # there is but one more


def test_what_was_screened_for_one_target_waits_for_no_race_on_the_next() -> None:
    found, task = outlook(Budget(60), overlap=True), task_of(OPERATOR, ONE)
    for _ in range(2):
        assert found.races() == {}
        found.screened(task, 1.0, 0.0, "")
        found.screened(task, 1.0, 0.0, "")
        assert list(found.races()) == [task]
        found.expect([evidence(FAST, GENERIC)], [FAST, GENERIC])


def test_what_was_learned_on_one_family_of_devices_says_nothing_of_another() -> None:
    found, task = Outlook(Progress(), Budget(None)), task_of(OPERATOR, ONE)
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


def test_compiles_that_are_expected_to_be_short_are() -> None:
    found = Outlook(Progress(stream=cast(Any, SimpleNamespace(write=len, flush=lambda: None))), Budget(None))
    found.durations.compiled(40.0, 20.0)
    found.expect([evidence(FAST, GENERIC)], [FAST])
    with_short = cast(float, found.left())
    found.expect([evidence(FAST, GENERIC)], [])
    assert with_short - cast(float, found.left()) == pytest.approx(2.5, rel=0.2)


def test_before_any_race_one_is_taken_for_as_long_as_the_policy_gives_it() -> None:
    durations = Outlook(Progress(), Budget(None)).durations
    durations.least_race = 1.0
    task = task_of(OPERATOR, ONE)
    assert durations.race(task) == 1.0
    durations.raced(task, 0.1)
    assert durations.race(task) < 1.0


def test_no_more_time_is_promised_than_the_budget_has() -> None:
    now = 0.0
    found = outlook(Budget(12, lambda: now), overlap=False)
    assert found.left() == 12
    now = 10.0
    assert found.left() == 2
