"""The worker's side of the CPU family: keeps problems and loaded candidates, carries out one request at a time."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aot_tune.bench.devices.cpu import last_cache_bytes
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Device, Policy, Role
from aot_tune.bench.worker import floating_point as arithmetic
from aot_tune.bench.worker import sandbox
from aot_tune.bench.worker.cpu import timing
from aot_tune.bench.worker.cpu.baselines import PreparedBaseline, prepare_baseline
from aot_tune.bench.worker.cpu.buffers import Region
from aot_tune.bench.worker.cpu.state import ProblemState
from aot_tune.bench.worker.cpu.verify import Bits, inspect, same_bits, unsteady, verify, workspace_for
from aot_tune.bench.worker.loaded_objects import LaunchError, Loaded, LoadError, empty_call, load
from aot_tune.bench.worker.reference_results import write_truth
from aot_tune.bench.worker.session_of_family import Emit
from aot_tune.bench.worker.verdicts import WorkspaceError
from aot_tune.spec import Operator
from aot_tune.spec.load_operators import load_operator

__all__ = ["CpuSession", "make_session"]

_KEPT_BYTES = 3 << 30
"""Buffers of problems are kept up to so many bytes, or a quarter of the machine's memory, when they are not in use."""


class _Ready:
    """A loaded candidate on a problem: workspace and argument tuples, in rotation."""

    def __init__(self, loaded: Loaded, state: ProblemState, policy: Policy) -> None:
        sets = state.rotation()
        self.calls = sets[0]
        self.workspace: Region | None = workspace_for(loaded, self.calls, policy)
        self.arguments = [s.arguments.launch(self.workspace) for s in sets]
        self.sampler = timing.Sampler(loaded.launch, self.arguments, time.perf_counter_ns)

    def close(self) -> None:
        if self.workspace is not None:
            self.workspace.close()


def make_session(policy: Policy, role: Role, device: Device) -> CpuSession:
    """The session of a worker on a CPU."""
    del device
    return CpuSession(policy, role, last_cache_bytes())


