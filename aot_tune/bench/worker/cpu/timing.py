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
    """Calls a function with one tuple of arguments after the other and times groups of calls.

    `restores` undo the calls, one for each tuple: then each call is timed by itself, and undone outside of its time.

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
        """Mean ns of `calls` calls, made back to back unless they are undone."""
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
    """Calls functions of no arguments in turn and times groups of calls; what they return is dropped.

    `restores` undo the calls, one for each function, as those of a `Sampler` do.
    """

    def __init__(
        self, functions: Sequence[Callable[[], object]], clock: Clock, restores: Sequence[Callable[[], None]] = ()
    ) -> None:
        self._clock = clock
        self._next = itertools.cycle(functions)
        self._restores = itertools.cycle(restores) if restores else None
        # ns of the clock itself, which are in the time of each call then
        self._reading = min(-clock() + clock() for _ in range(32)) if restores else 0

    def sample(self, calls: int) -> float:
        """Mean ns of `calls` calls, made back to back unless they are undone."""
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
    """Samples of a screen: one to warm up (a single call of long ones), two that count, more unless both are slow.

    What an empty call costs is in samples, but not in `best_ns`.
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
    """Calls of a sample, and the samples that count already: one of calls so long that each is a sample.

    The first call pays for what later ones find ready, and an idle core takes a while to wake. Whatever else runs makes
    calls seem longer, never shorter: the least time says how many there must be, or a disturbance of a moment would
    have few calls stand for many in the whole screen.
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
    """A sample during which no other process took a core, if there is one among three; else the last.

    Long samples are always disturbed a little and are taken as they are.
    """
    for _ in range(2):
        before = count()
        found = sample(calls)
        if count() == before or found * calls > _LONG_NS:
            return found
    return sample(calls)


def measure_empty(function: Callable[..., Any], arguments: tuple[Any, ...], *, undone: bool = False) -> float:
    """ns of calling a function that does nothing with such arguments: the least of some samples.

    As calls that are `undone` are timed, one by one, if such calls are.

    What disturbs an empty call makes it slower, and what is too much would be taken off every time of a candidate.
    """
    restores = [lambda: None] if undone else []
    sampler = Sampler(function, [arguments], time.perf_counter_ns, restores)
    return min(sampler.sample(32) for _ in range(8))


def beside_empty(take: Callable[[float], list[float]], empty: Callable[[], float]) -> tuple[list[float], float]:
    """Samples, and the ns of an empty call beside them: the less of those before and after.

    A machine whose speed changes, as that of virtual ones does, makes both slower for a while. Samples no longer than
    an empty call were taken at another speed than that, and are taken again; what stays so is not the machine's fault.
    `take` is told what an empty call costs now.
    """
    for _ in range(_TRIES):
        before = empty()
        samples = take(before)
        overhead = min(before, empty())
        if min(samples) > overhead:
            break
    return samples, overhead


def warm_sample(sample: Callable[[int], float], calls: int, warm: int) -> float:
    """A sample of a race, see `undisturbed`, after so many calls that are not timed."""
    if warm:
        sample(warm)
    return undisturbed(sample, calls)
