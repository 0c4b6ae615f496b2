"""Times of calls on a CPU, by a monotonic clock.

What a call has changed is put back after it, not before the next, so that what is cold has time to leave the caches.
"""

from __future__ import annotations

import itertools
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import MOST_CALLS, Policy, group_size
from aot_tune.bench.worker.engine import Undo, screen
from aot_tune.bench.worker.loaded_objects import LaunchError, empty_call
from aot_tune.support.processes import resident_bytes

__all__ = ["CandidateTimer", "FrameworkTimer"]

_clock = time.perf_counter_ns
_LONG_NS = 4_000_000
_TRIES = 4


class Sampler:
    """Calls a function with one tuple of arguments after the other, and times groups of calls.

    `restores` undo the calls, one for each tuple. With them, each call is timed by itself, and undone outside its time.

    Raises:
        LaunchError: out of `sample`, when a call does not return 0.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        rotation: Sequence[tuple[Any, ...]],
        restores: Sequence[Undo] = (),
    ) -> None:
        self._function = function
        self._next: Iterator[tuple[Any, ...]] = itertools.cycle(rotation)
        self._restores = itertools.cycle(restores) if restores else None

    def sample(self, calls: int) -> float:
        """Mean ns of `calls` calls. They are made back to back, unless they are undone."""
        batch = list(itertools.islice(self._next, calls))
        if self._restores is not None:
            return self._one_by_one(batch, self._restores) / calls
        function = self._function
        codes = [0] * calls
        begin = _clock()
        for number, arguments in enumerate(batch):
            codes[number] = function(*arguments)
        end = _clock()
        for code in codes:
            if code:
                raise LaunchError(str(code))
        return (end - begin) / calls

    def _one_by_one(self, batch: Sequence[tuple[Any, ...]], restores: Iterator[Undo]) -> int:
        function, clock, spent = self._function, _clock, 0
        for arguments in batch:
            begin = clock()
            code = function(*arguments)
            spent += clock() - begin
            next(restores)()
            if code:
                raise LaunchError(str(code))
        return spent


class Repeater:
    """Calls functions without arguments in turn, and times groups of calls. The results are dropped.

    `restores` undo the calls, one for each function, as those of a `Sampler` do.
    """

    def __init__(self, functions: Sequence[Callable[[], object]], restores: Sequence[Undo] = ()) -> None:
        self._next = itertools.cycle(functions)
        self._restores = itertools.cycle(restores) if restores else None
        # ns that reading the clock takes, which are then in each call's time
        self._reading = min(-_clock() + _clock() for _ in range(32)) if restores else 0

    def sample(self, calls: int) -> float:
        """Mean ns of `calls` calls. They are made back to back, unless they are undone."""
        batch = list(itertools.islice(self._next, calls))
        if self._restores is not None:
            return max(self._one_by_one(batch, self._restores) / calls - self._reading, 0.0)
        begin = _clock()
        for function in batch:
            function()
        return (_clock() - begin) / calls

    def _one_by_one(self, batch: Sequence[Callable[[], object]], restores: Iterator[Undo]) -> int:
        clock, spent = _clock, 0
        for function in batch:
            begin = clock()
            function()
            spent += clock() - begin
            next(restores)()
        return spent


class CandidateTimer:
    """See `Timer`. The time of an empty call is taken off.

    Calls of screens are counted, and the growth of resident memory after the first ones. That is the leak.
    """

    note = ""

    def __init__(
        self,
        policy: Policy,
        launch: Callable[..., int],
        arguments: Sequence[tuple[Any, ...]],
        undo: Sequence[Undo],
    ) -> None:
        self._policy, self._arguments, self._undone = policy, arguments[0], bool(undo)
        self._sampler = Sampler(launch, arguments, undo)
        self.made = 0
        self._after_first, self._resident = 0, 0

    def screen(self, best_ns: float | None) -> messages.Timed:
        """One sample to warm up (one call if calls are long), two that count, more unless both are slow."""

        def take(empty: float) -> list[float]:
            calls, samples = _warm_up(self._sample, self._policy)
            samples += [self._sample(calls) for _ in range(2 - len(samples))]
            sample_ns = sum(samples) / len(samples) * calls
            more = lambda count: [self._sample(calls) for _ in range(count)]  # noqa: E731
            return screen(samples, sample_ns, more, self._policy, best_ns, empty)

        samples, overhead = _beside_empty(take, self._empty_ns)
        return messages.Timed(
            samples=tuple(max(s - overhead, 0.0) for s in samples), overhead=overhead, leak=self._leak()
        )

    def turn(self, calls: int, warm: int, *, clock: bool = False) -> messages.Timed:  # noqa: ARG002
        """The clock of a CPU is not probed."""
        samples, overhead = _beside_empty(
            lambda _empty: [_warm_sample(self._sampler.sample, calls, warm)], self._empty_ns
        )
        return messages.Timed(samples=(max(samples[0] - overhead, 0.0),), overhead=overhead)

    def _sample(self, calls: int) -> float:
        ns = self._sampler.sample(calls)
        self.made += calls
        if not self._resident:
            self._resident, self._after_first = resident_bytes(), self.made
        return ns

    def _leak(self) -> int:
        """Bytes per call by which the process grew, or 0 when the growth is too small to tell."""
        later, grown = self.made - self._after_first, resident_bytes() - self._resident
        return grown // later if later > 0 and grown > 1 << 20 else 0

    def _empty_ns(self) -> float:
        """ns of calling a function that does nothing with such arguments: the least of some samples.

        If calls are undone, these are timed one by one too. Disturbances make an empty call slower. Its time is taken
        off every time of a candidate, so it must not be too long.
        """
        function, arguments = empty_call(self._arguments)
        sampler = Sampler(function, [arguments], [lambda: None] if self._undone else [])
        return min(sampler.sample(32) for _ in range(8))

    def close(self) -> None:
        """It holds nothing."""


class FrameworkTimer:
    """See `Timer`. A framework's functions are timed in turns only."""

    note = ""

    def __init__(self, functions: Sequence[Callable[[], object]], undo: Sequence[Undo]) -> None:
        self._repeater = Repeater(functions, undo)
        self.made = 0

    def screen(self, best_ns: float | None) -> messages.Timed:
        """There is none."""
        raise NotImplementedError

    def turn(self, calls: int, warm: int, *, clock: bool = False) -> messages.Timed:  # noqa: ARG002
        """With the cost of a call."""
        return messages.Timed(samples=(_warm_sample(self._repeater.sample, calls, warm),))

    def close(self) -> None:
        """It holds nothing."""


