"""Times of calls on a monotonic clock: grouped when short, rotating through cold tensors, stopped early when slow."""

from __future__ import annotations

import gc
import itertools
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from aot_tune.bench.records import Policy

__all__ = [
    "Repeater",
    "ReturnedError",
    "Sampler",
    "beside_empty",
    "group_size",
    "measure_empty",
    "paired_gain",
    "preemptions",
    "quiet_collector",
    "resident_bytes",
    "screen",
    "spread",
    "steady_rounds",
    "undisturbed",
    "without_drift",
]

Clock = Callable[[], int]
_MOST_CALLS = 4096
_LONG_NS = 4_000_000
_TRIES = 4


class Sampler:
    """Calls a function with one tuple of arguments after the other and times groups of calls.

    Raises:
        ReturnedError: out of `sample`, when a call does not return 0.
    """

    def __init__(self, function: Callable[..., Any], rotation: Sequence[tuple[Any, ...]], clock: Clock) -> None:
        self._function, self._clock = function, clock
        self._next: Iterator[tuple[Any, ...]] = itertools.cycle(rotation)

    def sample(self, calls: int) -> float:
        """Mean ns of `calls` calls, made back to back."""
        batch = list(itertools.islice(self._next, calls))
        function = self._function
        codes = [0] * calls
        begin = self._clock()
        for number, arguments in enumerate(batch):
            codes[number] = function(*arguments)
        end = self._clock()
        for code in codes:
            if code:
                raise ReturnedError(code)
        return (end - begin) / calls


class Repeater:
    """Calls functions of no arguments in turn and times groups of calls; what they return is dropped."""

    def __init__(self, functions: Sequence[Callable[[], object]], clock: Clock) -> None:
        self._clock = clock
        self._next = itertools.cycle(functions)

    def sample(self, calls: int) -> float:
        """Mean ns of `calls` calls, made back to back."""
        batch = list(itertools.islice(self._next, calls))
        begin = self._clock()
        for function in batch:
            function()
        return (self._clock() - begin) / calls


class ReturnedError(Exception):
    """A timed call returned an error."""


def group_size(call_ns: float, sample_ns: float) -> int:
    """Calls that make a sample last `sample_ns`."""
    return min(max(1, round(sample_ns / max(call_ns, 1.0))), _MOST_CALLS)


def screen(
    sample: Callable[[int], float],
    policy: Policy,
    best_ns: float | None,
    have: Sequence[float] = (),
    overhead: float = 0.0,
) -> list[float]:
    """Samples of a screen: one to warm up (a single call of long ones), two that count, more unless both are slow.

    `have` are samples that exist already (calls so long that they were timed while they were verified). What an empty
    call costs is in samples, but not in `best_ns`.
    """
    samples, calls = list(have[:2]), 1
    if len(samples) < 2:
        calls, warm = _warm_up(sample, policy)
        samples += warm[: 2 - len(samples)]
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
    for most in (8, _MOST_CALLS):
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


def measure_empty(
    function: Callable[..., Any], arguments: tuple[Any, ...], clock: Clock = time.perf_counter_ns
) -> float:
    """ns of calling a function that does nothing with such arguments: the least of some samples.

    What disturbs an empty call makes it slower, and what is too much would be taken off every time of a candidate.
    """
    sampler = Sampler(function, [arguments], clock)
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


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def quiet_collector() -> None:
    """Keep Python's garbage collector out of timed loops."""
    gc.collect()
    gc.freeze()
    gc.disable()


def spread(samples: Sequence[float]) -> float:
    """Relative spread that outliers do not move: 1.4826 x the median absolute deviation / the median."""
    middle = statistics.median(samples)
    return 1.4826 * statistics.median(abs(s - middle) for s in samples) / middle if middle else 0.0


def paired_gain(old: Sequence[float], new: Sequence[float]) -> tuple[float, float]:
    """How much faster `new` is than `old` in the same rounds: the median of 1 - new/old, and its standard error.

    The error is robust: 1.2533 x 1.4826 x the median absolute deviation of the ratios / sqrt(rounds).
    """
    ratios = [b / a for a, b in zip(old, new, strict=True)]
    middle = statistics.median(ratios)
    deviation = 1.4826 * statistics.median(abs(r - middle) for r in ratios)
    return 1.0 - middle, 1.2533 * deviation / len(ratios) ** 0.5


def without_drift(rounds: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Times of several runners in the same rounds, less what a round did to all of them, as a clock that changes.

    A round's pace is the median of its times, each over its runner's median; every time is divided by that. Medians
    over rounds of different pace would compare the pace that each runner happened to have in the middle.
    """
    middles = [statistics.median(r) for r in rounds]
    paces = [statistics.median(t / m for t, m in zip(turn, middles, strict=True)) for turn in zip(*rounds, strict=True)]
    return [tuple(t / p for t, p in zip(r, paces, strict=True)) for r in rounds]


def steady_rounds(clocks: Sequence[float], change: float, least: int) -> list[int]:
    """Which rounds to keep by the device's clock in each; a clock of 0 is not known.

    They are those of an unknown clock and those in which it was within the share `change` of the known ones' median;
    where these are fewer than `least`, also those that come nearest to it.
    """
    known = [c for c in clocks if c]
    if not known:
        return list(range(len(clocks)))
    middle = statistics.median_low(known)
    off = [abs(c - middle) / middle if c else 0.0 for c in clocks]
    nearest = sorted(range(len(clocks)), key=lambda i: off[i])
    return sorted(i for place, i in enumerate(nearest) if off[i] <= change or place < least)
