"""Races on problems of which all is screened, while others are screened still."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from overlapping import World, entry, everyone

from aot_tune.pipeline.measuring.pool_jobs import PoolJobs
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