def _warm_up(sample: Callable[[int], float], policy: Policy) -> tuple[int, list[float]]:
    """How many calls make a sample, and the samples that count already. If a call is long enough, one call is a sample.

    The first call pays for what later ones find ready, and an idle core takes a while to wake. Other programs only make
    calls seem longer, never shorter. So the least time decides how many calls there are. Otherwise a short disturbance
    would give the whole screen too few calls per sample.
    """
    least = sample(1)
    if group_size(least, policy.sample_ns) == 1:
        again = sample(1)
        if group_size(again, policy.sample_ns) == 1:
            return 1, [again]
        least = again
    for most in (8, MOST_CALLS):
        calls = min(group_size(least, policy.sample_ns), most)
        least = min(least, sample(calls))
    return group_size(least, policy.sample_ns), []


def _beside_empty(take: Callable[[float], list[float]], empty: Callable[[], float]) -> tuple[list[float], float]:
    """Samples, and the ns of an empty call, measured before and after them. The lesser counts.

    The speed of some machines changes, as that of virtual ones. This slows down samples and empty calls for a while. If
    a sample is no longer than an empty call, their speeds differed, so samples are taken again. If that repeats, it is
    not the machine's fault. `take` gets the current cost of an empty call.
    """
    for _ in range(_TRIES):
        before = empty()
        samples = take(before)
        overhead = min(before, empty())
        if min(samples) > overhead:
            break
    return samples, overhead


def _warm_sample(sample: Callable[[int], float], calls: int, warm: int) -> float:
    """A sample of a race, after `warm` calls that are not timed.

    It is one during which no other process took a core from a thread of this one, if there is one among three.
    Otherwise it is the last one. Long samples are always disturbed a little. They are taken as they are.
    """
    if warm:
        sample(warm)
    for _ in range(2):
        before = _preemptions()
        ns = sample(calls)
        if _preemptions() == before or ns * calls > _LONG_NS:
            return ns
    return sample(calls)


def _preemptions() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
