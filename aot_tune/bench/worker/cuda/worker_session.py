"""The worker's side of the CUDA family: how a candidate is run, judged and timed on a GPU.

torch is imported when a session is made. The first request that needs the GPU touches it. Until then, a spare worker
takes nothing from the GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Device, Policy, Role
from aot_tune.bench.worker.cuda.engine import (
    Arena,
    Call,
    CaptureError,
    Engine,
    FaultError,
    GpuEngine,
    Recorded,
    Want,
    connected,
    last_word,
    one_by_one,
)
from aot_tune.bench.worker.cuda.state import CallSet, ProblemState, undo_of
from aot_tune.bench.worker.cuda.timing import Clock, Probes, Sampler, Undo, measure_empty, put_back
from aot_tune.bench.worker.cuda.truth import write_limits
from aot_tune.bench.worker.honesty import exchangeable
from aot_tune.bench.worker.inputs import call_of
from aot_tune.bench.worker.loaded_objects import LaunchError, Loaded, Memory
from aot_tune.bench.worker.session_of_family import (
    Emit,
    PreparedBaseline,
    UnusableError,
    WorkerSession,
    baseline_of,
    progress,
)
from aot_tune.bench.worker.verification import GARBAGE, Bits, Trial, TrialResult, aliased, allowed_workspace
from aot_tune.spec import Operator

__all__ = ["CudaSession", "make_session"]

_SAMPLE_NS, _MOST = 200_000, 16
"""ns of the calls of a play that tells whether a candidate is honest, and the most of them."""
_KEPT_RESULTS = 8
"""The right outputs of so many candidates are kept, to compare with after timed calls."""
_LEAST_NS = 1_000.0
"""Differences between calls that count as noise."""
_HOST_BYTES = 4 << 30
"""While a candidate runs, the driver takes host memory for what it maps and compiles. The candidate is not charged for
it."""
_SHARES: dict[Role, float] = {"candidate": 0.55, "framework": 0.33}
"""Share of the GPU's memory that a worker may take. Both workers hold buffers at the same time."""