class CpuSession:
    """See `session_of_family.WorkerSession`."""

    def __init__(self, policy: Policy, role: Role, last_cache: int) -> None:
        self._policy, self._role, self._last_cache = policy, role, last_cache
        self._operators: dict[str, Operator] = {}
        self._states: OrderedDict[str, ProblemState] = OrderedDict()
        self._loaded: dict[str, Loaded] = {}
        self._ready: dict[tuple[str, str], _Ready] = {}
        self._baselines: dict[str, PreparedBaseline] = {}
        self._accepted: dict[tuple[str, str], Bits] = {}
        self._actions: dict[type, Callable[[Any, Emit], messages.Reply]] = {
            messages.Ping: lambda _request, _emit: messages.Pong(),
            messages.Work: self._work,
            messages.Prepare: self._prepare,
            messages.Reference: self._reference,
            messages.Load: self._load,
            messages.Unload: self._unload,
            messages.Verify: self._verify,
            messages.Bench: self._bench,
            messages.Baseline: self._baseline,
            messages.Turn: self._turn,
        }
        self._most = min(_KEPT_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
        timing.quiet_collector()

    def handle(self, request: messages.Request, emit: Emit) -> messages.Reply:
        """Answer one request."""
        return self._actions[type(request)](request, emit)

    def clean(self) -> None:
        """Lift the memory limit after a failure."""
        sandbox.memory_limit(None)

    def _operator(self, folder: str) -> Operator:
        if folder not in self._operators:
            self._operators[folder] = load_operator(Path(folder))
        return self._operators[folder]

    def _state(self, key: str) -> ProblemState:
        self._states.move_to_end(key)
        return self._states[key]

    @contextmanager
    def _confined(self) -> Iterator[None]:
        """What runs inside may take only so much memory beyond what is held now."""
        sandbox.memory_limit(self._policy.memory_bytes)
        try:
            yield
        finally:
            sandbox.memory_limit(None)

    def _work(self, request: messages.Work, _emit: Emit) -> messages.Reply:
        if request.key not in self._states:
            operator = self._operator(request.operator_folder)
            self._states[request.key] = ProblemState(
                operator, request.check, Path(request.folder), self._policy, self._last_cache
            )
        return messages.Done()

    def _prepare(self, request: messages.Prepare, _emit: Emit) -> messages.Reply:
        self._warm([request.key])
        self._state(request.key).rotation()
        return messages.Done()

    def _warm(self, keys: Sequence[str]) -> None:
        """Make all buffers of some problems, and let go of those of others that were used longest ago."""
        for key in keys:
            state = self._state(key)
            for placement in state.placements():
                state.at(placement)
            _ = state.truth
        held = sum(s.bytes() for s in self._states.values())
        used = {*keys, *(k for _, k in self._ready)}
        for key, state in list(self._states.items()):
            if held <= self._most:
                break
            if key not in used:
                held -= state.bytes()
                state.close()

    def _reference(self, request: messages.Reference, _emit: Emit) -> messages.Reply:
        operator = self._operator(request.operator_folder)
        write_truth(operator, request.check, Path(request.folder), self._policy.seed)
        return messages.Done()

    def _load(self, request: messages.Load, _emit: Emit) -> messages.Reply:
        try:
            with self._confined():
                self._loaded[request.handle] = load(Path(request.path), request.symbol, request.variant)
        except LoadError as error:
            return messages.Failure(kind="LoadError", reason=error.what)
        return messages.Done()

    def _unload(self, request: messages.Unload, _emit: Emit) -> messages.Reply:
        for pair in [p for p in self._ready if p[0] == request.handle]:
            self._ready.pop(pair).close()
        for pair in [p for p in self._accepted if p[0] == request.handle]:
            del self._accepted[pair]
        loaded = self._loaded.pop(request.handle, None)
        if loaded is not None:
            loaded.close()
        arithmetic.restore()  # as code that is linked for fast mathematics changes it when it is loaded
        self._baselines.pop(request.handle, None)
        return messages.Done()

    def _verify(self, request: messages.Verify, emit: Emit) -> messages.Reply:
        loaded = self._loaded[request.handle]
        self._warm(request.keys)
        worst, bitwise = 0.0, None
        runs: tuple[float, ...] = ()
        for key in request.keys:
            state = self._state(key)
            try:
                with self._confined():
                    verdict = verify(loaded, state, self._policy, request.quick, lambda p: emit(_progress(p)))
            except WorkspaceError as error:
                return messages.Checked(status="skipped", reason=str(error))
            self._accepted[request.handle, key] = verdict.bits
            worst, runs = max(worst, verdict.error), verdict.runs
            bitwise = verdict.bitwise if bitwise is None else bitwise and verdict.bitwise is not False
            if verdict.status != "ok":
                return messages.Checked(
                    status=verdict.status, reason=verdict.reason, error=worst, bitwise=bitwise, runs=runs
                )
        return messages.Checked(status="ok", error=worst, bitwise=bitwise, runs=runs)

    def _make_ready(self, handle: str, key: str) -> _Ready:
        if (handle, key) not in self._ready:
            state = self._state(key)
            state.rotation()
            self._ready[handle, key] = _Ready(self._loaded[handle], state, self._policy)
        return self._ready[handle, key]

    def _beside_empty(self, ready: _Ready, take: Callable[[float], list[float]]) -> tuple[list[float], float]:
        function, arguments = empty_call(ready.arguments[0])
        return timing.beside_empty(take, lambda: timing.measure_empty(function, arguments))

    def _bench(self, request: messages.Bench, emit: Emit) -> messages.Reply:
        emit(_progress("timed calls"))
        state = self._state(request.key)
        try:
            ready = self._make_ready(request.handle, request.key)
            ready.calls.poison()
            watch = _Growth(ready.sampler.sample)

            def take(empty: float) -> list[float]:
                return timing.screen(watch.sample, self._policy, request.best_ns, overhead=empty)

            with self._confined():
                samples, overhead = self._beside_empty(ready, take)
        except (LaunchError, timing.ReturnedError) as error:
            return messages.Timed(samples=(), status="failed", reason=f"launch failed while it was timed: {error}")
        except WorkspaceError as error:
            return messages.Timed(samples=(), status="skipped", reason=str(error))
        fault = self._fault(ready, state, self._accepted.get((request.handle, request.key), {}))
        return messages.Timed(
            samples=tuple(max(s - overhead, 0.0) for s in samples),
            overhead=overhead,
            leak=watch.per_call(),
            status="wrong-result" if fault else "ok",
            reason=f"{fault} (after {watch.calls} timed calls)" if fault else "",
        )

    def _fault(self, ready: _Ready, state: ProblemState, bits: Bits) -> str:
        """What is wrong after timed calls; bits that were right before are right again."""
        same = bool(bits) and same_bits(ready.calls, bits)
        fault, _ = inspect(state, ready.calls, ready.workspace, whole=not same)
        fault = fault or ("" if same else unsteady(state, ready.calls, bits))
        if fault:
            state.restore()
        return fault

    def _baseline(self, request: messages.Baseline, _emit: Emit) -> messages.Reply:
        state = self._state(request.key)
        prepared = prepare_baseline(state, request.name)
        if isinstance(prepared, str):
            return messages.Empty(reason=prepared)
        self._baselines[request.handle] = prepared
        return messages.Checked(status="ok", error=prepared.error, reason=prepared.note)

    def _turn(self, request: messages.Turn, emit: Emit) -> messages.Reply:
        if request.handle in self._baselines:
            repeater = self._baselines[request.handle].repeater
            if request.warm:
                repeater.sample(request.warm)
            return messages.Timed(samples=(timing.undisturbed(repeater.sample, request.calls),))
        emit(_progress("timed calls of a race"))

        def take(_empty: float) -> list[float]:
            if request.warm:
                ready.sampler.sample(request.warm)
            return [timing.undisturbed(ready.sampler.sample, request.calls)]

        try:
            ready = self._make_ready(request.handle, request.key)
            if request.fresh:
                ready.calls.poison()
            with self._confined():
                samples, overhead = self._beside_empty(ready, take)
        except (LaunchError, timing.ReturnedError) as error:
            return messages.Timed(samples=(), status="failed", reason=f"launch failed while it was timed: {error}")
        except WorkspaceError as error:
            return messages.Timed(samples=(), status="skipped", reason=str(error))
        fault = ""
        if request.fresh:
            bits = self._accepted.get((request.handle, request.key), {})
            fault = self._fault(ready, self._state(request.key), bits)
        return messages.Timed(
            samples=(max(samples[0] - overhead, 0.0),),
            overhead=overhead,
            status="wrong-result" if fault else "ok",
            reason=f"{fault} (after a race)" if fault else "",
        )


def _progress(place: str) -> messages.Progress:
    return messages.Progress(place=place, resident_bytes=timing.resident_bytes())


class _Growth:
    """Counts calls and watches the growth of resident memory after the first one."""

    def __init__(self, sample: Callable[[int], float]) -> None:
        self._sample = sample
        self.calls = 0
        self._begin = self._since = 0

    def sample(self, calls: int) -> float:
        """Pass on to the sampler."""
        found = self._sample(calls)
        self.calls += calls
        if not self._begin:
            self._begin = timing.resident_bytes()
            self._since = self.calls
        return found

    def per_call(self) -> int:
        """Bytes per call since the first; 0 when too little grew to tell."""
        later = self.calls - self._since
        grown = timing.resident_bytes() - self._begin
        return grown // later if later > 0 and grown > 1 << 20 else 0
