"""Screening while other candidates still compile: order, followers, faults, and the end of a budget."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from overlapping import OPERATOR, TARGET, TIMES, World, entry, everyone, recorded

from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.scheduling import background_compiler as background
from aot_tune.pipeline.scheduling.tune import not_known
from aot_tune.spec import Problem


def test_long_compiles_begin_and_followers_wait_for_what_they_follow() -> None:
    world = World()
    world.run(everyone())
    assert world.compiled[:3] == ["slow_bf16_1", "slow_bf16_2", "slow_bf16_3"]
    assert world.compiled[-2:] == ["slow_f16_1", "slow_f16_2"]  # 3 was not among the best: it is not even compiled
    assert ("N=8 T=f16", "slow_f16_1") in world.screened
    assert {where for where, symbol in world.screened if symbol == "slow_bf16_1"} == {"N=8", "N=64"}
    assert world.raced == ["N=64", "N=8", "N=8 T=f16"]  # the longest first: devices end together


def test_each_candidate_is_screened_once_on_each_of_its_problems() -> None:
    world = World(delay=0.01)
    world.run(everyone())
    assert len(world.screened) == len(set(world.screened)) == 2 * 5 + 1 * 3


def test_what_is_to_be_measured_is_linked_before_and_nothing_else() -> None:
    world = World()
    world.known = {"quick_bf16_0", *(f"slow_bf16_{w}" for w in TIMES), "race N=64", "race N=8 T=f16"}
    world.run(everyone())
    assert world.linked[:-2] == ["generic_bf16_0", "generic_f16_0", "slow_f16_1", "slow_f16_2"]
    assert set(world.linked[-2:]) == {"slow_bf16_1", "slow_bf16_2"}  # they race on N=8 with nobody else


def test_a_fault_of_the_compiling_thread_ends_the_tuning(no_thread_left: Callable[[], bool]) -> None:
    with pytest.raises(RuntimeError, match="no compiler"):
        World(fault=RuntimeError("no compiler")).run(everyone())
    assert no_thread_left()


@pytest.mark.parametrize("budget", [None, 60.0])
def test_within_a_budget_generic_variants_are_tried_first(budget: float | None) -> None:
    """On the smallest problem that each serves, and on the others last: to verify them after the end takes no less."""
    world = World(budget=budget)
    evidence = world.run(everyone())
    first = [("N=8", "generic_bf16_0"), ("N=8 T=f16", "generic_f16_0")]
    assert (world.screened[:2] == first) == (budget is not None)
    assert (world.screened[-1] == ("N=64", "generic_bf16_0")) == (budget is not None)
    assert (world.compiled[:2] == [symbol for _, symbol in first]) == (budget is not None)
    assert len(world.screened) == len(set(world.screened)) == sum(map(len, evidence.measurements.values()))


@pytest.mark.parametrize("budget", [0.0, 1e-6])
def test_after_the_end_of_a_budget_nothing_is_tried(budget: float) -> None:
    """Also where the link alone takes all of it."""
    world = World(budget=budget)
    time.sleep(0.01)
    world.run(everyone())
    assert (world.compiled, world.screened) == ([], [])


@pytest.mark.parametrize("budget", [None, 60.0])
def test_within_a_budget_heavy_problems_come_first(budget: float | None) -> None:
    """What serves them is compiled first, too. Where there is time for all, weights do not change the order."""
    world, plain = World(budget=budget), World(budget=budget)
    plain.run(everyone())
    one, entries = dataclasses.replace(OPERATOR, weights={"N=64": 5.0}), everyone()
    world.run(entries, Evidence(one, TARGET, {e.candidate.id: e for e in entries}))
    if budget is None:
        assert (world.compiled, world.raced) == (plain.compiled, plain.raced)
    else:
        assert (plain.raced[0], world.raced[0]) == ("N=8", "N=64")
        assert next(w for w, symbol in world.screened if not symbol.startswith("generic")) == "N=64"


@pytest.mark.parametrize("seconds", [11.0, 15.0, 100.0])
def test_a_budget_too_small_for_all_screens_leaves_time_for_races(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two thirds of the screens and a race tell more than all of the screens."""
    now, killed = 0.0, threading.Event()
    monkeypatch.setattr(background, "kill_running", killed.set)
    world = World(budget=seconds, clock=lambda: now)
    world.race_seconds = 2.0
    begun: list[int] = []

    def spend(one: float, then: Callable[..., None]) -> Callable[..., None]:
        def run(*given: Any) -> None:
            nonlocal now
            if now < seconds:  # as a measurer does
                now += one
                then(*given)

        return run

    screen, race = world.screen, world.race

    def each_screen(loaded: object, evidence: Evidence, where: Problem, tried: list[Entry]) -> None:
        for one in tried:
            spend(1.0, screen)(loaded, evidence, where, [one])

    def one_race(loaded: object, evidence: Evidence, where: Problem) -> None:
        begun.append(len(world.screened))
        spend(world.race_seconds, race)(loaded, evidence, where)

    def compiling(
        symbol: str,
    ) -> None:  # one gets ready when the one before is screened: a problem's screens go together
        before = {"slow_bf16_2": 4, "slow_bf16_3": 6, "quick_bf16_0": 8, "slow_f16_2": 11}.get(symbol, 0)
        while len(world.screened) < before and not killed.is_set():
            time.sleep(0.001)

    world.screen, world.race, world.compiling = each_screen, one_race, compiling  # type: ignore[method-assign]
    evidence = world.run(everyone())
    assert now <= seconds  # no race is broken off
    assert len(set(world.raced)) >= 2
    assert (len(world.screened) == 13) == (seconds == 100.0)
    assert begun[0] == 12 if seconds == 100.0 else 2 <= begun[0] < 12  # a generic variant's second problem comes last
    assert all(any(m.final for m in evidence.measurements[where].values()) for where in world.raced)


