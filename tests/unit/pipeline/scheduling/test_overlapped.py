"""Screening while other candidates still compile: order, followers, faults, and the end of a budget."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from overlapping import TIMES, World, everyone, recorded

from aot_tune.pipeline.scheduling.tune import not_known


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


TRIED = ["generic_bf16_0", "generic_f16_0", "quick_bf16_0", *(f"slow_bf16_{w}" for w in TIMES)]
"""What a record holds whatever was among the best."""


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
