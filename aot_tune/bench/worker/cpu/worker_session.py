"""The worker's side of the CPU family."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.devices.cpu import last_cache_bytes
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Device, Policy, Role
from aot_tune.bench.worker.comparison import SurveyedOutput, SurveyedResults, Verdict
from aot_tune.bench.worker.cpu.engine import Region, Repeater, Sampler, beside_empty, measure_empty, screen, warm_sample
from aot_tune.bench.worker.cpu.state import CallSet, ProblemState, changes_of, restoring
from aot_tune.bench.worker.cpu.verify import (
    Bits,
    FreshCalls,
    compare,
    inspect,
    same_bits,
    unsteady,
    verify,
    workspace_for,
)
from aot_tune.bench.worker.honesty import does_less
from aot_tune.bench.worker.inputs import call_of
from aot_tune.bench.worker.loaded_objects import LaunchError, Loaded, empty_call
from aot_tune.bench.worker.process_state import restore_arithmetic
from aot_tune.bench.worker.reference_results import write_truth
from aot_tune.bench.worker.session_of_family import (
    Emit,
    PreparedBaseline,
    UnusableError,
    WorkerSession,
    baseline_of,
    progress,
)
from aot_tune.bench.worker.stored_elements import epsilon_of, values_of
from aot_tune.spec import DType, Operator
from aot_tune.support.kernel_features import allow_tiles
from aot_tune.support.memory_limits import allowed_memory, kept_memory
from aot_tune.support.processes import resident_bytes

__all__ = ["CpuSession", "make_session", "prepare_baseline"]


def prepare_baseline(state: ProblemState, name: str) -> PreparedBaseline:
    """Import what a baseline requires, hand it the problem's arrays, and run it once.

    Raises:
        UnusableError: when it cannot run.
    """
    operator = state.operator
    baseline, module = baseline_of(operator, name)
    framework = importlib.import_module(baseline.requires.partition(".")[0])
    functions = []
    for calls in state.rotation():
        try:
            arrays = {n: _handed_on(framework, operator.tensor(n).dtype, view) for n, view in calls.views.items()}
        except AttributeError as missing:
            raise UnusableError(f"{baseline.requires} cannot be used here: {missing}") from missing
        functions.append(baseline.prepare(module, call_of(operator, state.check, arrays)))
    first = state.rotation()[0]
    changes = changes_of(state.rotation(), functions[0])
    first.poison()
    functions[0]()
    worst, note = 0.0, ""
    for tensor in first.outputs():
        truth, values = state.truth[tensor.name]
        fault, error = compare(tensor, first.views[tensor.name], values, truth.bounds)
        worst, note = max(worst, error), note or fault
    if changes:
        first.poison()
    repeater = Repeater(functions, time.perf_counter_ns, [restoring(c) for c in changes])
    return PreparedBaseline(lambda calls, warm: warm_sample(repeater.sample, calls, warm), worst, note)


def _handed_on(framework: ModuleType, dtype: DType, view: NDArray[Any]) -> Any:
    """A framework's tensor of the elements of a view, in the same memory.

    Raises:
        AttributeError: when the framework takes no tensors of others, or has no such dtype.
    """
    if dtype.numpy:
        return framework.from_dlpack(view)
    return framework.from_dlpack(view.view(f"int{dtype.bits}")).view(getattr(framework, dtype.torch))


_LEAST_NS = 300.0
"""Differences between calls that count as noise, because they include Python's own work."""


