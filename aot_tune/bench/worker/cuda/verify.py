"""Whether a loaded candidate is right: its values, nothing else written, the same bits again.

And whether it is honest, see `honesty`: here are calls that each differ from the call before, beside repeated ones.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import torch

from aot_tune.bench.protocol.measurement_records import Policy
from aot_tune.bench.worker.cuda.engine import Arena, Call, CaptureError, Engine, Recorded, Want, one_by_one
from aot_tune.bench.worker.cuda.state import CallSet, ProblemState
from aot_tune.bench.worker.cuda.timing import Undo, put_back
from aot_tune.bench.worker.honesty import exchangeable
from aot_tune.bench.worker.loaded_objects import LaunchError, Loaded, Memory
from aot_tune.bench.worker.verification import Bits, Trial, TrialResult, aliased, allowed_workspace

__all__ = ["Caller", "FreshCalls", "GpuAttempt", "Workspaces", "inspect", "plan"]

_SAMPLE_NS = 200_000
_MOST = 16


class FreshCalls:
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
        found = []
        for tensor in self._inputs:
            storage, width = self._calls.storages[tensor.name], tensor.dtype.itemsize
            one, other = self._places.integers(0, storage.numel() // width, 2).tolist()
            held = self._calls.sources.get(tensor.name, storage)
            own, another = (held[n * width : (n + 1) * width] for n in (one, other))
            contents = (another if fresh else own).clone(), own.clone()
            found.append((storage[one * width : (one + 1) * width], contents))
        return found


def _copy(copies: list[tuple[Any, Any]], undo: list[Undo]) -> int:
    for storage, source in copies:
        storage.copy_(source)
    for one in undo:
        one()
    return 0


def _change(changes: list[tuple[Any, tuple[Any, Any]]], turn: int) -> int:
    for element, contents in changes:
        element.copy_(contents[turn])
    return 0


class Workspaces:
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


class Caller:
    """A loaded candidate on call sets, with its workspace.

    Raises:
        WorkspaceError: as `Workspaces.get` does.
        LaunchError: when the candidate's function returns an error.
    """

    def __init__(self, engine: Engine, loaded: Loaded, workspaces: Workspaces, sets: list[CallSet]) -> None:
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


def plan(state: ProblemState, *, repeat: bool) -> list[Trial]:
    """The runs that verify a candidate. With `repeat`, the first one is made again at the end."""
    again = [Trial(again=True)] if repeat else []
    return [Trial(), *aliased(state.operator, state.check.problem), *again]


class GpuAttempt:
    """See `Attempt`. A `FaultError` says that a run has spoiled the context."""

    def __init__(self, engine: Engine, loaded: Loaded, workspaces: Workspaces, state: ProblemState) -> None:
        self._engine, self._loaded, self._workspaces, self._state = engine, loaded, workspaces, state

    def make(self, trial: Trial, garbage: int, bits: Bits, *, renewed: bool) -> TrialResult:
        """Waits for the call."""
        calls, state = self._state.exact(trial.aliases), self._state
        caller = Caller(self._engine, self._loaded, self._workspaces, [calls])
        if renewed:
            if calls.renew():
                caller.run(garbage, renewed=True)
            calls.put_back()
        ns = caller.run(garbage)
        fault, error = inspect(state, calls, caller.workspace, bits)
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


def inspect(
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
