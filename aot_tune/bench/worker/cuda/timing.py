"""Times of calls on a GPU. A rotation of calls is captured in a graph, and plays of the graph are timed with events.

A graph is played at once, so nothing that a call has changed can be put back before the next call. Instead, each call
of a graph has its own copy of what is read and written, and all copies are written again between plays, outside their
time. Otherwise thousands of calls in a row, each on the results of the last, would drift to infinity.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aot_tune.bench.protocol.measurement_records import GpuTiming, Policy
from aot_tune.bench.worker.cuda.stream import CaptureError, DeviceStream, Play, Recorded, one_by_one
from aot_tune.bench.worker.engine import Call, FaultError, Undo, screen

__all__ = [
    "Clock",
    "Probes",
    "Sampler",
    "measure_empty",
    "put_back",
]

_LEAST = 8
"""The least calls of a graph, if so many are wanted. If there are fewer copies, as of a large cache, calls share
them."""
_BLOCK, _ROWS, _FEW = 4096, 1 << 16, 8
"""Bytes of a block. How many blocks are compared at a time. Few blocks means at most one of so many."""
_LEAST_READ = 64 << 20
"""The least bytes to read to find out how fast the memory is, if the L2 is small."""
_LARGEST = 64 << 20
"""From this size on, many blocks read a tensor at once, and more bytes do not make it faster."""
Clock = Callable[[], float]
"""Tells a device's clock in MHz, or 0 when nothing does."""
_AWAKE = 20
"""A call that was made before is not short if even alone it takes so many times as long as short calls."""


def _calls_between(wanted: int, copies: int) -> int:
    """How many calls a graph holds if so many are `wanted`: one for each copy, or more if there are few copies."""
    return min(wanted, max(copies, _LEAST))


def put_back(storage: Any, source: Any) -> Undo:
    """A function that writes again what a call has changed of a storage: its blocks if they are few, or else all."""
    size = storage.numel() // _BLOCK * _BLOCK
    wide = torch.int64 if storage.storage_offset() % 8 == source.storage_offset() % 8 == 0 else torch.uint8
    rows, held = (s[:size].view(-1, _BLOCK).view(wide) for s in (storage, source))
    differing = [(rows[i : i + _ROWS] != held[i : i + _ROWS]).any(1) for i in range(0, rows.shape[0], _ROWS)]
    changed = torch.cat(differing).nonzero().flatten() if differing else None
    if changed is None or changed.numel() > rows.shape[0] // _FEW:

        def write_all() -> None:
            storage.copy_(source)

        return write_all
    blocks = held[changed]

    def undo() -> None:
        rows.index_copy_(0, changed, blocks)
        storage[size:].copy_(source[size:])

    return undo