class _Ready:
    """A loaded candidate on a problem: workspace and argument tuples, in rotation.

    `changes` tells how to undo calls on what they read and write, see `restoring`. It is empty for other operators.

    Raises:
        LaunchError: when the call that shows what is to be undone fails.
    """

    def __init__(self, loaded: Loaded, state: ProblemState, policy: Policy) -> None:
        sets = state.rotation()
        self.calls = sets[0]
        self.workspace: Region | None = workspace_for(loaded, self.calls, policy)
        self.arguments = [s.arguments.launch(self.workspace) for s in sets]
        self.launch = loaded.launch
        try:
            self.changes = changes_of(sets, self._call)
        except LaunchError:
            self.close()
            raise
        restores = [restoring(c) for c in self.changes]
        self.sampler = Sampler(loaded.launch, self.arguments, time.perf_counter_ns, restores)

    def _call(self) -> None:
        code = self.launch(*self.arguments[0])
        if code:
            raise LaunchError(str(code))

    def settle(self) -> None:
        """Make a call whose results stay, because those of timed calls were undone.

        Raises:
            LaunchError: when it fails.
        """
        if self.changes:
            self.calls.poison()
            self._call()

    def close(self) -> None:
        if self.workspace is not None:
            self.workspace.close()


def make_session(policy: Policy, role: Role, device: Device) -> CpuSession:
    """The session of a worker on a CPU."""
    del device
    allow_tiles()  # libraries do so too; a CPU without tiles refuses, and gets no candidate that uses them
    return CpuSession(policy, role, last_cache_bytes())


