"""The worker's side on any device: keeps problems and loaded candidates, and carries out one request at a time."""

from __future__ import annotations

import contextlib
import gc
import importlib
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import msgspec

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import WORKER_FAULT, Device, Policy, Role, Status
from aot_tune.bench.worker import sandbox
from aot_tune.bench.worker.comparison import SurveyedResults
from aot_tune.bench.worker.engine import CallSet, Engine, FaultError, Timer, Turns, UnusableError
from aot_tune.bench.worker.inputs import call_of
from aot_tune.bench.worker.loaded_objects import LaunchError, Loaded, LoadError, RefusedError, load
from aot_tune.bench.worker.problem_state import ProblemState
from aot_tune.bench.worker.process_state import openmp_threads, restore_arithmetic
from aot_tune.bench.worker.verification import (
    GARBAGE,
    Attempt,
    Bits,
    Caller,
    FreshCalls,
    WorkspaceError,
    does_less,
    inspect,
    judge,
    other_results,
    plan,
    remembers,
    verify,
)
from aot_tune.spec import Baseline, Operator
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.processes import resident_bytes

Emit = Callable[[messages.Reply], None]
_COLLECTED = 32
"""After so many candidates, what they left in cycles is freed. That takes 5 ms."""
_COPIES = 4
"""About how many copies of a problem's tensors its buffers take."""


class PreparedBaseline(NamedTuple):
    """A baseline on a problem, ready to be timed.

    `error` is the largest error of its outputs, in tolerances. `note` is what is wrong if that is more than 1, or what
    is odd about how it is timed. It is `wrong` if it should be right.
    """

    timer: Turns
    error: float
    note: str
    wrong: bool


def prepare_baseline(engine: Engine, state: ProblemState, name: str) -> PreparedBaseline:
    """Import what a baseline requires, hand it the tensors, run it. Raises UnusableError when it cannot run."""
    operator, sets = state.operator, state.rotation()
    first = sets[0]
    baseline, module = _baseline_of(operator, name)  # not in the block: a module may make tensors when it is imported
    framework = importlib.import_module(baseline.requires.partition(".")[0])
    with engine.framework(state.check, sets):
        functions = []
        for calls in sets:
            present = [t for t in operator.tensors if t.name in calls.layouts]
            try:
                arrays = {
                    t.name: engine.handed_on(framework, t, calls.layouts[t.name], calls.storages[t.name])
                    for t in present
                }
            except AttributeError as missing:
                raise UnusableError(f"{baseline.requires} cannot be used here: {missing}") from missing
            functions.append(baseline.prepare(module, call_of(operator, state.check, arrays)))
        first.poison()
        for _ in range(2):  # in their first call, frameworks allocate, choose and compile
            first.undo()
            functions[0]()
        engine.check()
        fault, error = judge(engine, state, first)
        first.undo()
        timer = engine.framework_timer(functions, sets)
    wrong = bool(fault) and not baseline.partial(state.check.problem)
    return PreparedBaseline(timer, error, "; ".join(n for n in (fault, timer.note) if n), wrong)


def _baseline_of(operator: Operator, name: str) -> tuple[Baseline, ModuleType]:
    """A baseline of an operator, and its module. Raises UnusableError when there is none of either."""
    baseline = next((b for b in operator.baselines if b.name == name), None)
    if baseline is None:
        raise UnusableError(f"operator {operator.name!r} has no baseline {name!r}")
    try:
        return baseline, importlib.import_module(baseline.requires)
    except ImportError as missing:
        raise UnusableError(f"{baseline.requires} cannot be used here: {missing}") from missing


class _Ready:
    """A candidate on a problem, ready for timed calls. The first call set's results are looked at.

    Raises:
        WorkspaceError, LaunchError: as `Caller` does, and when a call fails.
    """

    def __init__(self, engine: Engine, loaded: Loaded, sets: Sequence[CallSet]) -> None:
        self._engine, self._loaded, self._sets, self.calls = engine, loaded, sets, sets[0]
        self.caller, self.timer = self._made()
        self.threads = 0
        if (alone := engine.alone(self.timer, self._made)) is not None:
            (self.caller, self.timer), self.threads = alone, 1

    def _made(self) -> tuple[Caller, Timer]:
        caller = Caller(self._engine, self._loaded, self._sets)
        return caller, self._engine.timer(self._sets, self._loaded.launch, caller.arguments)

    def team(self) -> AbstractContextManager[None]:
        """In the block, calls have the threads that they are to be timed with."""
        return openmp_threads(self.threads)

    def first_call(self) -> None:
        """Poison the outputs. Make a call if that must not be a timed one."""
        if self._engine.at_once:
            self.caller.run(GARBAGE[0])
        else:
            self.calls.poison()

    def settle(self) -> None:
        """A call whose results are checked, because those of timed calls were undone, or used those of others."""
        if self.calls.sources:
            self.caller.run(GARBAGE[1])


