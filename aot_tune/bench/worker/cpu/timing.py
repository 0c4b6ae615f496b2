"""Times of calls on a monotonic clock: grouped when short, rotating through cold tensors, stopped early when slow."""

from __future__ import annotations

import itertools
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aot_tune.bench.protocol.measurement_records import MOST_CALLS, Policy, group_size
from aot_tune.bench.worker.loaded_objects import LaunchError

__all__ = [
    "Repeater",
    "Sampler",
    "beside_empty",
    "measure_empty",
    "preemptions",
    "screen",
    "undisturbed",
    "warm_sample",
]

Clock = Callable[[], int]
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
        clock: Clock,
        restores: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._function, self._clock = function, clock
        self._next: Iterator[tuple[Any, ...]] = itertools.cycle(rotation)
        self._restores = itertools.cycle(restores) if restores else None

    def sample(self, calls: int) -> float:
        """Mean ns of `calls` calls. They are made back to back, unless they are undone."""
        batch = list(itertools.islice(self._next, calls))
        if self._restores is not None:
            return self._one_by_one(batch, self._restores) / calls
        function = self._function
        codes = [0] * calls
        begin = self._clock()
        for number, arguments in enumerate(batch):
            codes[number] = function(*arguments)
        end = self._clock()
        for code in codes:
            if code:
                raise LaunchError(str(code))
        return (end - begin) / calls

    def _one_by_one(self, batch: Sequence[tuple[Any, ...]], restores: Iterator[Callable[[], None]]) -> int:
        function, clock, spent = self._function, self._clock, 0
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

    def __init__(
        self, functions: Sequence[Callable[[], object]], clock: Clock, restores: Sequence[Callable[[], None]] = ()
    ) -> None:
        self._clock = clock
        self._next = itertools.cycle(functions)
        self._restores = itertools.cycle(restores) if restores else None
        # ns that reading the clock takes, which are then in each call's time
        self._reading = min(-clock() + clock() for _ in range(32)) if restores else 0

    def sample(self, calls: int) -> float:
        """Mean ns of `calls` calls. They are made back to back, unless they are undone."""
        batch = list(itertools.islice(self._next, calls))
        if self._restores is not None:
            return max(self._one_by_one(batch, self._restores) / calls - self._reading, 0.0)
        begin = self._clock()
        for function in batch:
            function()
        return (self._clock() - begin) / calls

    def _one_by_one(self, batch: Sequence[Callable[[], object]], restores: Iterator[Callable[[], None]]) -> int:
        clock, spent = self._clock, 0
        for function in batch:
            begin = clock()
            function()
            spent += clock() - begin
            next(restores)()
        return spent


def screen(sample: Callable[[int], float], policy: Policy, best_ns: float | None, overhead: float = 0.0) -> list[float]:
    """Samples of a screen: one to warm up (one call if calls are long), two that count, more unless both are slow.

    Samples include the cost of an empty call, but `best_ns` does not.
    """
    calls, samples = _warm_up(sample, policy)
    samples += [sample(calls) for _ in range(2 - len(samples))]
    if best_ns is not None and min(samples) - overhead > policy.screen_stop * best_ns:
        return samples
    spent = sum(samples) * calls
    while spent < policy.screen_ns and len(samples) < policy.screen_samples:
        samples.append(sample(calls))
        spent += samples[-1] * calls
    return samples


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


def preemptions() -> int:
    """How often another process took a core from a thread of this one."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def undisturbed(sample: Callable[[int], float], calls: int, count: Callable[[], int] = preemptions) -> float:
    """A sample during which no other process took a core, if there is one among three. Otherwise it is the last one.

    Long samples are always disturbed a little. They are taken as they are.
    """
    for _ in range(2):
        before = count()
        found = sample(calls)
        if count() == before or found * calls > _LONG_NS:
            return found
    return sample(calls)


def measure_empty(function: Callable[..., Any], arguments: tuple[Any, ...], *, undone: bool = False) -> float:
    """ns of calling a function that does nothing with such arguments: the least of some samples.

    With `undone`, calls are timed one by one, like calls that are undone.

    Disturbances make an empty call slower. Its time is taken off every time of a candidate, so it must not be too long.
    """
    restores = [lambda: None] if undone else []
    sampler = Sampler(function, [arguments], time.perf_counter_ns, restores)
    return min(sampler.sample(32) for _ in range(8))


def beside_empty(take: Callable[[float], list[float]], empty: Callable[[], float]) -> tuple[list[float], float]:
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


def warm_sample(sample: Callable[[int], float], calls: int, warm: int) -> float:
    """A sample of a race, see `undisturbed`, after `warm` calls that are not timed."""
    if warm:
        sample(warm)
    return undisturbed(sample, calls)
