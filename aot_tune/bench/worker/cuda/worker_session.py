"""The worker's side of the CUDA family: keeps problems and loaded candidates, carries out one request at a time.

torch is imported when a session is made, the GPU is touched by the first request that needs it: until then a spare
worker holds nothing of it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Device, Policy, Role, Status
from aot_tune.bench.worker import sandbox
from aot_tune.bench.worker.cpu import timing
from aot_tune.bench.worker.cuda.baselines import TorchBaseline, prepare_baseline
from aot_tune.bench.worker.cuda.connection import connected, last_word
from aot_tune.bench.worker.cuda.engine import Engine, FaultError, GpuEngine, ReturnedError
from aot_tune.bench.worker.cuda.host_engine import HostEngine
from aot_tune.bench.worker.cuda.probes import Probes
from aot_tune.bench.worker.cuda.state import ProblemState
from aot_tune.bench.worker.cuda.timing import Sampler, measure_empty
from aot_tune.bench.worker.cuda.truth import write_limits
from aot_tune.bench.worker.cuda.verify import Bits, Runner, Workspaces, inspect, verify
from aot_tune.bench.worker.loaded_objects import LaunchError, Loaded, LoadError, load
from aot_tune.bench.worker.session_of_family import Emit
from aot_tune.bench.worker.verdicts import WorkspaceError
from aot_tune.spec import Operator
from aot_tune.spec.load_operators import load_operator

__all__ = ["CudaSession", "make_session"]

_KEPT_RESULTS = 8
"""Outputs that were right are kept of so many candidates, to compare with after timed calls."""

_HOST_BYTES = 4 << 30
"""The driver takes host memory for what it maps and compiles while a candidate runs; it is not charged for that."""


def make_session(policy: Policy, role: Role, device: Device) -> CudaSession:
    """The session of a worker on a GPU; on the host's own memory and clock for the unit `host`, which tests have."""
    return CudaSession(policy, role, device, HostEngine if device.unit == "host" else GpuEngine)


_SHARES: dict[Role, float] = {"candidate": 0.55, "framework": 0.33}
"""Share of the GPU's memory that a worker may take; both hold buffers at the same time."""


