"""Jobs that devices of one model take in turn. No device is idle while there is a job for it."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.support.errors import WorkerError

__all__ = ["Job", "More", "PoolJobs"]

Job = Callable[[Measurer], object]
"""A device's job. If it returns False, it did nothing."""
More = Callable[[], Sequence[tuple[int, Job]]]
"""Gives jobs to an idle device. Any device's thread may ask, one at a time."""

_LOOK = 0.1
"""Seconds after which an idle device looks again: compilers may have finished something."""

_Given = tuple[int, list[Job]]


def _nothing() -> Sequence[tuple[int, Job]]:
    return ()


def _alike(_number: int) -> str:
    return ""


class PoolJobs:
    """Jobs that devices take one after the other: first their own, then free ones, then those of another device.

    Idle devices ask for `more` while another device is at work, because its work may lead to new jobs. A number is on
    one device at a time. `homes` maps a number to the device that has prepared its problem. Among free numbers, a
    device prefers one whose `of` it works on already, because its workers have loaded what it needs; then one whose
    `of` has the fewest devices. `lost` are devices that gave up, and why. The last device never gives up.
    """

    def __init__(
        self,
        members: Sequence[Measurer],
        homes: dict[int, Measurer],
        jobs: Iterable[tuple[int, Job]],
        more: More = _nothing,
        of: Callable[[int], str] = _alike,
    ) -> None:
        self._homes, self._more, self._of = homes, more, of
        self._changed, self._asking = threading.Condition(), threading.Lock()
        self._left, self._failed = len(members), set[int]()
        self.lost: list[tuple[Measurer, WorkerError]] = []
        self._own: dict[int, deque[_Given]] = {id(m): deque() for m in members}
        self._free: deque[_Given] = deque()
        self._busy: set[int] = set()
        self._turns = 0
        self._ended = self._done = False
        self._add(jobs)

    def _add(self, jobs: Iterable[tuple[int, Job]]) -> bool:
        """Add jobs. Returns whether there were any."""
        together: dict[int, list[Job]] = {}
        for number, job in jobs:
            together.setdefault(number, []).append(job)
        for number, mine in together.items():
            home = self._homes.get(number)
            (self._free if home is None else self._own[id(home)]).append((number, mine))
        return bool(together)

    def work(self, member: Measurer) -> None:
        """Do jobs on a device until nothing is left, or until this or another device fails."""
        while not member.ended and (turn := self._next(member)):
            number, jobs, before = turn
            done: list[object] = []
            with self._at_work(member, number):
                try:
                    for job in jobs:
                        if not member.ended:
                            done.append(job(member))
                except WorkerError as error:
                    if member.over or not self._gives_up(member, number, jobs[len(done) :], error):
                        raise
                    return
                if all(one is False for one in done):  # nothing was prepared
                    with self._changed:
                        if before is None:
                            del self._homes[number]
                        else:
                            self._homes[number] = before

    @contextmanager
    def _at_work(self, member: Measurer, number: int) -> Iterator[None]:
        """A device works on a number. If that fails, the others do not wait for more."""
        begun = time.monotonic()
        try:
            yield
        except BaseException:
            self._ended = True
            raise
        finally:
            member.worked(time.monotonic() - begun)
            with self._changed:
                self._busy.discard(number)
                self._turns += 1
                self._changed.notify_all()

    def _gives_up(self, member: Measurer, number: int, jobs: list[Job], error: WorkerError) -> bool:
        """Give the rest of a number's jobs, and all the device's other jobs, to others. Returns whether they can.

        If a number's jobs have failed on another device before, it is not the device's fault.
        """
        with self._changed:
            if self._left == 1 or number in self._failed:
                return False
            self._left -= 1
            self._failed.add(number)
            self.lost.append((member, error))
            self._free.append((number, jobs))
            self._free.extend(self._own[id(member)])
            self._own[id(member)].clear()
            for mine in [n for n, home in self._homes.items() if home is member]:
                del self._homes[mine]
            return True

    def _next(self, member: Measurer) -> tuple[int, list[Job], Measurer | None] | None:
        """The next number, which now belongs to this device, its jobs, and its earlier device. Waits if necessary."""
        while not (self._ended or member.ended):
            with self._changed:
                if turn := self._taken(member):
                    return turn
                if self._done and not self._waits():
                    return None
                turns = self._turns
            if self._asking.acquire(blocking=False):  # otherwise another device is asking
                try:
                    found = self._more()
                except BaseException:
                    self._ended = True
                    raise
                finally:
                    self._asking.release()
                with self._changed:
                    if self._add(found):
                        self._changed.notify_all()
                        continue
                    if turns != self._turns:  # a job that ended meanwhile may have led to new ones
                        continue
                    if not self._busy and not self._waits():
                        self._done = True
                        self._changed.notify_all()
                        return None
            with self._changed:
                self._changed.wait(_LOOK)
        return None

    def _waits(self) -> bool:
        return bool(self._free) or any(self._own.values())

    def _taken(self, member: Measurer) -> tuple[int, list[Job], Measurer | None] | None:
        mine = {self._of(n) for n, home in self._homes.items() if home is member}
        turn = self._first(self._own[id(member)]) or self._picked(mine) or self._from_another(mine)
        if turn is None:
            return None
        number, jobs = turn
        before = self._homes.get(number)
        self._homes[number] = member
        self._busy.add(number)
        return number, jobs, before

    def _first(self, waiting: deque[_Given]) -> _Given | None:
        """Take the first number on which no device is at work."""
        turn = next((given for given in waiting if given[0] not in self._busy), None)
        if turn is not None:
            waiting.remove(turn)
        return turn

    def _from_another(self, mine: set[str]) -> _Given | None:
        """Take what another device would do last. Prefer an `of` that this device works on, then the busiest device."""
        found = [
            (self._of(given[0]) not in mine, -len(own), -place, own, given)
            for own in self._own.values()
            for place, given in enumerate(own)
            if given[0] not in self._busy
        ]
        if not found:
            return None
        *_, own, turn = min(found, key=lambda f: f[:3])
        own.remove(turn)
        return turn

    def _picked(self, mine: set[str]) -> _Given | None:
        """Take a free number."""
        free = [given for given in self._free if given[0] not in self._busy]
        if not free:
            return None
        at = Counter(of for of, _ in {(self._of(n), id(home)) for n, home in self._homes.items()})
        left = Counter(self._of(n) for n, _ in free)

        def rank(given: _Given) -> tuple[bool, int, int]:
            of = self._of(given[0])
            return of not in mine, at[of], -left[of]

        turn = min(free, key=rank)
        self._free.remove(turn)
        return turn