class _FreshCalls:
    """A candidate on one call set. The outputs of the set hold the right results for its inputs.

    Fresh and repeated calls write to the same places before each call, so that caches are in the same state. Only the
    contents differ.

    Args:
        engine: of the device.
        call: the candidate's call on the set.
        calls: the call set.
        call_ns: roughly the time of a call.
    """

    def __init__(self, engine: Engine, call: Call, calls: CallSet, call_ns: float) -> None:
        self._engine, self._call, self._calls = engine, call, calls
        self._count = min(max(2 * round(_SAMPLE_NS / max(call_ns, 1.0) / 2), 2), _MOST)
        self._outputs = [s for t in calls.made() if (s := calls.storages[t.name]).numel()]
        self._results = [s.clone() for s in self._outputs]
        self._poison = [torch.full_like(s, 0xFF) for s in self._outputs]
        self._inputs = [t for t in exchangeable(calls.operator, calls.inputs()) if calls.storages[t.name].numel()]
        self._undo = [put_back(calls.storages[name], source) for name, source in calls.sources.items()]
        self._places = np.random.default_rng()

    def play(self, fresh: bool) -> float:
        """ns of a call and of the work before it. Afterwards the inputs are as they were.

        Raises:
            FaultError: when a call spoils the context.
            LaunchError: when one returns an error.
        """
        recorded = self._record(fresh)
        try:
            return min(self._engine.time(recorded.play, 2)) / self._count
        finally:
            recorded.close()

    def _record(self, fresh: bool) -> Recorded:
        sources = self._poison if fresh else self._results
        copies = list(zip(self._outputs, sources, strict=True))
        changes = self._changes(fresh)
        batch: list[Call] = []
        for number in range(self._count):
            batch += [partial(_copy, copies, self._undo), partial(_change, changes, number & 1), self._call]
        try:
            return self._engine.record(batch)
        except CaptureError:
            return one_by_one(batch)

    def _changes(self, fresh: bool) -> list[tuple[Any, tuple[Any, Any]]]:
        """For one element of each input: its bytes, and what to write there in turn (another element, then its own)."""
        changes = []
        for tensor in self._inputs:
            storage, width = self._calls.storages[tensor.name], tensor.dtype.itemsize
            one, other = self._places.integers(0, storage.numel() // width, 2).tolist()
            held = self._calls.sources.get(tensor.name, storage)
            element, another = (held[n * width : (n + 1) * width] for n in (one, other))
            contents = (another if fresh else element).clone(), element.clone()
            changes.append((storage[one * width : (one + 1) * width], contents))
        return changes


def _copy(copies: list[tuple[Any, Any]], undo: list[Undo]) -> int:
    for storage, source in copies:
        storage.copy_(source)
    for write_again in undo:
        write_again()
    return 0


def _change(changes: list[tuple[Any, tuple[Any, Any]]], turn: int) -> int:
    for element, contents in changes:
        element.copy_(contents[turn])
    return 0


class _Workspaces:
    """Guarded workspaces, made once per size. One candidate after the other uses them."""

    def __init__(self, engine: Engine, policy: Policy) -> None:
        self._engine, self._policy = engine, policy
        self._arena: Arena | None = None

    def get(self, size: int) -> Arena | None:
        """A workspace of exactly so many bytes. Its piece is called `workspace`. None for 0 bytes.

        Raises:
            WorkspaceError: when it is more than the policy allows.
        """
        if not allowed_workspace(size, self._policy):
            return None
        if self._arena is None or self._arena.pieces["workspace"].size != size:
            self._arena = None
            self._arena = Arena(self._engine.device, [Want("workspace", size)])
        return self._arena


class _Caller:
    """A loaded candidate on call sets, with its workspace.

    Raises:
        WorkspaceError: as `_Workspaces.get` does.
        LaunchError: when the candidate's function returns an error.
    """

    def __init__(self, engine: Engine, loaded: Loaded, workspaces: _Workspaces, sets: list[CallSet]) -> None:
        self._engine, self.loaded, self.first = engine, loaded, sets[0]
        self.workspace = workspaces.get(loaded.workspace_bytes(self.first.arguments))
        memory: Memory | None = self.workspace.pieces["workspace"] if self.workspace is not None else None
        self.calls: list[Call] = [partial(loaded.launch, *s.arguments.launch(memory, engine.stream)) for s in sets]

    def run(self, garbage: int, *, renewed: bool = False) -> float:
        """Poison the outputs, make the first call, and wait for it. Returns its ns. `renewed` contents are kept.

        Raises:
            LaunchError: when the call returns an error.
            FaultError: when it spoils the context.
        """
        self.first.poison(renewed=renewed)
        if self.workspace is not None:
            self.workspace.pieces["workspace"].storage.fill_(garbage)
        self._engine.check()
        begin = time.perf_counter_ns()
        code = self.calls[0]()
        if code:
            self._engine.forget()
        self._engine.check()
        end = time.perf_counter_ns()
        if code:
            raise LaunchError(self.loaded.failure("_launch", code))
        return float(end - begin)


class _GpuAttempt:
    """See `Attempt`. A `FaultError` says that a run has spoiled the context."""

    def __init__(self, engine: Engine, loaded: Loaded, workspaces: _Workspaces, state: ProblemState) -> None:
        self._engine, self._loaded, self._workspaces, self._state = engine, loaded, workspaces, state

    def make(self, trial: Trial, garbage: int, bits: Bits, *, renewed: bool) -> TrialResult:
        """Waits for the call."""
        calls, state = self._state.exact(trial.aliases), self._state
        caller = _Caller(self._engine, self._loaded, self._workspaces, [calls])
        if renewed:
            if calls.renew():
                caller.run(garbage, renewed=True)
            calls.put_back()
        ns = caller.run(garbage)
        fault, error = _inspect(state, calls, caller.workspace, bits)
        same = not bits or not bool(calls.differs(bits))
        if not same and trial.again and state.operator.deterministic:
            fault = fault or "not deterministic: outputs differ between two runs"
        if fault and caller.workspace is not None:
            caller.workspace.heal()
        return TrialResult(ns, fault, error, same)

    def bits(self, trial: Trial) -> Bits:
        """On the device."""
        return self._state.exact(trial.aliases).bits()

    def restore(self, trial: Trial) -> None:
        """Those of this run alone."""
        self._state.exact(trial.aliases).restore()


def _inspect(
    state: ProblemState, calls: CallSet, workspace: Arena | None, bits: Bits | None = None
) -> tuple[str, float]:
    """Judge what a run left behind: what is wrong (empty when nothing is), and the largest error in tolerances.

    The device gets all questions at once, and only a fault is looked at more closely. Outputs that hold `bits`, which
    were right before, are right.
    """
    flags = calls.changed()
    asked = [f for _, f in flags]
    if workspace is not None:
        asked.append(workspace.damaged())
    if bits:
        asked.append(calls.differs(bits))
    else:
        asked += [_far(state, calls, name) for name in state.expected]
    answers = torch.stack([a.to(torch.float64) for a in asked]).tolist()
    for (name, _), hit in zip(flags, answers, strict=False):
        if hit:
            return calls.describe(name), 0.0
    rest = answers[len(flags) :]
    if workspace is not None and rest.pop(0):
        return f"oob: guard zone of 'workspace': {workspace.damage()[1]}", 0.0
    if bits and not rest[0]:
        return "", 0.0
    if not bits and all(r <= 1.0 for r in rest):
        return "", max(rest, default=0.0)
    return _look_closely(state, calls)


def _far(state: ProblemState, calls: CallSet, name: str) -> Any:
    expected = state.expected[name]
    return expected.worst(calls.tensor(expected.tensor))


def _look_closely(state: ProblemState, calls: CallSet) -> tuple[str, float]:
    worst = 0.0
    for expected in state.expected.values():
        if expected.undefined:
            continue
        fault, error = expected.judge(calls.tensor(expected.tensor))
        worst = max(worst, error)
        if fault:
            return fault, worst
    return "", worst


def _prepare(engine: Engine, state: ProblemState, name: str, clock: Clock) -> PreparedBaseline:
    """Import what a baseline requires, hand it the problem's tensors, and run it once.

    Raises:
        UnusableError: when it cannot run.
    """
    operator, sets = state.operator, state.rotation()
    if any(strided.backward() for strided in sets[0].layouts.values()):
        raise UnusableError("torch has no tensors with negative strides")
    baseline, module = baseline_of(operator, name)
    calls: list[Call] = []
    with _math(state.check.problem.attributes.get("math", "")), torch.device(engine.device):
        for call_set in sets:
            tensors = {t.name: call_set.tensor(t) for t in operator.tensors if t.name in call_set.layouts}
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

    runner: _Caller
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
    def _workspaces(self) -> _Workspaces:
        return _Workspaces(self._engine, self._policy)

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

    def _attempt(self, loaded: Loaded, state: ProblemState) -> _GpuAttempt:
        return _GpuAttempt(self._engine, loaded, self._workspaces, state)

    def _plan(self, state: ProblemState, request: messages.Verify) -> list[Trial]:
        again = [Trial(again=True)] if len(request.keys) == 1 and not request.quick else []
        return [Trial(), *aliased(state.operator, state.check.problem), *again]

    def _accept(self, handle: str, key: str, runs: tuple[float, ...], bits: Bits) -> None:
        super()._accept(handle, key, runs, bits)
        self._runs[handle, key] = runs
        self._accepted.move_to_end((handle, key))
        while len(self._accepted) > _KEPT_RESULTS:
            self._accepted.popitem(last=False)

    def _make_ready(self, loaded: Loaded, state: ProblemState) -> _Ready:
        sets = state.rotation()
        runner = _Caller(self._engine, loaded, self._workspaces, sets)
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

    def _fresh_calls(self, ready: _Ready, state: ProblemState, call_ns: float) -> _FreshCalls:  # noqa: ARG002
        return _FreshCalls(self._engine, ready.runner.calls[0], ready.calls, call_ns)

    def _fault(self, ready: _Ready, state: ProblemState, bits: Bits) -> str:
        self._on_streams = False
        fault, _ = _inspect(state, ready.calls, ready.runner.workspace, bits)
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
        return _prepare(self._engine, self._state(request.key), request.name, self._probes.clock_mhz)

    def _turn(self, request: messages.Turn, emit: Emit) -> messages.Reply:
        self._on_streams &= not request.resumed
        return super()._turn(request, emit)

    def _time_baseline(self, baseline: PreparedBaseline, request: messages.Turn) -> messages.Timed:
        self._use_streams()
        sample = baseline.sample(request.calls, request.warm)
        return messages.Timed(samples=(sample,), mhz=self._probes.clock_mhz() if request.clock else 0.0)
