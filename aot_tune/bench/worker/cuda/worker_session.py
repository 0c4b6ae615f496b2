"""The worker's side of the CUDA family.

torch is imported when a session is made. The first request that needs the GPU touches it. Until then, a spare worker
takes nothing from the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Device, Policy, Role
from aot_tune.bench.worker.cuda.engine import Call, Engine, FaultError, GpuEngine, connected, last_word
from aot_tune.bench.worker.cuda.state import CallSet, ProblemState, undo_of
from aot_tune.bench.worker.cuda.timing import Clock, Probes, Sampler, measure_empty
from aot_tune.bench.worker.cuda.truth import write_limits
from aot_tune.bench.worker.cuda.verify import Caller, FreshCalls, GpuAttempt, Workspaces, inspect, plan
from aot_tune.bench.worker.inputs import call_of
from aot_tune.bench.worker.loaded_objects import Loaded
from aot_tune.bench.worker.session_of_family import (
    Emit,
    PreparedBaseline,
    UnusableError,
    WorkerSession,
    baseline_of,
    progress,
)
from aot_tune.bench.worker.verification import GARBAGE, Bits, Trial
from aot_tune.spec import Operator

__all__ = ["CudaSession", "make_session", "prepare_baseline"]

_KEPT_RESULTS = 8
"""The right outputs of so many candidates are kept, to compare with after timed calls."""
_LEAST_NS = 1_000.0
"""Differences between calls that count as noise."""
_HOST_BYTES = 4 << 30
"""While a candidate runs, the driver takes host memory for what it maps and compiles. The candidate is not charged for
it."""
_SHARES: dict[Role, float] = {"candidate": 0.55, "framework": 0.33}
"""Share of the GPU's memory that a worker may take. Both workers hold buffers at the same time."""


def prepare_baseline(engine: Engine, state: ProblemState, name: str, clock: Clock) -> PreparedBaseline:
    """Import what a baseline requires, hand it the problem's tensors, and run it once.

    Raises:
        UnusableError: when it cannot run.
    """
    operator, sets = state.operator, state.rotation()
    if any(place.backward() for place in sets[0].layouts.values()):
        raise UnusableError("torch has no tensors with negative strides")
    baseline, module = baseline_of(operator, name)
    calls: list[Call] = []
    with _math(state.check.problem.attributes.get("math", "")), torch.device(engine.device):
        for one in sets:
            tensors = {t.name: one.tensor(t) for t in operator.tensors if t.name in one.layouts}
            calls.append(_call(baseline.prepare(module, call_of(operator, state.check, tensors))))
        sets[0].poison()
        for _ in range(2):  # in their first call, frameworks allocate, choose and compile
            sets[0].undo()
            calls[0]()
        engine.check()
        error, note = _judge(state)
        sampler = Sampler(engine, calls, state.policy, clock, framework=True, undo=undo_of(sets))
    notes = "; ".join(n for n in (note, sampler.note) if n)
    return PreparedBaseline(lambda _calls, warm: sampler.sample(bool(warm)), error, notes, sampler.close)


def _call(function: Callable[[], object]) -> Call:
    def call() -> int:
        function()
        return 0

    return call


def _judge(state: ProblemState) -> tuple[float, str]:
    first, worst, note = state.rotation()[0], 0.0, ""
    for expected in state.expected.values():
        got = first.tensor(expected.tensor)
        fault, error = "", float(expected.worst(got))
        if not error <= 1.0:
            fault, error = expected.judge(got)
        worst, note = max(worst, error), note or fault
    return worst, note


