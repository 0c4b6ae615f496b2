"""Times of calls on a GPU. A rotation of calls is captured in a graph, and plays of the graph are timed with events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from aot_tune.bench.protocol.measurement_records import GpuTiming, Policy
from aot_tune.bench.worker.cuda.engine import Call, CaptureError, Engine, Play, Recorded
from aot_tune.bench.worker.cuda.restoring import Undo, calls_between, undoing

__all__ = ["Clock", "Sampler", "graph_size", "measure_empty"]

Clock = Callable[[], float]
"""Tells a device's clock in MHz, or 0 when nothing does."""


_AWAKE = 20
"""A call that was made before is not short if even alone it takes so many times as long as short calls."""


class Sampler:
    """Times calls that take turns. All calls are made equally often, so that each meets the same cold caches.

    `recorded` holds the calls. If they are not in a graph, `note` says why. `made` is how many calls there were. Short
    calls are repeated in the graph, and the graph is played until a sample lasts the policy's `sample_ns`. `undo`
    undoes each of the calls, see `restoring`. With it, not all calls may take turns.
    """

    def __init__(
        self,
        engine: Engine,
        calls: Sequence[Call],
        policy: Policy,
        clock: Clock,
        framework: bool = False,
        undo: Sequence[Undo] = (),
    ) -> None:
        self._engine, self._calls, self._clock, self._undo = engine, calls, clock, undo
        self._rules, self._sample_ns = policy.on_gpu, policy.sample_ns
        self.note, self.made = "", 0
        self._framework = framework
        self._plays = self._size = 1
        self._sized = False
        self._span = 0.0
        once = self._once()
        self._size = self._size_for(once)
        self._recorded = self._record()
        if self._rules.short_ns <= once < _AWAKE * self._rules.short_ns:
            self._grow(self._time(1, warm=True)[0])

    @property
    def idle(self) -> bool:
        """Whether the calls left nothing in the graph. Then the time does not cover what they do, if anything."""
        return self._recorded.nodes == 0

    def _record(self) -> Recorded:
        batch = [self._calls[i % len(self._calls)] for i in range(self._size)]
        if self._rules.launch == "stream":
            return self._engine.plain(batch)
        try:
            recorded = self._engine.record(batch, self._framework)
        except CaptureError as error:
            self.note = f"cannot be captured in a CUDA graph: {error}; timed on a stream"
            return self._engine.plain(batch)
        if recorded.nodes == 0:
            self.note = "launches nothing on the stream that it is given"
        return recorded

    def _once(self) -> float:
        """Roughly the ns of a single call."""
        engine, calls = self._engine, self._calls

        def play() -> None:
            engine.plain(calls[:1]).play()

        self.made += 1
        return self._play(play, 1, warm=False)[0]

    def _size_for(self, call_ns: float) -> int:
        """How many calls a graph holds if each takes so many ns."""
        copies = len(self._calls)
        if not self._undo:
            return graph_size(call_ns, copies, self._sample_ns, self._rules)
        return calls_between(graph_size(call_ns, 1, self._sample_ns, self._rules), copies)

    def _play(self, play: Play, count: int, warm: bool) -> list[float]:
        if not self._undo:
            return self._engine.time(play, count, warm)
        return self._engine.time(play, count, warm, undoing(self._undo, self._size))

    def _time(self, count: int, warm: bool) -> list[float]:
        play, plays = self._recorded.play, self._plays
        if self._undo:
            apart = self._play(play, (count + warm) * plays, warm=False)[warm * plays :]
            self.made += (count + warm) * plays * self._size
            self._engine.last_busy = time.monotonic()
            return [sum(apart[i : i + plays]) / (plays * self._size) for i in range(0, len(apart), plays)]

        def several() -> None:
            for _ in range(plays):
                play()

        found = self._play(several, count, warm)
        self.made += (count + warm) * plays * self._size
        self._engine.last_busy = time.monotonic()
        return [f / (plays * self._size) for f in found]

    def _settle(self) -> float:
        """Find how many plays make a sample, and how many ns that takes. Returns ns per call."""
        call = self._time(1, warm=True)[0]
        if not self._sized:
            self._sized = True
            played = call * self._size
            self._plays = min(max(1, math.ceil(self._sample_ns / max(played, 1.0))), self._rules.plays)
            self._span = played * self._plays
        return call

    def _grow(self, call_ns: float) -> None:
        """Record more calls if they are shorter than the single call, which was made on a device that had to wake up.

        Starting a graph takes time too. In a graph of few calls, that is a share of their time.
        """
        size = self._size_for(call_ns)
        if size > self._size:
            self._recorded.close()
            self._size = size
            self._recorded = self._record()

    def _heat_up(self) -> None:
        """Keep a device that was idle busy until its clock is steady, if a probe can tell."""
        rules, begin = self._rules, time.monotonic()
        if begin - self._engine.last_busy < rules.idle_seconds:
            return
        clock, steady, half = self._clock(), False, rules.heat_seconds / 2
        least = begin + rules.heat_seconds
        while (now := time.monotonic()) < least or (not steady and now < begin + rules.heat_most):
            while time.monotonic() < now + half:
                self._time(1, warm=False)
            before, clock = clock, self._clock()
            steady = abs(clock - before) <= rules.clock_change * before

    def sample(self, warm: bool = True) -> float:
        """Mean ns of the calls of one sample."""
        if self._span < 1e9 * self._rules.heat_seconds:  # a longer sample heats the device up itself
            self._heat_up()
        if not self._sized:
            self._settle()
        return self._time(1 + (self._before() if warm else 0), warm=False)[-1]

    def _before(self) -> int:
        """How many samples are played before one that counts.

        Between the turns of a race, while messages come and go, a device idles. So it is cooler than one in use, and
        its power cap acts later. Long calls can reach the cap, so they first load the device for a while.
        """
        load = self._rules.load_before(self._span / (self._plays * self._size))
        return max(1, math.ceil(load / self._span))

    def screen(self, policy: Policy, best_ns: float | None) -> list[float]:
        """Two samples, and more unless both are slow."""
        self._heat_up()
        call = self._settle()
        samples = self._time(2, warm=self._plays > 1)
        if best_ns is not None and min(samples) > policy.screen_stop * best_ns:
            return samples
        one = max(call * self._size * self._plays, 1.0)
        more = min(int(policy.screen_ns / one), policy.screen_samples) - 2
        return samples + self._time(more, warm=False) if more > 0 else samples

    def close(self) -> None:
        """Release the graph."""
        self._recorded.close()


def graph_size(call_ns: float, copies: int, sample_ns: float, rules: GpuTiming) -> int:
    """How many calls a graph holds: each copy equally often, enough short ones, and of others those of one sample."""
    wanted = rules.short_calls if call_ns < rules.short_ns else math.ceil(sample_ns / call_ns)
    return min(-(-max(wanted, 1) // copies), max(rules.most_calls // copies, 1)) * copies


def measure_empty(engine: Engine, rules: GpuTiming) -> float:
    """ns per node of a graph of kernels that do nothing."""
    call = engine.empty()
    call()  # its kernel may have to be loaded, which a capture does not allow
    recorded = engine.record([call] * rules.empty_calls)
    try:
        return min(engine.time(recorded.play, 5)) / rules.empty_calls
    finally:
        recorded.close()
