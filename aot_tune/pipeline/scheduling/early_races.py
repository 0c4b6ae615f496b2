"""Races on problems whose screens are complete, while devices still screen others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial

from aot_tune.pipeline.evidence import Entry
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.measuring.measure import Measurer, finalists
from aot_tune.pipeline.measuring.pool_jobs import Job
from aot_tune.pipeline.scheduling.screen_queue import QueuedProblem

__all__ = ["EarlyRaces", "longest_first"]


def longest_first(places: Sequence[QueuedProblem]) -> list[QueuedProblem]:
    """Problems in the order of their races: short ones come last, so that devices end at about the same time."""
    return sorted(places, key=lambda p: (-p.evidence.operator.compulsory_bytes(p.problem), p.number))


class EarlyRaces:
    """Races of a pool. `called_off` says that none may start now. `done` counts those that ended."""

    def __init__(self, pool: DevicePool, called_off: Callable[[], bool]) -> None:
        self._pool, self._called_off = pool, called_off
        self._lock, self._given = threading.Lock(), set[int]()
        self.done = 0

    @property
    def under_way(self) -> bool:
        """Whether a race runs or is about to start."""
        return bool(self._given)

    def jobs(self, settled: Sequence[QueuedProblem], coming: Collection[int]) -> list[tuple[int, Job]]:
        """The races that may start, on problems with no screens left.

        Problems in `coming`, by number, are left out, because something may still be screened there. So are problems
        whose entrants are not compiled and linked.
        """
        places = [p for p in settled if p.number not in coming and p.number not in self._given and self._may_race(p)]
        with self._lock:
            self._given.update(p.number for p in places)
        return [(p.number, partial(self._race, p)) for p in longest_first(places)]

    def _may_race(self, place: QueuedProblem) -> bool:
        screened = place.problem.id in place.evidence.fresh
        entrants = finalists(place.evidence, place.problem) if screened else []
        if not entrants or not all(e.object is not None for e in entrants):
            return False
        return all(map(self._is_linked, entrants)) or self._pool.knows_race(place.loaded, place.problem, entrants)

    def _is_linked(self, entry: Entry) -> bool:
        return entry.object is not None and self._pool.shared.is_linked(entry.object)

    def _race(self, place: QueuedProblem, measurer: Measurer) -> bool:
        raced = not self._called_off()
        if raced:  # if its workers fail, it stays under way: another device takes it over
            measurer.race(place.loaded, place.evidence, place.problem)
        with self._lock:
            self._given.discard(place.number)
            self.done += raced
        return raced