class CpuSession(WorkerSession[ProblemState, _Ready]):
    """See `WorkerSession`."""

    def __init__(self, policy: Policy, role: Role, last_cache: int) -> None:
        super().__init__(policy, role, min(policy.memory_bytes, allowed_memory() // 2), kept_memory())
        self._last_cache = last_cache
        self._results = SurveyedResults()

    def _work(self, request: messages.Work, emit: Emit) -> messages.Reply:
        reply = super()._work(request, emit)
        self._state(request.key)  # reports an operator that cannot be loaded
        return reply

    def _make_state(self, operator: Operator, work: messages.Work) -> ProblemState:
        return ProblemState(operator, work.check, Path(work.folder), self._policy, self._last_cache)

    def _fill(self, state: ProblemState, quick: bool) -> None:
        for placement in state.placements()[: 1 if quick else None]:
            state.at(placement)
        _ = state.truth

    def _write_reference(self, operator: Operator, request: messages.Reference) -> None:
        write_truth(operator, request.check, Path(request.folder), self._policy.seed)

    def _unload(self, request: messages.Unload, emit: Emit) -> messages.Reply:
        reply = super()._unload(request, emit)
        restore_arithmetic()  # loading code that is linked for fast mathematics changes it
        return reply

    def _judge(self, loaded: Loaded, state: ProblemState, request: messages.Verify, emit: Emit) -> Verdict:
        tell = partial(_tell, emit)
        return verify(loaded, state, self._policy, request.quick, tell, renewed=request.renewed)

    def _make_ready(self, loaded: Loaded, state: ProblemState) -> _Ready:
        with self._confined():
            return _Ready(loaded, state, self._policy)

    def _prepare_baseline(self, request: messages.PrepareBaseline) -> PreparedBaseline:
        return prepare_baseline(self._state(request.key), request.name)

    def _beside_empty(self, ready: _Ready, take: Callable[[float], list[float]]) -> tuple[list[float], float]:
        function, arguments = empty_call(ready.arguments[0])
        undone = bool(ready.changes)
        return beside_empty(take, lambda: measure_empty(function, arguments, undone=undone))

    def _screen(self, request: messages.Screen) -> messages.Timed:
        state = self._state(request.key)
        ready = self._ready_for(request.handle, request.key)
        ready.calls.poison()
        watch = _Growth(ready.sampler.sample)

        def take(empty: float) -> list[float]:
            return screen(watch.sample, self._policy, request.best_ns, overhead=empty)

        with self._confined():
            samples, overhead = self._beside_empty(ready, take)
            ready.settle()
        best, leak = min(samples) - overhead, watch.per_call()
        bits = self._accepted.get((request.handle, request.key), {})
        if request.best_ns is None or best < request.best_ns:
            less, fault = self._does_less(ready, state, bits, best)
        else:
            less, fault = "", self._fault(ready, state, bits)
        return messages.Timed(
            samples=tuple(max(s - overhead, 0.0) for s in samples),
            overhead=overhead,
            leak=leak,
            status="wrong-result" if fault else "suspicious" if less else "ok",
            reason=f"{fault} (after {watch.calls} timed calls)" if fault else less,
        )

    def _surveyed(self, loaded: Loaded, state: ProblemState, request: messages.SurveyOne) -> messages.Timed:
        with contextlib.closing(self._make_ready(loaded, state)) as ready:
            ready.calls.poison()
            with self._confined():
                samples, overhead = self._beside_empty(
                    ready,
                    lambda empty: screen(ready.sampler.sample, self._policy, request.best_ns, overhead=empty),
                )
                ready.settle()
            fault = self._results.compare(request.key, _outputs(ready.calls), first=request.first)
        state.restore()
        return messages.Timed(
            samples=tuple(max(s - overhead, 0.0) for s in samples),
            overhead=overhead,
            status="wrong-result" if fault else "ok",
            reason=fault,
        )

    def _does_less(self, ready: _Ready, state: ProblemState, bits: Bits, call_ns: float) -> tuple[str, str]:
        """How the candidate does less when a call is repeated, and what is wrong after timed or fresh calls."""
        if not same_bits(ready.calls, bits) and (fault := self._fault(ready, state, bits)):
            return "", fault
        undone = ready.changes[0] if ready.changes else []
        fresh = FreshCalls(ready.launch, ready.arguments[0], ready.calls, state.pristine, call_ns, undone)
        with self._confined():
            less = does_less(fresh.play, max(call_ns, 1.0), _LEAST_NS)
        return less, self._fault(ready, state, bits)

    def _fault(self, ready: _Ready, state: ProblemState, bits: Bits) -> str:
        """What is wrong after timed calls. If the bits are those that were right before, nothing is."""
        same = bool(bits) and same_bits(ready.calls, bits)
        fault, _ = inspect(state, ready.calls, ready.workspace, whole=not same)
        fault = fault or ("" if same else unsteady(state, ready.calls, bits))
        if fault:
            state.restore()
        return fault

    def _sample(self, request: messages.Turn) -> messages.Timed:
        ready = self._ready_for(request.handle, request.key)
        if request.fresh or request.poison:
            ready.calls.poison()
        with self._confined():
            samples, overhead = self._beside_empty(
                ready, lambda _empty: [warm_sample(ready.sampler.sample, request.calls, request.warm)]
            )
            if request.fresh:
                ready.settle()
        fault = less = ""
        call = max(samples[0] - overhead, 0.0)
        if request.fresh:
            state, bits = self._state(request.key), self._accepted.get((request.handle, request.key), {})
            less, fault = self._does_less(ready, state, bits, call)
        return messages.Timed(
            samples=(call,),
            overhead=overhead,
            status="wrong-result" if fault else "suspicious" if less else "ok",
            reason=f"{fault} (after a race)" if fault else less,
        )


def _outputs(calls: CallSet) -> dict[str, SurveyedOutput]:
    """Copies of a call's results, in float32 if their own dtype is narrower."""
    found = {}
    for tensor in calls.outputs():
        values = values_of(tensor.dtype, calls.views[tensor.name])
        epsilon = epsilon_of(tensor.dtype)
        narrow = epsilon is not None and values.dtype.itemsize < 4
        found[tensor.name] = SurveyedOutput(values.astype(np.float32) if narrow else values.copy(), epsilon)
    return found


def _tell(emit: Emit, place: str) -> None:
    emit(progress(place))


class _Growth:
    """Counts calls and watches the growth of resident memory after the first one."""

    def __init__(self, sample: Callable[[int], float]) -> None:
        self._sample = sample
        self.calls = 0
        self._begin = self._since = 0

    def sample(self, calls: int) -> float:
        """Pass the call on to the sampler."""
        found = self._sample(calls)
        self.calls += calls
        if not self._begin:
            self._begin = resident_bytes()
            self._since = self.calls
        return found

    def per_call(self) -> int:
        """Bytes per call since the first, or 0 when the growth is too small to tell."""
        later = self.calls - self._since
        grown = resident_bytes() - self._begin
        return grown // later if later > 0 and grown > 1 << 20 else 0