TRIED = ["generic_bf16_0", "generic_f16_0", "quick_bf16_0", *(f"slow_bf16_{w}" for w in TIMES)]
"""What a record holds whatever was among the best."""


def symbols(entries: list[Entry]) -> list[str]:
    return [e.rendered.symbol for e in entries]


def test_what_follows_a_recorded_candidate_that_was_not_among_the_best_is_left_out() -> None:
    entries = everyone()
    assert not_known(recorded(entries, [*TRIED, "slow_f16_1", "slow_f16_2"])) == []
    assert symbols(not_known(recorded(everyone(), TRIED))) == ["slow_f16_1", "slow_f16_2"]
    without = [s for s in TRIED if s != "slow_bf16_3"]  # nothing is known of the third: it has to be measured
    assert symbols(not_known(recorded(everyone(), without))) == ["slow_bf16_3", *(f"slow_f16_{w}" for w in TIMES)]


def test_a_new_candidate_races_with_the_best_of_the_record_and_only_they_are_compiled() -> None:
    entries = everyone()
    evidence = recorded(entries, [s for s in TRIED if s != "slow_bf16_1"] + ["slow_f16_1", "slow_f16_2"])
    before = {where: dict(row) for where, row in evidence.measurements.items()}
    world = World()
    world.run(not_known(evidence), evidence)
    assert world.compiled[0] == "slow_bf16_1"
    assert world.compiled[1:] == ["slow_bf16_2"]  # the third and the others are slower than 1.3 x
    assert world.screened == [("N=8", "slow_bf16_1"), ("N=64", "slow_bf16_1")]
    assert world.raced == ["N=64", "N=8"]
    assert evidence.measurements["N=8 T=f16"] == before["N=8 T=f16"]


def test_without_time_to_compile_the_entrants_of_a_record_its_times_stand() -> None:
    evidence = recorded(everyone(), [s for s in TRIED if s != "slow_bf16_1"] + ["slow_f16_1", "slow_f16_2"])
    world = World(budget=2.0, delay=1.7)  # after the first compile, what is left of the budget is for races
    world.run(not_known(evidence), evidence)
    assert (world.compiled, world.raced) == (["slow_bf16_1"], [])
    assert evidence.measurements["N=8"][candidate_id(evidence, "slow_bf16_2")].race == "1"


def candidate_id(evidence: Evidence, symbol: str) -> str:
    return next(i for i, e in evidence.entries.items() if e.rendered.symbol == symbol)


def test_a_leader_that_only_the_race_shows_to_be_among_the_best_is_followed_after_it() -> None:
    """So a record holds all that a build from it would ask for."""
    world = World()
    world.times, world.finals = {**TIMES, 3: 105.0}, {**TIMES, 3: 103.0}
    evidence = world.run(everyone())
    assert world.compiled[-1] == "slow_f16_3"
    assert world.screened[-1] == ("N=8 T=f16", "slow_f16_3")
    assert world.raced == ["N=64", "N=8", "N=8 T=f16", "N=8 T=f16"]
    assert not_known(evidence) == []


def test_a_vendors_library_does_not_keep_followers_from_being_tried() -> None:
    """They serve where the library is missing, or is left out of the build."""
    world = World()
    world.times = world.finals = {**TIMES, 7: 10.0}
    world.run([entry("vendor", "bf16", 7), *everyone()])
    assert {"slow_f16_1", "slow_f16_2"} < set(world.compiled)


def test_followers_wait_until_all_that_may_be_better_than_their_leaders_is_measured() -> None:
    """The last of the kernels that is compiled is the best: then nothing is among the best that has followers."""
    world = World()
    world.times = world.finals = {**TIMES, 0: 50.0}
    screened = threading.Event()

    def compiling(symbol: str) -> None:
        if symbol == "quick_bf16_0":
            assert screened.wait(30)  # all leaders are measured by now

    def screening(_where: Problem, _symbol: str) -> None:
        if len(world.screened) >= 2 * 3 - 1:
            screened.set()

    world.compiling, world.screening = compiling, screening  # type: ignore[method-assign]
    slow = [entry("slow", dtype, width) for dtype in ("bf16", "f16") for width in TIMES]
    world.run([entry("quick", "bf16"), *slow])
    assert world.compiled == [*(f"slow_bf16_{w}" for w in TIMES), "quick_bf16_0"]
