"""The engine of GPUs: torch's tensors in guarded memory, and times of calls that are recorded in graphs.

A rotation of calls is captured in a graph, and plays of the graph are timed with events. A graph is played at once, so
nothing that a call has changed can be put back before the next call. Instead, each call of a graph has its own copy of
what is read and written, and all copies are written again between plays, outside their time. Otherwise thousands of
calls in a row, each on the results of the last, would drift to infinity.

torch is imported when a session is made. The first request that needs the GPU touches it. Until then, a spare worker
takes nothing from the GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import UNCAPTURED, Check, Device, GpuTiming, Policy, Role
from aot_tune.bench.worker.cuda_memory import (
    ApartMemory,
    EdgeMemory,
    GuardedMemory,
    Truths,
    moved_as,
    tensor_of,
    torch_dtype,
    unequal,
    words,
)
from aot_tune.bench.worker.cuda_stream import (
    CaptureError,
    DeviceStream,
    GpuStream,
    Play,
    Recorded,
    connected,
    one_by_one,
)
from aot_tune.bench.worker.cuda_truth import draw_inputs, exact_values, write_limits
from aot_tune.bench.worker.engine import (
    Call,
    CallSet,
    Engine,
    Expected,
    FaultError,
    Placement,
    Undo,
    UnusableError,
    Want,
    screen,
)
from aot_tune.bench.worker.inputs import Strided
from aot_tune.bench.worker.reference_results import read_limits
from aot_tune.spec import Operator, Tensor

_LEAST_NS = 1_000.0
"""Differences between calls that count as noise."""
_HOST_BYTES = 4 << 30
"""While a candidate runs, the driver takes host memory for what it maps and compiles. The candidate is not charged for
it."""
_SHARES: dict[Role, float] = {"candidate": 0.55, "framework": 0.33}
"""Share of the GPU's memory that a worker may take. Both workers hold buffers at the same time."""
_LEAST = 8
"""The least calls of a graph, if so many are wanted. If there are fewer copies, as of a large cache, calls share
them."""
_BLOCK, _ROWS, _FEW = 4096, 1 << 16, 8
"""Bytes of a block. How many blocks are compared at a time. Few blocks means at most one of so many."""
_LEAST_READ = 64 << 20
"""The least bytes to read to find out how fast the memory is, if the L2 is small."""
_LARGEST = 64 << 20
"""From this size on, many blocks read a tensor at once, and more bytes do not make it faster."""
_Clock = Callable[[], float]
"""Tells a device's clock in MHz, or 0 when nothing does."""
_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of so many bytes."""
_AWAKE = 20
"""A call that was made before is not short if even alone it takes so many times as long as short calls."""


def _put_back(storage: Any, source: Any) -> Undo:
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


class _Probes:
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


class _GraphSampler:
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
        clock: _Clock,
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
            self.note = f"{UNCAPTURED}: {error}; timed on a stream"
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
        return min(_graph_size(call_ns, 1, self._sample_ns, self._rules), max(copies, _LEAST))

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
        sample_ns = call * self._size * self._plays
        return screen(samples, sample_ns, lambda more: self._time(more, warm=False), policy, best_ns)

    def close(self) -> None:
        """Release the graph."""
        self._recorded.close()


def _graph_size(call_ns: float, copies: int, sample_ns: float, rules: GpuTiming) -> int:
    """How many calls a graph holds: each copy equally often, enough short ones, and of others those of one sample."""
    wanted = rules.short_calls if call_ns < rules.short_ns else math.ceil(sample_ns / call_ns)
    return min(-(-max(wanted, 1) // copies), max(rules.most_calls // copies, 1)) * copies


def _measure_empty(engine: DeviceStream, rules: GpuTiming) -> float:
    """ns per node of a graph of kernels that do nothing."""
    call = engine.empty()
    call()  # its kernel may have to be loaded, which a capture does not allow
    recorded = engine.record([call] * rules.empty_calls)
    try:
        return min(engine.time(recorded.play, 5)) / rules.empty_calls
    finally:
        recorded.close()


class _Timer:
    """See `Timer`. Work on another stream is not in the samples. A framework's time has no note and overhead."""

    def __init__(self, engine: CudaEngine, sampler: _GraphSampler, *, framework: bool = False) -> None:
        self._engine, self._sampler, self._framework = engine, sampler, framework

    @property
    def made(self) -> int:
        return self._sampler.made

    def screen(self, best_ns: float | None) -> messages.Timed:
        self._engine.use_streams()
        return self._taken(self._sampler.screen(self._engine.policy, best_ns))

    def turn(self, calls: int, warm: int, *, clock: bool = False) -> messages.Timed:  # noqa: ARG002
        """The sampler knows how many calls make a sample."""
        self._engine.use_streams()
        sample = self._sampler.sample(bool(warm))
        return self._taken([sample], self._engine.probes.clock_mhz() if clock else 0.0)

    def _taken(self, samples: Sequence[float], mhz: float = 0.0) -> messages.Timed:
        if self._framework:
            return messages.Timed(samples=tuple(samples), mhz=mhz)
        return messages.Timed(
            samples=tuple(samples),
            overhead=self._engine.overhead,
            status="suspicious" if self._sampler.idle else "ok",
            reason=self._sampler.note,
            mhz=mhz,
        )

    @property
    def note(self) -> str:
        """Why calls are not in a graph."""
        return self._sampler.note

    def close(self) -> None:
        self._sampler.close()


