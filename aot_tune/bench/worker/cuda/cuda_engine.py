"""The engine of GPUs: torch's tensors in guarded memory, and calls that are recorded in graphs.

torch is imported when a session is made. The first request that needs the GPU touches it. Until then, a spare worker
takes nothing from the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check, Device, Policy, Role
from aot_tune.bench.worker.cuda.memory import GuardedMemory, Truths, moved_as, tensor_of, torch_dtype, unequal, words
from aot_tune.bench.worker.cuda.stream import CaptureError, DeviceStream, GpuStream, connected, one_by_one
from aot_tune.bench.worker.cuda.timing import Probes, Sampler, measure_empty, put_back
from aot_tune.bench.worker.cuda.truth import draw_inputs, exact_values, write_limits
from aot_tune.bench.worker.engine import Call, CallSet, Engine, Expected, Placement, Undo, UnusableError, Want
from aot_tune.bench.worker.inputs import Strided
from aot_tune.bench.worker.reference_results import read_limits
from aot_tune.spec import Operator, Tensor

__all__ = ["CudaEngine", "make_engine"]

_LEAST_NS = 1_000.0
"""Differences between calls that count as noise."""
_HOST_BYTES = 4 << 30
"""While a candidate runs, the driver takes host memory for what it maps and compiles. The candidate is not charged for
it."""
_SHARES: dict[Role, float] = {"candidate": 0.55, "framework": 0.33}
"""Share of the GPU's memory that a worker may take. Both workers hold buffers at the same time."""


