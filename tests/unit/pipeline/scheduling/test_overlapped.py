"""Screening while other candidates still compile: order, followers, faults, and the end of a budget."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from overlapping import OPERATOR, TARGET, TIMES, N, World, entry, everyone, recorded

from aot_tune.compile import Object
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.scheduling import background_compiler as background
from aot_tune.pipeline.scheduling import overlapped
from aot_tune.pipeline.scheduling.overlapped import OverlappedTune
from aot_tune.pipeline.scheduling.screen_queue import Priority, ScreenQueue
from aot_tune.pipeline.scheduling.tune import not_known
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.search import Task
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


@pytest.mark.parametrize("budget", [None, 60.0])
def test_generic_variants_that_no_problem_is_for_are_verified_while_there_are_workers(budget: float | None) -> None:
    world = World(budget=budget)
    world.run([*everyone(), entry("generic", "f32")])
    assert world.verified == ["generic_f32_0"]
    assert not any(symbol == "generic_f32_0" for _, symbol in world.screened)


@pytest.mark.parametrize("budget", [None, 60.0])
def test_what_was_compiled_before_as_a_probe_is_screened_like_the_others(budget: float | None) -> None:
    entries, earlier, world = everyone(), World(), World(budget=budget)
    earlier.compile([e for e in entries if e.candidate.generic], "generic")
    world.run(entries)
    alone = World(budget=budget)
    alone.run(everyone())
    assert sorted(world.screened) == sorted(alone.screened)
    assert earlier.compiled == ["generic_bf16_0", "generic_f16_0"]
    assert sorted(alone.compiled) == sorted(earlier.compiled + world.compiled)  # nothing twice, and nothing left out


def probe_that(waits: Callable[[], None]) -> Callable[..., None]:
    """A check of devices that waits between what goes on meanwhile and its end."""

    def check(_session: object, _pool: object, _pairs: object, meanwhile: Callable[[], None]) -> None:
        meanwhile()
        waits()

    return check


@pytest.mark.parametrize("budget", [None, 60.0])
def test_compilers_begin_while_devices_time_a_probe(budget: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """But within a budget the generic variants come first, on devices that agree."""
    world, seen = World(budget=budget, delay=0.01), list[bool]()

    def waits() -> None:
        until = time.monotonic() + (10.0 if budget is None else 0.1)
        while not world.compiled and time.monotonic() < until:
            time.sleep(0.001)
        seen.append(bool(world.compiled))
        assert not world.screened

    monkeypatch.setattr(overlapped, "check_agreement", probe_that(waits))
    world.run(everyone())
    assert seen == [budget is None]
    assert len(world.screened) == len(set(world.screened)) == 2 * 5 + 1 * 3


def test_compilers_end_with_a_check_that_fails(
    monkeypatch: pytest.MonkeyPatch, no_thread_left: Callable[[], bool]
) -> None:
    def fails() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(overlapped, "check_agreement", probe_that(fails))
    with pytest.raises(KeyboardInterrupt):
        World(delay=0.01).run(everyone())
    assert no_thread_left()


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


def test_of_screens_that_decide_nothing_those_of_heavy_problems_are_first_too() -> None:
    one, entries = dataclasses.replace(OPERATOR, weights={"N=64": 5.0}), [entry("quick", "bf16")]
    for weighed, first in ((True, "N=64"), (False, "N=8")):
        world = World()
        evidence = Evidence(one, TARGET, {e.candidate.id: e for e in entries})
        queue = ScreenQueue([(cast(LoadedOperator, SimpleNamespace(operator=one)), evidence)], weighed=weighed)
        entries[0].object = None
        world.compile(entries, "generic")
        queue.add(entries)
        queue.screen(cast(DevicePool, world), lambda _: False)
        assert world.screened[0] == (first, "quick_bf16_0")


def test_what_serves_heavy_problems_is_compiled_first() -> None:
    """Without weights the longest compiles begin; here they are for the light problem alone."""
    kernels = tuple(dataclasses.replace(k, worthwhile=(N <= 8,)) if k.name == "slow" else k for k in OPERATOR.kernels)
    for weights, first in (({"N=64": 100.0}, "quick_bf16_0"), ({}, "slow_bf16_1")):
        one = dataclasses.replace(OPERATOR, weights=weights, kernels=kernels)
        world, entries = World(budget=60.0), everyone()
        world.run(entries, Evidence(one, TARGET, {e.candidate.id: e for e in entries}))
        assert next(symbol for symbol in world.compiled if not symbol.startswith("generic")) == first


def test_at_the_end_of_the_budget_what_is_there_is_raced() -> None:
    world = World(budget=1.2, delay=0.5)
    begin = time.monotonic()
    world.run(everyone())
    assert time.monotonic() - begin < 5
    assert 0 < len(world.compiled) < 9
    assert world.raced


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


def test_what_races_that_took_no_time_have_interrupted_goes_on() -> None:
    """As where the store knows them: what was compiled, or was to be, is not lost."""
    world = World(budget=60.0, clock=lambda: 0.0)
    world.race_seconds = 60.0
    world.run(everyone())
    assert len(world.screened) == len(set(world.screened)) == 13
    assert set(world.raced) == {"N=8", "N=64", "N=8 T=f16"}


def test_a_device_that_waits_for_a_long_compile_has_its_races_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, killed = 0.0, threading.Event()
    monkeypatch.setattr(background, "kill_running", killed.set)
    world = World(budget=100.0, clock=lambda: now)
    world.race_seconds = 30.0

    def compiling(symbol: str) -> None:
        nonlocal now
        if symbol == "slow_bf16_3" and not world.raced:
            while len(world.screened) < 5:
                time.sleep(0.01)
            now = 50.0  # may still compile, but two races take 60 s
            assert killed.wait(20)

    world.compiling = compiling  # type: ignore[method-assign]
    world.run(everyone())
    assert killed.is_set()
    assert {"N=8", "N=64"} <= set(world.raced)


@pytest.mark.parametrize(
    ("devices", "races", "least"), [(1, (30.0, 20.0), 50.0), (4, (30.0,), 30.0), (4, (20.0,) * 4, 35.0)]
)
def test_races_are_left_as_long_as_the_longest_takes_however_many_devices_there_are(
    devices: int, races: tuple[float, ...], least: float
) -> None:
    for left, wait in ((least, True), (least + 0.1, False)):
        world = World(budget=left, clock=lambda: 0.0)
        world.members = [world] * devices
        world.pending.races = lambda: {Task("scale", f"N={i}", 1): s for i, s in enumerate(races)}
        tuning = OverlappedTune(cast(Session, world), cast(DevicePool, world), [], [])
        assert bool(tuning._races_wait()) == wait


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


def test_a_recorded_leader_that_did_not_compile_has_no_followers() -> None:
    evidence = recorded(everyone(), [s for s in TRIED if s != "slow_bf16_1"])
    (leader,) = (e for e in evidence.entries.values() if e.rendered.symbol == "slow_bf16_1")
    leader.object = Object(
        key="", path="", digest="", symbol="", source="", target=TARGET.name, status="compile-failed"
    )
    assert symbols(not_known(evidence)) == ["slow_f16_2"]


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


def test_a_new_candidate_that_is_slow_leaves_the_record_as_it_is() -> None:
    evidence = recorded(everyone(), [s for s in TRIED if s != "slow_bf16_3"] + ["slow_f16_1", "slow_f16_2"])
    world = World()
    world.run(not_known(evidence), evidence)
    assert (world.compiled, world.raced) == (["slow_bf16_3"], [])


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


class Backlogged(World):
    """The vendor's candidates take long to screen: the first until all of the first wave is compiled.

    Those of the second problem, and what is left of the first, wait until followers are being compiled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wave, self.followers = threading.Event(), threading.Event()
        self.begun: list[tuple[str, bool]] = []

    def compiling(self, symbol: str) -> None:
        if symbol.startswith("slow_f16"):
            self.followers.set()

    def compile(self, *arguments: Any, **named: Any) -> None:
        super().compile(*arguments, **named)
        self.wave.set()

    def screening(self, where: Problem, symbol: str) -> None:
        if symbol.startswith("vendor"):
            assert self.wave.wait(30)
            second = where.id == "N=64"
            self.begun.append((where.id, self.followers.wait(30) if second else self.followers.is_set()))


