"""Races on problems of which all is screened, while devices are at the screens of others."""

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
    """Problems in the order of their races: what is short comes last, so that devices end at about the same time."""
    return sorted(places, key=lambda p: (-p.evidence.operator.compulsory_bytes(p.problem), p.number))


class EarlyRaces:
    """Races of a pool; `called_off` says that none is to begin now. `done` counts those that ended."""

    def __init__(self, pool: DevicePool, called_off: Callable[[], bool]) -> None:
        self._pool, self._called_off = pool, called_off
        self._lock, self._given = threading.Lock(), set[int]()
        self.done = 0

    @property
    def under_way(self) -> bool:
        """Whether a race has begun, or is about to."""
        return bool(self._given)

    def jobs(self, settled: Sequence[QueuedProblem], coming: Collection[int]) -> list[tuple[int, Job]]:
        """The races that may begin, of problems on which nothing waits.

        Left out are those of which something may still be screened, by number in `coming`, or whose entrants would have
        to be compiled or linked before.
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
        if raced:  # where that fails with the workers, it is under way still: another device takes it over
            measurer.race(place.loaded, place.evidence, place.problem)
        with self._lock:
            self._given.discard(place.number)
            self.done += raced
        return raced