class _Accepted(NamedTuple):
    """Outputs that were right, and those of a call like it, see `other_results`."""

    bits: Bits = MappingProxyType({})
    others: Bits = MappingProxyType({})


class WorkerSession:
    """The worker's side, on any device."""

    def __init__(self, engine: Engine, role: Role) -> None:
        self._engine, self._role = engine, role
        self._results = SurveyedResults()
        self._operators: dict[str, Operator] = {}
        self._named: dict[str, messages.Work] = {}
        self._states: OrderedDict[str, ProblemState] = OrderedDict()
        self._loaded: dict[str, Loaded] = {}
        self._ready: dict[tuple[str, str], _Ready] = {}
        self._baselines: dict[str, PreparedBaseline] = {}
        self._accepted: OrderedDict[tuple[str, str], _Accepted] = OrderedDict()
        self._runs: dict[tuple[str, str], tuple[float, ...]] = {}
        self._actions: dict[type, Callable[[Any, Emit], messages.Reply]] = {
            messages.Ping: lambda _request, _emit: messages.Pong(),
            messages.Work: self._work,
            messages.Prepare: self._prepare,
            messages.Reference: self._reference,
            messages.Load: self._load,
            messages.Unload: self._unload,
            messages.Verify: self._verify,
            messages.Screen: self._bench,
            messages.SurveyOne: self._survey,
            messages.PrepareBaseline: self._baseline,
            messages.Turn: self._turn,
        }
        self._modules, self._unloaded = _quiet_collector(), 0

    def handle(self, request: messages.Request, emit: Emit) -> messages.Reply:
        """Answer a request. `emit` sends messages in between. If the device is at fault, this is the last answer."""
        action, engine, said = self._actions[type(request)], self._engine, ""
        if isinstance(request, (messages.Ping, messages.Work)):  # these do not touch the device
            return action(request, emit)
        try:
            for _ in range(2):
                try:
                    with engine.acting(request):
                        return action(request, emit)
                except engine.out_of_memory as error:
                    said = str(error).partition("\n")[0]
                self.clean()  # only now, because the error's frames held what they had allocated
            return messages.Failure(kind="OutOfMemoryError", reason=said, status="oom")
        except FaultError as fault:
            return _last_word(fault)
        except Exception:  # whatever the error was, a fault of the device matters more
            try:
                engine.check()
            except FaultError as fault:
                return _last_word(fault)
            raise

    def clean(self) -> None:
        """After a request that failed: lift the memory limit, and release scarce device memory that is not in use."""
        sandbox.memory_limit(None)
        if self._engine.on_host:
            return
        for ready in self._ready.values():
            ready.timer.close()
        self._ready.clear()
        self._accepted.clear()
        for state in self._states.values():
            state.close()
        self._engine.free()

    def _operator(self, folder: str) -> Operator:
        if folder not in self._operators:
            self._operators[folder] = load_operator(Path(folder))
            self._modules = _quiet_collector()  # an operator stays: later collections need not look at it
        return self._operators[folder]

    def _state(self, key: str) -> ProblemState:
        """A named problem. From now on it counts as the last one that was used."""
        if key not in self._states:
            work = self._named[key]
            self._states[key] = ProblemState(
                self._engine, self._operator(work.operator_folder), work.check, Path(work.folder)
            )
        self._states.move_to_end(key)
        return self._states[key]

    def _ready_for(self, handle: str, key: str) -> _Ready:
        if (handle, key) not in self._ready:
            self._ready[handle, key] = _Ready(self._engine, self._loaded[handle], self._state(key).rotation())
        return self._ready[handle, key]

    @contextmanager
    def _confined(self) -> Iterator[None]:
        """The block may take only so much of the host's memory beyond what is held now."""
        sandbox.memory_limit(self._engine.host_memory)
        try:
            yield
        finally:
            sandbox.memory_limit(None)

    def _work(self, request: messages.Work, _emit: Emit) -> messages.Reply:
        self._named[request.key] = request
        self._operator(request.operator_folder)  # reports one that cannot be loaded
        return messages.Done()

    def _prepare(self, request: messages.Prepare, _emit: Emit) -> messages.Reply:
        self._warm([request.key], quick=True)
        state = self._state(request.key)
        state.rotation()
        self._collect()
        remark, log = self._engine.probe(state.cold() if request.probe else ())
        return messages.Done(remark=remark, log=log)

    def _warm(self, keys: Sequence[str], quick: bool) -> None:
        """Make the buffers of some problems, see `_fill`. Release those of others that were used longest ago."""
        new = [self._named[k] for k in keys if not self._state(k).bytes]
        coming = sum(self._operator(w.operator_folder).tensor_bytes(w.check.problem) for w in new)
        self._make_room(keys, _COPIES * coming)
        for key in keys:
            state = self._state(key)
            if self._role == "candidate" or self._engine.on_host:  # on a device, those for timed calls are others
                for placement in state.placements()[: 1 if quick else None]:
                    state.at(placement)
            _ = state.expected

    def _collect(self) -> None:
        """Free what is in cycles. This is between problems: nothing is timed."""
        gc.collect()
        if len(sys.modules) > self._modules:  # what a framework imported stays: no later collection looks at it
            self._modules = _quiet_collector()

    def _make_room(self, keys: Sequence[str], coming: int = 0) -> None:
        """If there are too many buffers for `coming` bytes, release the least used, but those of `keys`."""
        held = coming + sum(s.bytes for s in self._states.values())
        used = {*keys, *(k for _, k in self._ready)}
        for key, state in list(self._states.items()):
            if held <= self._engine.kept_memory:
                break
            if key not in used:
                held -= state.bytes
                state.close()

    def _reference(self, request: messages.Reference, _emit: Emit) -> messages.Reply:
        operator = self._operator(request.operator_folder)
        remark = self._engine.write_reference(operator, request.check, Path(request.folder))
        self._collect()
        return messages.Done(remark=remark)

    def _load(self, request: messages.Load, emit: Emit) -> messages.Reply:
        emit(_progress("load"))
        try:
            with self._confined():
                loaded = load(Path(request.path), request.symbol, request.variant)
                if not self._engine.on_host:
                    loaded.preload()
                self._loaded[request.handle] = loaded
        except (LoadError, LaunchError) as error:
            self._engine.forget()
            return messages.Failure(kind="LoadError", reason=error.what)
        return messages.Done()

    def _unload(self, request: messages.Unload, _emit: Emit) -> messages.Reply:
        for pair in [p for p in self._ready if p[0] == request.handle]:
            self._ready.pop(pair).timer.close()
        for of_pairs in (self._accepted, self._runs):
            for pair in [p for p in of_pairs if p[0] == request.handle]:
                del of_pairs[pair]
        if request.handle in self._baselines:
            self._baselines.pop(request.handle).timer.close()
        if request.handle in self._loaded:
            self._loaded.pop(request.handle).close()
            self._unloaded += 1
            if self._unloaded % _COLLECTED == 0:  # each leaves 25 KB in a cycle
                self._collect()
        restore_arithmetic()  # loading code that is linked for fast mathematics changes it
        return messages.Done()

    def _verify(self, request: messages.Verify, emit: Emit) -> messages.Reply:
        loaded, alone = self._loaded[request.handle], len(request.keys) == 1
        self._warm(request.keys, request.quick)
        worst, bitwise, checked = 0.0, None, messages.Checked(status="ok")
        refused: list[str] = []
        for turn, key in enumerate(request.keys):
            state = self._state(key)
            if request.repeat:
                state.second()
            runs = plan(
                state,
                self._engine,
                quick=request.quick,
                alone=alone,
                repeat=request.repeat,
                threads=request.threads,
                turn=turn,
            )
            try:
                attempt = Attempt(self._engine, loaded, state, timed=alone)
                with self._confined():
                    tell = lambda where: emit(_progress(where))  # noqa: E731
                    checked, bits = verify(attempt, state.check, runs, tell, renewed=request.renewed)
            except WorkspaceError as error:
                return messages.Checked(status="skipped", reason=str(error))
            except RefusedError as error:
                refused.append(error.what)
                continue
            if alone:
                self._accept(request.handle, key, checked.runs, _Accepted(bits, attempt.others))
            worst = max(worst, checked.error)
            bitwise = checked.bitwise if bitwise is None else bitwise and checked.bitwise is not False
            if checked.status != "ok":
                break
        if len(refused) == len(request.keys):  # of one problem that is no fault: the next variant serves it
            return messages.Checked(status="failed" if len(refused) > 1 else "skipped", reason=refused[0])
        return msgspec.structs.replace(checked, error=worst, bitwise=bitwise)

    def _accept(self, handle: str, key: str, runs: tuple[float, ...], accepted: _Accepted) -> None:
        """Keep outputs that were right, to compare with after timed calls, and the times of single calls."""
        self._accepted[handle, key], self._runs[handle, key] = accepted, runs
        self._accepted.move_to_end((handle, key))
        while len(self._accepted) > self._engine.kept_results:
            self._accepted.popitem(last=False)

    def _bench(self, request: messages.Screen, emit: Emit) -> messages.Reply:
        key = request.handle, request.key
        runs = self._runs.pop(key, ())
        if len(runs) > 1 and min(runs) > self._engine.hopeless_ns(request.best_ns or math.inf):
            self._accepted.pop(key, None)
            return messages.Timed(samples=runs)
        emit(_progress("timed calls"))
        return _timed(lambda: self._screen(request))

    def _screen(self, request: messages.Screen) -> messages.Timed:
        """A verified candidate's screen."""
        key, state = (request.handle, request.key), self._state(request.key)
        self._engine.get_ready()
        with self._confined():
            ready = self._ready_for(*key)
        with ready.team():
            with self._confined():
                ready.calls.poison()
                taken = ready.timer.screen(request.best_ns)
                ready.settle()
            best = min(taken.samples)
            tested = taken.status == "ok" and (request.best_ns is None or best < request.best_ns)
            less, fault = self._look_after(ready, state, self._accepted.pop(key, _Accepted()), best, tested=tested)
        self._ready.pop(key).timer.close()
        taken = msgspec.structs.replace(taken, threads=ready.threads)
        return _told(taken, fault and f"{fault} (after {ready.timer.made} timed calls)", less)

    def _look_after(
        self, ready: _Ready, state: ProblemState, accepted: _Accepted, call_ns: float, *, tested: bool
    ) -> tuple[str, str]:
        """How a candidate does less when a call is repeated, if it is `tested`, and what is wrong after all calls."""
        fault = self._fault(ready, state, accepted.bits)
        if fault or not tested:
            return "", fault
        with self._confined():
            fresh = FreshCalls(self._engine, ready.caller.call, ready.calls, call_ns)
            less = does_less(fresh.play, max(call_ns, 1.0), self._engine.least_ns)
        fault = self._fault(ready, state, accepted.bits)
        if accepted.others and not (less or fault):
            with self._confined():
                others = other_results(self._engine, state, ready.caller, before=accepted.others)
            fault = ready.caller.changed() or remembers(self._engine, state, ready.calls, accepted.others, others)
        return less, fault

    def _fault(self, ready: _Ready, state: ProblemState, bits: Bits) -> str:
        """What is wrong after timed calls. If the bits are those that were right before, nothing is."""
        workspace, changed = ready.caller.workspace, ready.caller.changed()
        fault, _, same = inspect(self._engine, state, ready.calls, workspace, bits)
        fault = changed or fault
        if not (fault or same or self._engine.at_once or ready.threads):  # otherwise bits may differ
            fault = ready.calls.unsteady(bits)
        if fault:
            state.restore()
            if workspace is not None:
                workspace.heal()
        return fault

    def _survey(self, request: messages.SurveyOne, emit: Emit) -> messages.Reply:
        emit(_progress("calls of a survey"))
        if request.first:
            self._make_room([request.key])
        return _timed(lambda: self._surveyed(self._loaded[request.handle], self._state(request.key), request))

    def _surveyed(self, loaded: Loaded, state: ProblemState, request: messages.SurveyOne) -> messages.Timed:
        """A candidate's times on a problem without reference results."""
        self._engine.get_ready()
        with self._confined():
            ready = _Ready(self._engine, loaded, state.rotation())
        with contextlib.closing(ready.timer), ready.team():
            with self._confined():
                ready.first_call()
                taken = ready.timer.screen(request.best_ns)
                ready.settle()
            fault = ready.caller.changed()
            if not (fault or request.again):
                results = ready.calls.results()
                fault = self._survey_fault(ready.calls) or self._results.compare(
                    request.key, results, first=request.first
                )
            if fault:
                state.restore()
        return _told(messages.Timed(samples=taken.samples, overhead=taken.overhead), fault)

    def written(self) -> str:
        """What was written to of all problems, and must not be, or empty."""
        calls = (calls for state in self._states.values() for calls in state.sets())
        return next(filter(None, map(self._survey_fault, calls)), "")

    def _survey_fault(self, calls: CallSet) -> str:
        """What was written to, and must not be."""
        flags = calls.changed()
        answers = self._engine.answers([written for _, written in flags])
        return next((calls.describe(name) for (name, _), written in zip(flags, answers, strict=True) if written), "")

    def _baseline(self, request: messages.PrepareBaseline, _emit: Emit) -> messages.Reply:
        self._warm([request.key], quick=True)
        try:
            prepared = prepare_baseline(self._engine, self._state(request.key), request.name)
        except UnusableError as error:
            return messages.Empty(reason=str(error))
        self._baselines[request.handle] = prepared
        self._collect()
        status: Status = "wrong-result" if prepared.wrong else "ok"
        return messages.Checked(status=status, error=prepared.error, reason=prepared.note)

    def _turn(self, request: messages.Turn, emit: Emit) -> messages.Reply:
        if request.handle in self._baselines:
            timer = self._baselines[request.handle].timer
            return timer.turn(request.calls, request.warm, clock=request.clock)
        emit(_progress("timed calls of a race"))
        return _timed(lambda: self._sample(request))

    def _sample(self, request: messages.Turn) -> messages.Timed:
        """A candidate's sample in a race."""
        key = request.handle, request.key
        self._engine.get_ready()
        with self._confined():
            ready = self._ready_for(*key)
        with ready.team():
            with self._confined():
                if request.fresh or request.poison:
                    ready.calls.poison()
                taken = ready.timer.turn(request.calls, request.warm, clock=request.clock)
                if request.fresh:
                    ready.settle()
            taken = msgspec.structs.replace(taken, threads=ready.threads)
            if not request.fresh:
                return _told(taken, ready.caller.changed())
            note = ready.caller.loaded.note(ready.calls.arguments)
            state, accepted = self._state(request.key), self._accepted.get(key, _Accepted())
            less, fault = self._look_after(ready, state, accepted, taken.samples[0], tested=taken.status == "ok")
        noted = msgspec.structs.replace(taken, reason=note)
        return _told(noted if taken.status == "ok" else taken, fault and f"{fault} (after a race)", less)