class _Timer:
    """See `Timer`. Work on another stream may give right results, but its time is not in the samples.

    The time of a framework is without a note and an overhead.
    """

    def __init__(self, engine: CudaEngine, sampler: Sampler, *, framework: bool = False) -> None:
        self._engine, self._sampler, self._framework = engine, sampler, framework

    @property
    def made(self) -> int:
        """How many calls there were."""
        return self._sampler.made

    def screen(self, best_ns: float | None) -> messages.Timed:
        """See `Sampler.screen`."""
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
        """Release the graph."""
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
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    @cached_property
    def _gpu(self) -> DeviceStream:
        return connected(self._connect, self._device, _SHARES[self._role])

    @property
    def last_cache(self) -> int:
        """The L2's bytes."""
        return int(self._device.identity.get("l2_bytes", 0))

    @property
    def out_of_memory(self) -> tuple[type[Exception], ...]:
        """torch's."""
        return (torch.OutOfMemoryError,)

    @property
    def stream(self) -> int | None:
        """CUDA's handle."""
        return self._gpu.stream

    @property
    def dlpack(self) -> tuple[int, int]:
        """Of the GPU."""
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
        """Wait for the stream."""
        self._gpu.check()

    def forget(self) -> None:
        """Clear the last error."""
        self._gpu.forget()

    def free(self) -> None:
        """What torch keeps would be missing in the other worker."""
        if "_gpu" in self.__dict__:
            self._gpu.free()

    def get_ready(self) -> None:
        """Measure the empty kernel."""
        _ = self.overhead

    @cached_property
    def overhead(self) -> float:
        """ns of an empty kernel in a graph."""
        self.use_streams()
        return measure_empty(self._gpu, self.policy.on_gpu)

    def use_streams(self) -> None:
        """Bring the device into the state that it has in programs, before a time is taken."""
        if not self._on_streams:
            self._gpu.use_streams(self.policy.on_gpu.streams)
            self._on_streams = True

    @cached_property
    def probes(self) -> Probes:
        """What the GPU reveals."""
        return Probes(self._gpu, self.policy)

    def hopeless_ns(self, best_ns: float) -> float:
        """Single calls, which the host waits for."""
        return 2 * self.policy.screen_stop * best_ns + self.policy.on_gpu.single_ns

    def probe(self, cold: Sequence[Any]) -> tuple[str, str]:
        """See `Probes.rotation`."""
        return self.probes.rotation(cold, self.last_cache), self.probes.said

    def allocate(self, wants: Sequence[Want], placement: Placement = "inside") -> GuardedMemory:  # noqa: ARG002
        """One allocation."""
        return GuardedMemory(self._gpu.device, wants)

    def workspace(self, size: int, placement: Placement) -> GuardedMemory | None:  # noqa: ARG002
        """Made once per size. One candidate after the other uses it."""
        if not size:
            return None
        if self._workspace is None or self._workspace.pieces["workspace"].size != size:
            self._workspace = None
            self._workspace = self.allocate([Want("workspace", size)])
        return self._workspace

    def fill(self, storage: Any, value: int) -> None:
        """As wide integers, if they fit."""
        wide = words(storage)
        wide.fill_(int.from_bytes(bytes([value]) * wide.element_size(), "little", signed=wide.dtype == torch.int64))

    def writing(self, pairs: Sequence[tuple[Any, Any]]) -> Undo:
        """By torch."""

        def write() -> None:
            for storage, source in pairs:
                storage.copy_(source)

        return write

    def clone(self, storage: Any) -> Any:
        """On the device."""
        return storage.clone()

    def beside(self, storage: Any) -> Any:
        """Anywhere."""
        return torch.empty_like(storage)

    def differ(self, one: Any, other: Any) -> Any:
        """As a tensor. Nothing waits for it."""
        return unequal(one, other)

    def places(self, mask: Any) -> Any:
        """As a tensor."""
        return mask.nonzero().flatten()

    def answers(self, asked: Sequence[Any]) -> list[float]:
        """The device gets all questions at once."""
        self._on_streams = False  # other kernels may be launched for the first time
        return torch.stack([a.to(torch.float64) for a in asked]).tolist() if asked else []

    def array(self, tensor: Tensor, strided: Strided, storage: Any) -> Any:
        """torch's tensor. It is a copy if a stride is negative."""
        return tensor_of(strided, storage, torch_dtype(tensor))

    def values(self, tensor: Tensor, array: Any, *, wide: bool) -> Any:  # noqa: ARG002
        """On the device."""
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
        """See `draw_inputs`."""
        return draw_inputs(operator, check, self.policy.seed, self._gpu.device)

    def expected(self, operator: Operator, check: Check, folder: Path, inputs: Mapping[str, Any]) -> list[Expected]:
        """Computed here. Only how far off they may be is in a file."""
        limits, exact = read_limits(folder), exact_values(operator, check, inputs, self._gpu.device)
        present = [t for t in operator.outputs if t.name in exact]
        return [Truths(t, exact.pop(t.name), limits[t.name]) for t in present]

    def write_reference(self, operator: Operator, check: Check, folder: Path) -> None:
        """See `write_limits`."""
        operator = operator.concrete(check.problem.dtypes)
        write_limits(operator, check, folder, self.policy.seed, self._gpu.device)

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

    def put_back(self, storage: Any, source: Any) -> Undo:
        """See `timing.put_back`."""
        return put_back(storage, source)

    def timer(
        self, sets: Sequence[CallSet], launch: Callable[..., int], arguments: Sequence[tuple[Any, ...]]
    ) -> _Timer:
        """See `Sampler`."""
        self._on_streams = False  # the candidate's first launches
        return self._timer_of([partial(launch, *a) for a in arguments], sets)

    def _timer_of(self, calls: Sequence[Call], sets: Sequence[CallSet], *, framework: bool = False) -> _Timer:
        undo = [s.undo for s in sets] if sets[0].sources else []
        sampler = Sampler(self._gpu, calls, self.policy, self.probes.clock_mhz, framework=framework, undo=undo)
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
        """See `Sampler`."""
        return self._timer_of([_quiet(f) for f in functions], sets, framework=True)


def _quiet(function: Callable[[], object]) -> Call:
    def call() -> int:
        function()
        return 0

    return call