class Probes:
    """What a GPU reveals during measurements: the clock it runs at, and whether cold tensors are cold.

    A probe that fails costs no measurement. It says so once, and is not tried again. `said` is why a probe does not
    work, to be logged, and empty while all do.
    """

    def __init__(self, engine: DeviceStream, policy: Policy) -> None:
        self._engine, self._policy = engine, policy
        self._memory: dict[int, float] = {}
        self._failed: set[str] = set()
        self.said = ""

    def clock_mhz(self) -> float:
        """The multiprocessors' clock now, or 0 when nothing tells."""
        cycles = self._policy.on_gpu.probe_cycles
        return (cycles and self._try("clock", lambda: self._engine.clock_mhz(cycles))) or 0.0

    def rotation(self, cold: Sequence[Any], last_cache: int) -> str:
        """What is wrong with a rotation of the storages of cold tensors. Empty when they are cold.

        They are not cold if they do not fill the L2 as often as the policy wants, or if the same kernel reads them
        faster than memory. `last_cache` is the L2's bytes.
        """
        held, wanted = sum(int(c.numel()) for c in cold), self._policy.cold_factor * last_cache
        if not cold:
            return ""
        if not last_cache:
            return "not known to be cold: nothing tells the size of the L2"
        if held < wanted:
            return (
                f"not all cold: the copies of cold tensors hold only {_mib(held)} of the {_mib(wanted)} that are wanted"
            )
        return self._try("read", lambda: self._warm(cold, wanted)) or ""

    def _warm(self, cold: Sequence[Any], wanted: float) -> str:
        """What is wrong if the copies are read faster than equally large tensors that hold as many bytes of memory."""
        size = min(max(int(c.numel()) for c in cold), _LARGEST)
        rate = self._engine.read_rate(cold)
        for again in (False, True):
            if rate and (again or size not in self._memory):
                self._memory[size] = max(self._memory.get(size, 0.0), self._read_memory(size, wanted))
            if rate <= self._policy.on_gpu.read_limit * self._memory.get(size, 0.0):
                return ""
        return (
            f"not cold: a read probe of the copies of cold tensors ran at {rate:.0f} GB/s, "
            f"memory at {self._memory[size]:.0f} GB/s"
        )

    def _read_memory(self, size: int, wanted: float) -> float:
        """Bytes per ns at which tensors of `size` bytes are read. There are so many of them that no cache helps."""
        count = -(-max(int(2 * wanted), _LEAST_READ) // size)
        memory: Any = torch.zeros(count * size, dtype=torch.uint8, device=self._engine.device)
        try:
            return self._engine.read_rate(memory.split(size))
        finally:
            del memory
            self._engine.free()

    def _try(self, name: str, probe: Callable[[], Any]) -> Any:
        """What a probe tells, or None when it has failed once. A fault of the device is raised."""
        if name in self._failed:
            return None
        try:
            self._engine.forget()  # what a candidate left behind is no error of the probe
            return probe()
        except FaultError:
            raise
        except Exception as error:  # any objection of a version of torch
            self._engine.forget()
            self._failed.add(name)
            first = str(error).partition("\n")[0]
            self.said = f"the {name} probe of the GPU does not work here: {type(error).__name__}: {first}"
            return None


def _mib(size: float) -> str:
    return f"{size / (1 << 20):.1f} MiB"


class Sampler:
    """Times calls that take turns. All calls are made equally often, so that each meets the same cold caches.

    `recorded` holds the calls. If they are not in a graph, `note` says why. `made` is how many calls there were. Short
    calls are repeated in the graph, and the graph is played until a sample lasts the policy's `sample_ns`. `undo`
    undoes each of the calls, see the module. With it, not all calls may take turns.
    """

    def __init__(
        self,
        engine: DeviceStream,
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
            return one_by_one(batch)
        try:
            recorded = self._engine.record(batch, self._framework)
        except CaptureError as error:
            self.note = f"cannot be captured in a CUDA graph: {error}; timed on a stream"
            return one_by_one(batch)
        if recorded.nodes == 0:
            self.note = "launches nothing on the stream that it is given"
        return recorded

    def _once(self) -> float:
        """Roughly the ns of a single call."""
        self.made += 1
        return self._play(one_by_one(self._calls[:1]).play, 1, warm=False)[0]

    def _size_for(self, call_ns: float) -> int:
        """How many calls a graph holds if each takes so many ns."""
        copies = len(self._calls)
        if not self._undo:
            return _graph_size(call_ns, copies, self._sample_ns, self._rules)
        return _calls_between(_graph_size(call_ns, 1, self._sample_ns, self._rules), copies)

    def _play(self, play: Play, count: int, warm: bool) -> list[float]:
        if not self._undo:
            return self._engine.time(play, count, warm)
        return self._engine.time(play, count, warm, self._undo_calls)

    def _undo_calls(self) -> None:
        """What to do before a graph of so many calls."""
        for undo in self._undo[: self._size]:
            undo()

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

        times = self._play(several, count, warm)
        self.made += (count + warm) * plays * self._size
        self._engine.last_busy = time.monotonic()
        return [f / (plays * self._size) for f in times]

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
        sample_ns = max(call * self._size * self._plays, 1.0)
        return screen(samples, sample_ns, lambda more: self._time(more, warm=False), policy, best_ns)

    def close(self) -> None:
        """Release the graph."""
        self._recorded.close()


def _graph_size(call_ns: float, copies: int, sample_ns: float, rules: GpuTiming) -> int:
    """How many calls a graph holds: each copy equally often, enough short ones, and of others those of one sample."""
    wanted = rules.short_calls if call_ns < rules.short_ns else math.ceil(sample_ns / call_ns)
    return min(-(-max(wanted, 1) // copies), max(rules.most_calls // copies, 1)) * copies


def measure_empty(engine: DeviceStream, rules: GpuTiming) -> float:
    """ns per node of a graph of kernels that do nothing."""
    call = engine.empty()
    call()  # its kernel may have to be loaded, which a capture does not allow
    recorded = engine.record([call] * rules.empty_calls)
    try:
        return min(engine.time(recorded.play, 5)) / rules.empty_calls
    finally:
        recorded.close()