class CudaSession:
    """See `session_of_family.WorkerSession`. `connect` touches the device; tests hand in another engine."""

    def __init__(self, policy: Policy, role: Role, device: Device, connect: Callable[[], Engine]) -> None:
        self._policy, self._role, self._device, self._connect = policy, role, device, connect
        self._operators: dict[str, Operator] = {}
        self._named: dict[str, messages.Work] = {}
        self._states: OrderedDict[str, ProblemState] = OrderedDict()
        self._loaded: dict[str, Loaded] = {}
        self._ready: dict[tuple[str, str], tuple[Runner, Sampler]] = {}
        self._baselines: dict[str, TorchBaseline] = {}
        self._accepted: OrderedDict[tuple[str, str], Bits] = OrderedDict()
        self._runs: dict[tuple[str, str], tuple[float, ...]] = {}
        self._on_streams = False
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
        memory = int(device.identity.get("memory_gib", 8)) << 30
        self._most = memory // (3 if role == "candidate" else 6)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        timing.quiet_collector()

    def handle(self, request: messages.Request, emit: Emit) -> messages.Reply:
        """Answer one request. A fault of the device is this worker's last word."""
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
                self.clean()  # now that the error is gone: its frames held what they had got
            return messages.Failure(kind="OutOfMemoryError", reason=said, status="oom")
        except FaultError as fault:
            return last_word(fault)
        except Exception:  # whatever it was: when the device is at fault, that is what has to be told
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
        """Lift the memory limit after a failure, and let go of what is not in use."""
        sandbox.memory_limit(None)
        for ready in self._ready.values():
            ready[1].close()
        self._ready.clear()
        self._accepted.clear()
        for state in self._states.values():
            state.close()
        if "_engine" in self.__dict__ and self._engine.device.type == "cuda":
            torch.cuda.empty_cache()

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
        """Bring the device into the state in which programs have it, unless it is; before a time is taken."""
        if not self._on_streams:
            self._engine.use_streams(self._policy.on_gpu.streams)
            self._on_streams = True

    @cached_property
    def _probes(self) -> Probes:
        return Probes(self._engine, self._policy)

    def _operator(self, folder: str) -> Operator:
        if folder not in self._operators:
            self._operators[folder] = load_operator(Path(folder))
        return self._operators[folder]

    def _state(self, key: str) -> ProblemState:
        self._states.move_to_end(key)
        return self._states[key]

    @contextmanager
    def _confined(self) -> Iterator[None]:
        """What runs inside may take only so much of the host's memory beyond what is held now."""
        sandbox.memory_limit(self._policy.memory_bytes + _HOST_BYTES)
        try:
            yield
        finally:
            sandbox.memory_limit(None)

    def _work(self, request: messages.Work, _emit: Emit) -> messages.Reply:
        self._named[request.key] = request
        return messages.Done()

    def _known(self, key: str) -> ProblemState:
        if key not in self._states:
            work = self._named[key]
            self._states[key] = ProblemState(
                self._engine,
                self._operator(work.operator_folder),
                work.check,
                Path(work.folder),
                self._policy,
                int(self._device.identity.get("l2_bytes", 0)),
            )
        return self._state(key)

    def _prepare(self, request: messages.Prepare, _emit: Emit) -> messages.Reply:
        self._warm([request.key])
        state = self._known(request.key)
        state.rotation()
        remark = ""
        if request.probe:
            cold = state.cold()
            remark = self._probes.rotation(cold, int(self._device.identity.get("l2_bytes", 0)))
        return messages.Done(remark=remark, log=self._probes.said)

    def _warm(self, keys: Sequence[str]) -> None:
        """Make all buffers of some problems, and let go of those of others that were used longest ago."""
        for key in keys:
            state = self._known(key)
            if self._role == "candidate":
                state.exact()
            _ = state.expected
        held = sum(s.bytes for s in self._states.values())
        used = {*keys, *(k for _, k in self._ready)}
        for key, state in list(self._states.items()):
            if held <= self._most:
                break
            if key not in used:
                held -= state.bytes
                state.close()

    def _reference(self, request: messages.Reference, _emit: Emit) -> messages.Reply:
        operator = self._operator(request.operator_folder).concrete(request.check.problem.dtypes)
        write_limits(operator, request.check, Path(request.folder), self._policy.seed, self._engine.device)
        return messages.Done()

    def _load(self, request: messages.Load, emit: Emit) -> messages.Reply:
        emit(_progress("load"))
        try:
            with self._confined():
                loaded = load(Path(request.path), request.symbol, request.variant)
                loaded.preload()
        except (LoadError, LaunchError) as error:
            self._engine.forget()
            return messages.Failure(kind="LoadError", reason=error.what)
        self._loaded[request.handle] = loaded
        return messages.Done()

    def _unload(self, request: messages.Unload, _emit: Emit) -> messages.Reply:
        for pair in [p for p in self._ready if p[0] == request.handle]:
            self._ready.pop(pair)[1].close()
        for kept in (self._accepted, self._runs):
            for pair in [p for p in kept if p[0] == request.handle]:
                del kept[pair]
        loaded = self._loaded.pop(request.handle, None)
        if loaded is not None:
            loaded.close()
        baseline = self._baselines.pop(request.handle, None)
        if baseline is not None:
            baseline.close()
        return messages.Done()

    def _verify(self, request: messages.Verify, emit: Emit) -> messages.Reply:
        loaded = self._loaded[request.handle]
        self._warm(request.keys)
        worst, bitwise = 0.0, None
        runs: tuple[float, ...] = ()
        single = len(request.keys) == 1
        for key in request.keys:
            state = self._known(key)
            emit(_progress(state.check.problem.id))
            try:
                with self._confined():
                    verdict = verify(self._engine, loaded, self._workspaces, state, repeat=single and not request.quick)
            except WorkspaceError as error:
                return messages.Checked(status="skipped", reason=str(error))
            if single:
                self._accept(request.handle, key, verdict.bits)
                self._runs[request.handle, key] = verdict.runs
            worst, runs = max(worst, verdict.error), verdict.runs
            bitwise = verdict.bitwise if bitwise is None else bitwise and verdict.bitwise is not False
            if verdict.status != "ok":
                return messages.Checked(
                    status=verdict.status, reason=verdict.reason, error=worst, bitwise=bitwise, runs=runs
                )
        return messages.Checked(status="ok", error=worst, bitwise=bitwise, runs=runs)

    def _accept(self, handle: str, key: str, bits: Bits) -> None:
        self._accepted[handle, key] = bits
        self._accepted.move_to_end((handle, key))
        while len(self._accepted) > _KEPT_RESULTS:
            self._accepted.popitem(last=False)

    def _make_ready(self, handle: str, key: str) -> tuple[Runner, Sampler]:
        if (handle, key) not in self._ready:
            sets = self._known(key).rotation()
            runner = Runner(self._engine, self._loaded[handle], self._workspaces, sets)
            sampler = Sampler(self._engine, runner.calls, self._policy, self._probes.clock_mhz)
            self._ready[handle, key] = runner, sampler
            self._on_streams = False  # its first launches
        return self._ready[handle, key]

    def _bench(self, request: messages.Bench, emit: Emit) -> messages.Reply:
        emit(_progress("timed calls"))
        state = self._known(request.key)
        runs = self._runs.pop((request.handle, request.key), ())
        hopeless = 2 * self._policy.screen_stop * (request.best_ns or math.inf) + self._policy.on_gpu.single_ns
        if len(runs) > 1 and min(runs) > hopeless:  # the calls that were verified are times enough
            self._accepted.pop((request.handle, request.key), None)
            return messages.Timed(samples=runs)
        try:
            overhead = self._overhead
            with self._confined():
                runner, sampler = self._make_ready(request.handle, request.key)
                runner.first.poison()
                self._use_streams()
                samples = sampler.screen(self._policy, request.best_ns)
        except (LaunchError, ReturnedError) as error:
            return messages.Timed(samples=(), status="failed", reason=f"launch failed while it was timed: {error}")
        except WorkspaceError as error:
            return messages.Timed(samples=(), status="skipped", reason=str(error))
        fault = self._fault(runner, state, self._accepted.pop((request.handle, request.key), {}))
        sampler.close()
        del self._ready[request.handle, request.key]
        return messages.Timed(
            samples=tuple(samples),
            overhead=overhead,
            status=_verdict(fault, sampler),
            reason=f"{fault} (after {sampler.made} timed calls)" if fault else sampler.note,
        )

    def _fault(self, runner: Runner, state: ProblemState, bits: Bits) -> str:
        """What is wrong after timed calls; bits that were right before are right again."""
        fault, _ = inspect(state, runner.first, runner.workspace, bits)
        if fault:
            runner.first.restore()
            if runner.workspace is not None:
                runner.workspace.heal()
        return fault

    def _baseline(self, request: messages.Baseline, _emit: Emit) -> messages.Reply:
        self._warm([request.key])
        prepared = prepare_baseline(self._engine, self._known(request.key), request.name, self._probes.clock_mhz)
        if isinstance(prepared, str):
            return messages.Empty(reason=prepared)
        self._baselines[request.handle] = prepared
        return messages.Checked(status="ok", error=prepared.error, reason=prepared.note)

    def _turn(self, request: messages.Turn, emit: Emit) -> messages.Reply:
        warm = bool(request.warm)
        self._on_streams &= not request.resumed
        if request.handle in self._baselines:
            self._use_streams()
            sample = self._baselines[request.handle].sampler.sample(warm)
            return messages.Timed(samples=(sample,), mhz=self._probes.clock_mhz() if request.clock else 0.0)
        emit(_progress("timed calls of a race"))
        try:
            with self._confined():
                runner, sampler = self._make_ready(request.handle, request.key)
                if request.fresh:
                    runner.first.poison()
                self._use_streams()
                sample = sampler.sample(warm)
                mhz = self._probes.clock_mhz() if request.clock else 0.0
        except (LaunchError, ReturnedError) as error:
            return messages.Timed(samples=(), status="failed", reason=f"launch failed while it was timed: {error}")
        fault = ""
        if request.fresh:
            bits = self._accepted.get((request.handle, request.key), {})
            fault = self._fault(runner, self._known(request.key), bits)
            self._on_streams = False
        return messages.Timed(
            samples=(sample,),
            overhead=self._overhead,
            status=_verdict(fault, sampler),
            reason=f"{fault} (after a race)" if fault else sampler.note,
            mhz=mhz,
        )


def _verdict(fault: str, sampler: Sampler) -> Status:
    """Of timed calls: work on another stream is right in the end, but no time says how long it took."""
    return "wrong-result" if fault else "suspicious" if sampler.idle else "ok"


def _progress(place: str) -> messages.Progress:
    return messages.Progress(place=place, resident_bytes=timing.resident_bytes())
