"""The worker's side of the CPU family."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from aot_tune.bench.devices.cpu import last_cache_bytes
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Device, Policy, Role
from aot_tune.bench.worker.cpu.engine import Region, Repeater, Sampler, beside_empty, measure_empty, screen, warm_sample
from aot_tune.bench.worker.cpu.state import ProblemState, changes_of, restoring
from aot_tune.bench.worker.cpu.verify import (
    FreshCalls,
    HostAttempt,
    compare,
    inspect,
    plan,
    same_bits,
    unsteady,
    workspace_for,
)
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
)
from aot_tune.bench.worker.verification import Bits, Trial
from aot_tune.spec import DType, Operator
from aot_tune.support.kernel_features import allow_tiles
from aot_tune.support.limits import allowed_memory, kept_memory
from aot_tune.support.processes import resident_bytes

__all__ = ["CpuSession", "make_session", "prepare_baseline"]

_LEAST_NS = 300.0
"""Differences between calls that count as noise, because they include Python's own work."""


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
    repeater = Repeater(functions, [restoring(c) for c in changes])
    return PreparedBaseline(lambda calls, warm: warm_sample(repeater.sample, calls, warm), worst, note)


def _handed_on(framework: ModuleType, dtype: DType, view: NDArray[Any]) -> Any:
    """A framework's tensor of the elements of a view, in the same memory.

    Raises:
        AttributeError: when the framework takes no tensors of others, or has no such dtype.
    """
    if dtype.numpy:
        return framework.from_dlpack(view)
    return framework.from_dlpack(view.view(f"int{dtype.bits}")).view(getattr(framework, dtype.torch))


class _Ready:
    """A loaded candidate on a problem: workspace and argument tuples, in rotation.

    `changes` tells how to undo calls on what they read and write, see `state`. It is empty for other operators.

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
        self.sampler = Sampler(loaded.launch, self.arguments, restores)
        self.made = 0
        self._after_first, self._resident = 0, 0

    def _call(self) -> None:
        code = self.launch(*self.arguments[0])
        if code:
            raise LaunchError(str(code))

    def sample(self, calls: int) -> float:
        """A sample of a screen. Its calls are counted, and the growth of resident memory after the first ones."""
        ns = self.sampler.sample(calls)
        self.made += calls
        if not self._resident:
            self._resident, self._after_first = resident_bytes(), self.made
        return ns

    def leak(self) -> int:
        """Bytes per call by which the process grew, or 0 when the growth is too small to tell."""
        later, grown = self.made - self._after_first, resident_bytes() - self._resident
        return grown // later if later > 0 and grown > 1 << 20 else 0

    def first_call(self) -> None:
        """Poison the outputs. Timed calls follow."""
        self.calls.poison()

    def settle(self) -> None:
        """Make a call whose results stay, because those of timed calls were undone.

        Raises:
            LaunchError: when it fails.
        """
        if self.changes:
            self.calls.poison()
            self._call()

    def empty_ns(self) -> float:
        """ns of calling a function that does nothing, with such arguments."""
        function, arguments = empty_call(self.arguments[0])
        return measure_empty(function, arguments, undone=bool(self.changes))

    def close(self) -> None:
        """Give the workspace back."""
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
        super().__init__(policy, role, min(policy.memory_bytes, allowed_memory() // 2), kept_memory(), _LEAST_NS)
        self._last_cache = last_cache

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

    def _attempt(self, loaded: Loaded, state: ProblemState) -> HostAttempt:
        return HostAttempt(loaded, state, self._policy)

    def _plan(self, state: ProblemState, request: messages.Verify) -> list[Trial]:
        return plan(state, request.quick)

    def _make_ready(self, loaded: Loaded, state: ProblemState) -> _Ready:
        return _Ready(loaded, state, self._policy)

    def _prepare_baseline(self, request: messages.PrepareBaseline) -> PreparedBaseline:
        return prepare_baseline(self._state(request.key), request.name)

    def _take_screen(self, ready: _Ready, best_ns: float | None) -> messages.Timed:
        def take(empty: float) -> list[float]:
            return screen(ready.sample, self._policy, best_ns, overhead=empty)

        samples, overhead = beside_empty(take, ready.empty_ns)
        return messages.Timed(
            samples=tuple(max(s - overhead, 0.0) for s in samples), overhead=overhead, leak=ready.leak()
        )

    def _take_turn(self, ready: _Ready, request: messages.Turn) -> messages.Timed:
        def take(_empty: float) -> list[float]:
            return [warm_sample(ready.sampler.sample, request.calls, request.warm)]

        samples, overhead = beside_empty(take, ready.empty_ns)
        return messages.Timed(samples=(max(samples[0] - overhead, 0.0),), overhead=overhead)

    def _fresh_calls(self, ready: _Ready, state: ProblemState, call_ns: float) -> FreshCalls:
        undone = ready.changes[0] if ready.changes else []
        return FreshCalls(ready.launch, ready.arguments[0], ready.calls, state.pristine, call_ns, undone)

    def _fault(self, ready: _Ready, state: ProblemState, bits: Bits) -> str:
        same = bool(bits) and same_bits(ready.calls, bits)
        fault, _ = inspect(state, ready.calls, ready.workspace, whole=not same)
        fault = fault or ("" if same else unsteady(state, ready.calls, bits))
        if fault:
            state.restore()
        return fault

    def _survey_fault(self, ready: _Ready, state: ProblemState, compared: Callable[[], str]) -> str:  # noqa: ARG002
        fault = compared()
        state.restore()
        return fault