@contextmanager
def _math(mode: str) -> Iterator[None]:
    """Allow TF32 in torch's products if the problem does."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def make_session(policy: Policy, role: Role, device: Device) -> CudaSession:
    """The session of a worker on a GPU."""
    return CudaSession(policy, role, device, GpuEngine)


class _Ready(NamedTuple):
    """A candidate on a problem: its calls, and what times them."""

    runner: Caller
    sampler: Sampler

    @property
    def calls(self) -> CallSet:
        """The tensors of the first call."""
        return self.runner.first

    @property
    def made(self) -> int:
        """How many calls there were."""
        return self.sampler.made

    def first_call(self) -> None:
        """Poison the outputs, and make a call that is not timed."""
        self.runner.run(GARBAGE[0])

    def settle(self) -> None:
        """A call whose results are checked, because timed calls may have used the results of others."""
        if self.calls.sources:
            self.runner.run(GARBAGE[1])

    def close(self) -> None:
        """Release the graph."""
        self.sampler.close()


class CudaSession(WorkerSession[ProblemState, _Ready]):
    """See `WorkerSession`. `connect` touches the device. Tests pass another engine."""

    def __init__(self, policy: Policy, role: Role, device: Device, connect: Callable[[], Engine]) -> None:
        memory = int(device.identity.get("memory_gib", 8)) << 30
        most = memory // (3 if role == "candidate" else 6)
        super().__init__(policy, role, policy.memory_bytes + _HOST_BYTES, most, _LEAST_NS)
        self._device, self._connect = device, connect
        self._runs: dict[tuple[str, str], tuple[float, ...]] = {}
        self._on_streams = False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    def handle(self, request: messages.Request, emit: Emit) -> messages.Reply:
        """Answer one request. If the device is at fault, this is the worker's last answer."""
        action = self._actions[type(request)]
        if isinstance(request, (messages.Ping, messages.Work)):
            return action(request, emit)
        said = ""
        try:
            for _ in range(2):
                try:
                    return self._act(action, request, emit)
                except torch.OutOfMemoryError as error:
                    said = str(error).partition("\n")[0]
                self.clean()  # only now, because the error's frames held what they had allocated
            return messages.Failure(kind="OutOfMemoryError", reason=said, status="oom")
        except FaultError as fault:
            return last_word(fault)
        except Exception:  # whatever the error was, a fault of the device matters more
            try:
                self._engine.check()
            except FaultError as fault:
                return last_word(fault)
            raise

    def _act(
        self, action: Callable[[Any, Emit], messages.Reply], request: messages.Request, emit: Emit
    ) -> messages.Reply:
        engine = self._engine
        if not isinstance(request, messages.Turn):
            self._on_streams = False  # kernels may be launched for the first time
        with engine.guard():
            reply = action(request, emit)
            engine.check()
        return reply

    def clean(self) -> None:
        """Lift the memory limit after a failure, and release what is not in use."""
        super().clean()
        for ready in self._ready.values():
            ready.close()
        self._ready.clear()
        self._accepted.clear()
        for state in self._states.values():
            state.close()
        if "_engine" in self.__dict__:
            self._engine.free()

    @cached_property
    def _engine(self) -> Engine:
        return connected(self._connect, self._device, _SHARES[self._role])

    @cached_property
    def _workspaces(self) -> Workspaces:
        return Workspaces(self._engine, self._policy)

    @cached_property
    def _overhead(self) -> float:
        self._use_streams()
        return measure_empty(self._engine, self._policy.on_gpu)

    def _use_streams(self) -> None:
        """Bring the device into the state that it has in programs, before a time is taken."""
        if not self._on_streams:
            self._engine.use_streams(self._policy.on_gpu.streams)
            self._on_streams = True

    @cached_property
    def _probes(self) -> Probes:
        return Probes(self._engine, self._policy)

    @property
    def _last_cache(self) -> int:
        return int(self._device.identity.get("l2_bytes", 0))

    def _make_state(self, operator: Operator, work: messages.Work) -> ProblemState:
        return ProblemState(self._engine, operator, work.check, Path(work.folder), self._policy, self._last_cache)

    def _fill(self, state: ProblemState, quick: bool) -> None:  # noqa: ARG002
        if self._role == "candidate":
            state.exact()
        _ = state.expected

    def _prepare(self, request: messages.Prepare, emit: Emit) -> messages.Reply:
        super()._prepare(request, emit)
        cold = self._state(request.key).cold() if request.probe else ()
        return messages.Done(remark=self._probes.rotation(cold, self._last_cache), log=self._probes.said)

    def _write_reference(self, operator: Operator, request: messages.Reference) -> None:
        operator = operator.concrete(request.check.problem.dtypes)
        write_limits(operator, request.check, Path(request.folder), self._policy.seed, self._engine.device)

    def _load(self, request: messages.Load, emit: Emit) -> messages.Reply:
        emit(progress("load"))
        reply = super()._load(request, emit)
        if isinstance(reply, messages.Failure):
            self._engine.forget()
        return reply

    def _open(self, request: messages.Load) -> Loaded:
        loaded = super()._open(request)
        loaded.preload()
        return loaded

    def _unload(self, request: messages.Unload, emit: Emit) -> messages.Reply:
        for pair in [p for p in self._runs if p[0] == request.handle]:
            del self._runs[pair]
        return super()._unload(request, emit)

    def _attempt(self, loaded: Loaded, state: ProblemState) -> GpuAttempt:
        return GpuAttempt(self._engine, loaded, self._workspaces, state)

    def _plan(self, state: ProblemState, request: messages.Verify) -> list[Trial]:
        return plan(state, repeat=len(request.keys) == 1 and not request.quick)

    def _accept(self, handle: str, key: str, runs: tuple[float, ...], bits: Bits) -> None:
        super()._accept(handle, key, runs, bits)
        self._runs[handle, key] = runs
        self._accepted.move_to_end((handle, key))
        while len(self._accepted) > _KEPT_RESULTS:
            self._accepted.popitem(last=False)

    def _make_ready(self, loaded: Loaded, state: ProblemState) -> _Ready:
        sets = state.rotation()
        runner = Caller(self._engine, loaded, self._workspaces, sets)
        self._on_streams = False  # the candidate's first launches
        sampler = Sampler(self._engine, runner.calls, self._policy, self._probes.clock_mhz, undo=undo_of(sets))
        return _Ready(runner, sampler)

    def _bench(self, request: messages.Screen, emit: Emit) -> messages.Reply:
        runs = self._runs.pop((request.handle, request.key), ())
        hopeless = 2 * self._policy.screen_stop * (request.best_ns or math.inf) + self._policy.on_gpu.single_ns
        if len(runs) > 1 and min(runs) > hopeless:  # the verified calls have told the time well enough
            self._accepted.pop((request.handle, request.key), None)
            return messages.Timed(samples=runs)
        return super()._bench(request, emit)

    def _get_ready_to_time(self) -> None:
        _ = self._overhead

    def _take_screen(self, ready: _Ready, best_ns: float | None) -> messages.Timed:
        self._use_streams()
        return self._taken(ready.sampler, ready.sampler.screen(self._policy, best_ns))

    def _taken(self, sampler: Sampler, samples: Sequence[float], mhz: float = 0.0) -> messages.Timed:
        """Samples. Work on another stream may give right results, but its time is not in them."""
        return messages.Timed(
            samples=tuple(samples),
            overhead=self._overhead,
            status="suspicious" if sampler.idle else "ok",
            reason=sampler.note,
            mhz=mhz,
        )

    def _take_turn(self, ready: _Ready, request: messages.Turn) -> messages.Timed:
        self._use_streams()
        sample = ready.sampler.sample(bool(request.warm))
        return self._taken(ready.sampler, [sample], self._probes.clock_mhz() if request.clock else 0.0)

    def _fresh_calls(self, ready: _Ready, state: ProblemState, call_ns: float) -> FreshCalls:  # noqa: ARG002
        return FreshCalls(self._engine, ready.runner.calls[0], ready.calls, call_ns)

    def _fault(self, ready: _Ready, state: ProblemState, bits: Bits) -> str:
        self._on_streams = False
        fault, _ = inspect(state, ready.calls, ready.runner.workspace, bits)
        if fault:
            ready.calls.restore()
            if ready.runner.workspace is not None:
                ready.runner.workspace.heal()
        return fault

    def _survey_fault(self, ready: _Ready, state: ProblemState, compared: Callable[[], str]) -> str:  # noqa: ARG002
        calls = ready.calls
        fault = next((calls.describe(name) for name, written in calls.changed() if bool(written)), "") or compared()
        if fault:
            calls.restore()
        return fault

    def _prepare_baseline(self, request: messages.PrepareBaseline) -> PreparedBaseline:
        self._warm([request.key], quick=True)
        return prepare_baseline(self._engine, self._state(request.key), request.name, self._probes.clock_mhz)

    def _turn(self, request: messages.Turn, emit: Emit) -> messages.Reply:
        self._on_streams &= not request.resumed
        return super()._turn(request, emit)

    def _time_baseline(self, baseline: PreparedBaseline, request: messages.Turn) -> messages.Timed:
        self._use_streams()
        sample = baseline.sample(request.calls, request.warm)
        return messages.Timed(samples=(sample,), mhz=self._probes.clock_mhz() if request.clock else 0.0)