def test_followers_are_compiled_while_what_does_not_decide_on_them_is_still_screened() -> None:
    world = Backlogged()
    world.run([*(entry("vendor", "bf16", width) for width in range(7, 12)), *everyone()])
    assert world.compiled[-2:] == ["slow_f16_1", "slow_f16_2"]
    assert len(world.begun) == 10
    assert all(begun for where, begun in world.begun if where == "N=64")


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


def test_what_others_wait_for_is_screened_first() -> None:
    """Of what got ready together: first the problems of leaders, where long compiles wait for them before others."""
    entries = [entry("vendor", "bf16", 7), entry("generic", "bf16"), entry("slow", "bf16", 1)]
    evidence = Evidence(OPERATOR, TARGET, {e.candidate.id: e for e in entries})
    world, loaded = World(), cast(LoadedOperator, SimpleNamespace(operator=OPERATOR))
    for one in entries:
        one.recorded = one.rendered.symbol
    queue = ScreenQueue([(loaded, evidence)])
    queue.rank({("scale", "N=8"): 2.0, ("scale", "N=64"): 40.0})
    assert [queue.priority_of(e) for e in entries] == [Priority.OTHERS, Priority.DECIDING, Priority.DECIDING]
    queue.add(entries)
    assert queue.unsettled(evidence) == {"N=8", "N=64"}
    passes = []
    while queue:
        before = len(world.screened)
        queue.screen(cast(DevicePool, world), lambda _: False)
        passes.append(world.screened[before:])
    own = ["generic_bf16_0", "slow_bf16_1"]
    assert passes == [
        [(where, s) for where in ("N=64", "N=8") for s in own],
        [("N=8", "vendor_bf16_7"), ("N=64", "vendor_bf16_7")],
    ]


def test_screens_stop_between_two_problems_and_go_on_later() -> None:
    entries = [entry("generic", "bf16"), entry("generic", "f16")]
    evidence = Evidence(OPERATOR, TARGET, {e.candidate.id: e for e in entries})
    world, loaded = World(), cast(LoadedOperator, SimpleNamespace(operator=OPERATOR))
    for one in entries:
        one.recorded = one.rendered.symbol
    queue = ScreenQueue([(loaded, evidence)])
    queue.add(entries)
    queue.screen(cast(DevicePool, world), lambda _: bool(world.screened))
    assert len(world.screened) == 1
    assert queue
    queue.screen(cast(DevicePool, world), lambda _: False)
    assert not queue
    assert sorted(where for where, _ in world.screened) == ["N=64", "N=8", "N=8 T=f16"]