def make_engine(policy: Policy, role: Role, device: Device) -> CudaEngine:
    """The engine of a worker on a GPU."""
    return CudaEngine(policy, role, device, GpuStream)


class CudaEngine(Engine):
    """See `Engine`. `connect` touches the device. Tests pass another stream."""

    on_host, at_once = False, True
    placements = ("inside",)
    kept_results = 8
    fresh_ns, fresh_calls = 200_000, 16

    def __init__(self, policy: Policy, role: Role, device: Device, connect: Callable[[], DeviceStream]) -> None:
        memory = int(device.identity.get("memory_gib", 8)) << 30
        most = memory // (3 if role == "candidate" else 6)
        super().__init__(policy, policy.memory_bytes + _HOST_BYTES, most, _LEAST_NS)
        self._role, self._device, self._connect = role, device, connect
        self._on_streams = False
        self._workspace: GuardedMemory | None = None
        self._memory = GuardedMemory
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    @cached_property
    def _gpu(self) -> DeviceStream:
        return connected(self._connect, self._device, _SHARES[self._role])

    @property
    def last_cache(self) -> int:
        return int(self._device.identity.get("l2_bytes", 0))

    @property
    def out_of_memory(self) -> tuple[type[Exception], ...]:
        return (torch.OutOfMemoryError,)

    @property
    def stream(self) -> int | None:
        return self._gpu.stream

    @property
    def dlpack(self) -> tuple[int, int]:
        return self._gpu.dlpack

    @contextmanager
    def acting(self, request: messages.Request) -> Iterator[None]:
        """torch's work goes to the stream."""
        gpu = self._gpu
        if not isinstance(request, messages.Turn) or request.resumed:
            self._on_streams = False  # kernels may be launched for the first time, or another process used the device
        with gpu.guard():
            yield
            gpu.check()

    def check(self) -> None:
        self._gpu.check()

    def forget(self) -> None:
        self._gpu.forget()

    def free(self) -> None:
        """What torch keeps would be missing in the other worker."""
        if "_gpu" in self.__dict__:
            self._gpu.free()

    def get_ready(self) -> None:
        _ = self.overhead

    @cached_property
    def overhead(self) -> float:
        """ns of an empty kernel in a graph."""
        self.use_streams()
        return _measure_empty(self._gpu, self.policy.on_gpu)

    def use_streams(self) -> None:
        """Bring the device into the state that it has in programs, before a time is taken."""
        if not self._on_streams:
            self._gpu.use_streams(self.policy.on_gpu.streams)
            self._on_streams = True

    @cached_property
    def probes(self) -> _Probes:
        """What the GPU reveals."""
        return _Probes(self._gpu, self.policy)

    def hopeless_ns(self, best_ns: float) -> float:
        """Single calls, which the host waits for."""
        return 2 * self.policy.screen_stop * best_ns + self.policy.on_gpu.single_ns

    def probe(self, cold: Sequence[Any]) -> tuple[str, str]:
        """See `_Probes.rotation`."""
        return self.probes.rotation(cold, self.last_cache), self.probes.said

    @cached_property
    def edged(self) -> bool:
        """If the driver maps memory."""
        return self._gpu.mapper is not None and self._gpu.mapper.works

    def watch(self) -> None:
        """An allocation for each tensor, without guards. PYTORCH_NO_CUDA_MEMORY_CACHING must be set."""
        self._memory = ApartMemory

    def allocate(self, wants: Sequence[Want], placement: Placement = "inside") -> GuardedMemory:
        """One allocation, or mapped parts."""
        if placement == "end" and self._gpu.mapper is not None:
            return EdgeMemory(self._gpu.mapper, wants)
        return self._memory(self._gpu.device, wants)

    def workspace(self, size: int, placement: Placement) -> GuardedMemory | None:  # noqa: ARG002
        """Made once per size. One candidate after the other uses it."""
        if not size:
            return None
        if self._workspace is None or self._workspace.pieces["workspace"].size != size:
            self._workspace = None
            self._workspace = self.allocate([Want("workspace", size)])
        return self._workspace

    def fill(self, storage: Any, value: int, width: int = 1) -> None:
        """As wide integers, if they fit."""
        wide = words(storage)
        if wide.element_size() < width:
            wide = storage.view(_WHOLE[width])
        pattern = value.to_bytes(width, "little") * (wide.element_size() // width)
        wide.fill_(int.from_bytes(pattern, "little", signed=wide.dtype != torch.uint8))

    def writing(self, pairs: Sequence[tuple[Any, Any]]) -> Undo:

        def write() -> None:
            for storage, source in pairs:
                storage.copy_(source)

        return write

    def clone(self, storage: Any) -> Any:
        return storage.clone()

    def beside(self, storage: Any) -> Any:
        return torch.empty_like(storage)

    def differ(self, one: Any, other: Any) -> Any:
        """As a tensor. Nothing waits for it."""
        return unequal(one, other)

    def places(self, mask: Any) -> Any:
        return mask.nonzero().flatten()

    def answers(self, asked: Sequence[Any]) -> list[float]:
        self._on_streams = False  # other kernels may be launched for the first time
        return torch.stack([a.to(torch.float64) for a in asked]).tolist() if asked else []

    def array(self, tensor: Tensor, strided: Strided, storage: Any) -> Any:
        """torch's tensor. It is a copy if a stride is negative."""
        return tensor_of(strided, storage, torch_dtype(tensor))

    def values(self, tensor: Tensor, array: Any, *, wide: bool) -> Any:  # noqa: ARG002
        return array.to(torch.float32) if wide else array.clone()

    def reverse(self, tensor: Tensor, storage: Any, source: Any) -> bool:
        """Does not look whether they differ, unless there is one element only."""
        dtype = moved_as(torch_dtype(tensor))
        if storage.numel() <= tensor.dtype.itemsize:
            return False
        storage.view(dtype).copy_(source.view(dtype).flip(0))
        return True

    def gap(self, strided: Strided, width: int, storage: Any) -> Any:
        """A mask. A tensor with a negative stride takes the same places as one with a positive stride."""
        mask = torch.ones(strided.extent(), dtype=torch.bool, device=storage.device)
        mask.as_strided(strided.shape, tuple(map(abs, strided.strides))).fill_(False)
        return mask.repeat_interleave(width)

    def draw(self, operator: Operator, check: Check) -> dict[str, Any]:
        return draw_inputs(operator, check, self.policy.seed, self._gpu.device)

    def expected(self, operator: Operator, check: Check, folder: Path, inputs: Mapping[str, Any]) -> list[Expected]:
        """Computed here. Only how far off they may be is in a file."""
        limits, exact = read_limits(folder), exact_values(operator, check, inputs, self._gpu.device)
        present = [t for t in operator.outputs if t.name in exact]
        return [Truths(t, exact.pop(t.name), limits[t.name]) for t in present]

    def write_reference(self, operator: Operator, check: Check, folder: Path) -> str:
        operator = operator.concrete(check.problem.dtypes)
        return write_limits(operator, check, folder, self.policy.seed, self._gpu.device)

    def play(self, batch: Sequence[Call]) -> float:
        """The lesser time of two."""
        try:
            recorded = self._gpu.record(batch)
        except CaptureError:
            recorded = one_by_one(batch)
        try:
            return min(self._gpu.time(recorded.play, 2))
        finally:
            recorded.close()

    def callers(self) -> list[tuple[int | None, Callable[[], AbstractContextManager[Any]]]]:
        """The second has a stream of its own."""
        return self._gpu.callers()

    def burden(self) -> Callable[[], None]:
        return self._gpu.burden()

    def chains(
        self, before: Sequence[tuple[Any, Any]], call: Call, after: Sequence[Sequence[tuple[Any, Any]]]
    ) -> Iterator[tuple[str, Callable[[], None]]]:
        """On the stream, and in a graph if the call can be captured."""
        calls = [self._gpu.copying(before), call, *(self._gpu.copying(pairs, waits=True) for pairs in after)]
        yield "", one_by_one(calls).play
        try:
            recorded = self._gpu.record(calls)
        except CaptureError:
            return
        try:
            yield " in a graph", recorded.play
        finally:
            recorded.close()

    def put_back(self, storage: Any, source: Any) -> Undo:
        return _put_back(storage, source)

    def timer(
        self, sets: Sequence[CallSet], launch: Callable[..., int], arguments: Sequence[tuple[Any, ...]]
    ) -> _Timer:
        self._on_streams = False  # the candidate's first launches
        return self._timer_of([partial(launch, *a) for a in arguments], sets)

    def _timer_of(self, calls: Sequence[Call], sets: Sequence[CallSet], *, framework: bool = False) -> _Timer:
        undo = [s.undo for s in sets] if sets[0].sources else []
        sampler = _GraphSampler(self._gpu, calls, self.policy, self.probes.clock_mhz, framework=framework, undo=undo)
        return _Timer(self, sampler, framework=framework)

    @contextmanager
    def framework(self, check: Check, sets: Sequence[CallSet]) -> Iterator[None]:
        """TF32 is allowed in torch's products if the problem has it."""
        if any(strided.backward() for strided in sets[0].layouts.values()):
            raise UnusableError("torch has no tensors with negative strides")
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = check.problem.attributes.get("math", "") == "tf32"
        try:
            with torch.device(self._gpu.device):
                yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    def handed_on(self, module: ModuleType, tensor: Tensor, strided: Strided, storage: Any) -> Any:  # noqa: ARG002
        """torch's tensor itself."""
        return self.array(tensor, strided, storage)

    def framework_timer(self, functions: Sequence[Callable[[], object]], sets: Sequence[CallSet]) -> _Timer:
        return self._timer_of([_quiet(f) for f in functions], sets, framework=True)


def _quiet(function: Callable[[], object]) -> Call:
    def call() -> int:
        function()
        return 0

    return call