def _progress(place: str) -> messages.Place:
    """Where this worker is now."""
    return messages.Place(place=place, resident_bytes=resident_bytes())


def _last_word(fault: FaultError) -> messages.Failure:
    """A worker's last message, if its device is at fault: the candidate's or the machine's fault."""
    status: Status = "crashed" if fault.by_kernel else "failed"
    reason = str(fault) if fault.by_kernel or str(fault).startswith(WORKER_FAULT) else f"{WORKER_FAULT}{fault}"
    return messages.Failure(kind="FaultError", reason=reason, status=status, last=True)


def _told(taken: messages.Timed, fault: str, less: str = "") -> messages.Timed:
    """Times, with what is wrong after timed calls, or how a candidate does less when a call is repeated."""
    if fault:
        return msgspec.structs.replace(taken, status="wrong-result", reason=fault)
    return msgspec.structs.replace(taken, status="suspicious", reason=less) if less else taken


def _timed(take: Callable[[], messages.Timed]) -> messages.Timed:
    """Times, or why there are none."""
    try:
        return take()
    except RefusedError as error:  # of one shape that is no fault
        return messages.Timed(samples=(), status="skipped", reason=error.what)
    except LaunchError as error:
        return messages.Timed(samples=(), status="failed", reason=f"launch failed while it was timed: {error}")
    except WorkspaceError as error:
        return messages.Timed(samples=(), status="skipped", reason=str(error))


def _quiet_collector() -> int:
    """Keep Python's garbage collector out of timed loops. Returns how many modules are imported."""
    gc.collect()
    gc.freeze()
    gc.disable()
    return len(sys.modules)


def session_of(policy: Policy, role: Role, device: Device) -> WorkerSession:
    """The session for a device. `make_engine` of its module in this package makes the engine."""
    module = importlib.import_module(f"aot_tune.bench.worker.{device.family}_engine")
    return WorkerSession(module.make_engine(policy, role, device), role)
