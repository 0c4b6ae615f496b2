"""Races on problems of which all is screened, while others are screened still."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

from overlapping import OPERATOR, TARGET, TIMES, World, entry, everyone

from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.measuring.pool_jobs import PoolJobs
from aot_tune.pipeline.scheduling.early_races import EarlyRaces
from aot_tune.pipeline.scheduling.screen_queue import ScreenQueue
from aot_tune.pipeline.session import LoadedOperator
from aot_tune.spec import Problem


class TwoDevices(World):
    """A world whose jobs are done by two devices at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.homes: dict[int, Any] = {}
        self.devices = [Member(self), Member(self)]

    def each(self, jobs: Any, more: Any = lambda: (), of: Any = lambda _: "") -> None:
        turns = PoolJobs(cast(Any, self.devices), self.homes, jobs, more, of)
        with ThreadPoolExecutor(2) as threads:
            for future in [threads.submit(turns.work, cast(Any, m)) for m in self.devices]:
                future.result(30)


class Member:
    """One of two devices."""

    ended = over = False

    def __init__(self, world: World) -> None:
        self.screen, self.race, self.spare, self.verify = world.screen, world.race, world.spare, world.verify

    def worked(self, seconds: float) -> None:
        """It was at work."""


def test_a_problem_races_while_another_one_is_screened() -> None:
    """Its followers are known by then: what comes for the other problem alone does not keep it waiting."""
    world, raced = TwoDevices(), threading.Event()
    race = world.race

    def racing(*given: Any) -> None:
        race(*given)
        raced.set()

    def screening(where: Problem, symbol: str) -> None:
        if (where.id, symbol) == ("N=64", "vendor_bf16_9"):  # decides nothing: it is the last that is screened
            assert raced.wait(20)

    world.screening = screening  # type: ignore[method-assign]
    for member in world.devices:
        member.race = racing  # type: ignore[assignment]
    world.run([*everyone(), entry("vendor", "bf16", 9)])
    assert sorted(world.raced) == ["N=64", "N=8", "N=8 T=f16"]
    assert world.raced[0] != "N=64"
    assert len(world.screened) == len(set(world.screened)) == 15


def test_two_devices_screen_and_race_the_same_as_one() -> None:
    one, two = World(), TwoDevices()
    one.run(everyone())
    two.run(everyone())
    assert sorted(two.screened) == sorted(one.screened)
    assert sorted(two.raced) == sorted(one.raced)


def test_races_begin_of_settled_problems_whose_entrants_are_linked_the_longest_first() -> None:
    world, entries = World(), [entry("slow", "bf16", width) for width in TIMES]
    evidence = Evidence(OPERATOR, TARGET, {e.candidate.id: e for e in entries})
    queue = ScreenQueue([(cast(LoadedOperator, SimpleNamespace(operator=OPERATOR)), evidence)])
    off = [False]
    races = EarlyRaces(cast(DevicePool, world), lambda: off[0])
    assert races.jobs(queue.settled(), ()) == []  # nothing is screened
    world.compile(entries, "generic")
    for where in evidence.workload[:2]:
        world.screen(None, evidence, where, entries)
    assert races.jobs(queue.settled(), ()) == []  # they would have to be linked
    world.linked += [e.rendered.symbol for e in entries]
    assert [n for n, _ in races.jobs(queue.settled(), {1})] == [0]  # of the other something may come
    found = races.jobs(queue.settled(), ())
    assert [n for n, _ in found] == [1]  # nothing is given twice
    assert races.under_way
    off[0] = True
    assert found[0][1](cast(Any, world)) is False
    assert (world.raced, races.done) == ([], 0)
    off[0] = False
    ((number, job),) = races.jobs(queue.settled(), ())
    job(cast(Any, world))
    assert (number, world.raced, races.done) == (1, ["N=64"], 1)
    queue.add([])
    assert races.under_way  # the first one was given and is not done


def test_what_is_longer_races_first() -> None:
    world, entries = World(), [entry("slow", "bf16", width) for width in TIMES]
    evidence = Evidence(OPERATOR, TARGET, {e.candidate.id: e for e in entries})
    queue = ScreenQueue([(cast(LoadedOperator, SimpleNamespace(operator=OPERATOR)), evidence)])
    world.compile(entries, "generic")
    world.linked += [e.rendered.symbol for e in entries]
    for where in evidence.workload[:2]:
        world.screen(None, evidence, where, entries)
    jobs = EarlyRaces(cast(DevicePool, world), lambda: False).jobs(queue.settled(), ())
    assert [evidence.workload[n].id for n, _ in jobs] == ["N=64", "N=8"]
