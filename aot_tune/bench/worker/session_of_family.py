"""The worker's side for every family: keeps problems and loaded candidates, and carries out one request at a time."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check, Device, Policy, Role
from aot_tune.bench.worker import sandbox
from aot_tune.bench.worker.call_tensors import CallTensors
from aot_tune.bench.worker.comparison import SurveyedResults
from aot_tune.bench.worker.honesty import does_less
from aot_tune.bench.worker.loaded_objects import LaunchError, Loaded, LoadError, load
from aot_tune.bench.worker.verification import Attempt, Bits, Trial, WorkspaceError, verify
from aot_tune.spec import Baseline, Operator
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.processes import resident_bytes

__all__ = ["Emit", "PreparedBaseline", "UnusableError", "WorkerSession", "baseline_of", "progress", "session_of"]

Emit = Callable[[messages.Reply], None]
_COPIES = 4
"""About how many copies of a problem's tensors its buffers take."""


class UnusableError(Exception):
    """A baseline cannot run here. The text says why."""


@dataclass(frozen=True)
class PreparedBaseline:
    """A baseline on a problem, ready to be timed.

    Args:
        sample: gives the mean ns of so many calls, after so many calls that are not timed.
        error: the largest error of its outputs, in tolerances.
        note: what is wrong if the error is more than 1. A baseline may compute less than the operator, such as a
            product without its epilogue.
        close: releases what it holds.
    """

    sample: Callable[[int, int], float]
    error: float
    note: str
    close: Callable[[], None] = lambda: None


def baseline_of(operator: Operator, name: str) -> tuple[Baseline, ModuleType]:
    """A baseline of an operator, and the module that it requires.

    Raises:
        UnusableError: when there is no such baseline, or no such module.
    """
    baseline = next((b for b in operator.baselines if b.name == name), None)
    if baseline is None:
        raise UnusableError(f"operator {operator.name!r} has no baseline {name!r}")
    try:
        return baseline, importlib.import_module(baseline.requires)
    except ImportError as missing:
        raise UnusableError(f"{baseline.requires} cannot be used here: {missing}") from missing


class _Held(Protocol):
    """One problem in one worker; `bytes` is what its buffers take."""

    @property
    def check(self) -> Check: ...

    @property
    def bytes(self) -> int: ...

    def rotation(self) -> Sequence[object]: ...

    def close(self) -> None: ...


class _Timeable(Protocol):
    """A candidate on a problem, ready for timed calls.

    `calls` are the tensors whose results are looked at, and `made` is how many calls there were. `first_call` poisons
    the outputs, and makes a call if that must not be a timed one. `settle` makes a call whose results stay, if those of
    timed calls were undone.
    """

    @property
    def calls(self) -> CallTensors[Any]: ...

    @property
    def made(self) -> int: ...

    def first_call(self) -> None: ...

    def settle(self) -> None: ...

    def close(self) -> None: ...


class _Playable(Protocol):
    """Fresh and repeated calls, see `honesty`."""

    def play(self, fresh: bool) -> float: ...


State = TypeVar("State", bound=_Held)
Ready = TypeVar("Ready", bound=_Timeable)


class WorkerSession(ABC, Generic[State, Ready]):
    """The worker's side of a family. The methods that differ between families are abstract.

    Args:
        policy: how to measure.
        role: what the worker runs.
        memory: bytes of the host's memory that a candidate's work may take beyond what is held before.
        most: bytes of the buffers that are kept while they are not in use.
        least_ns: differences between calls that count as noise.
    """

    def __init__(self, policy: Policy, role: Role, memory: int, most: int, least_ns: float) -> None:
        self._policy, self._role, self._memory, self._most, self._least_ns = policy, role, memory, most, least_ns
        self._results = SurveyedResults()
        self._operators: dict[str, Operator] = {}
        self._named: dict[str, messages.Work] = {}
        self._states: OrderedDict[str, State] = OrderedDict()
        self._loaded: dict[str, Loaded] = {}
        self._ready: dict[tuple[str, str], Ready] = {}
        self._baselines: dict[str, PreparedBaseline] = {}
        self._accepted: OrderedDict[tuple[str, str], Bits] = OrderedDict()
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
        self._modules = _quiet_collector()

    def handle(self, request: messages.Request, emit: Emit) -> messages.Reply:
        """Answer a request. `emit` sends messages in between."""
        return self._actions[type(request)](request, emit)

    def clean(self) -> None:
        """Put things in order after a request that failed: lift the memory limit."""
        sandbox.memory_limit(None)

    @abstractmethod
    def _make_state(self, operator: Operator, work: messages.Work) -> State:
        """A problem without any buffers yet."""

    @abstractmethod
    def _fill(self, state: State, quick: bool) -> None:
        """Make the buffers that a problem is verified with, those of the first run if it is `quick`."""

    @abstractmethod
    def _write_reference(self, operator: Operator, request: messages.Reference) -> None:
        """Compute the reference results."""

    @abstractmethod
    def _attempt(self, loaded: Loaded, state: State) -> Attempt:
        """A candidate on a problem, to be verified."""

    @abstractmethod
    def _plan(self, state: State, request: messages.Verify) -> Sequence[Trial]:
        """The runs that verify a candidate."""

    @abstractmethod
    def _make_ready(self, loaded: Loaded, state: State) -> Ready:
        """A candidate on a problem, ready for timed calls."""

    @abstractmethod
    def _take_screen(self, ready: Ready, best_ns: float | None) -> messages.Timed:
        """The samples of a screen. The status is not ok if they do not cover the work."""

    @abstractmethod
    def _take_turn(self, ready: Ready, request: messages.Turn) -> messages.Timed:
        """One sample of a race."""

    @abstractmethod
    def _fresh_calls(self, ready: Ready, state: State, call_ns: float) -> _Playable:
        """Calls by which a candidate is found that does less when a call is repeated."""

    @abstractmethod
    def _fault(self, ready: Ready, state: State, bits: Bits) -> str:
        """What is wrong after timed calls. If the bits are those that were right before, nothing is."""

    @abstractmethod
    def _survey_fault(self, ready: Ready, state: State, compared: Callable[[], str]) -> str:
        """What is wrong after a survey: what was written to, or else what a comparison says of the results."""

    @abstractmethod
    def _prepare_baseline(self, request: messages.PrepareBaseline) -> PreparedBaseline:
        """A baseline on a problem, or an `UnusableError`."""

    def _get_ready_to_time(self) -> None:
        """Find out, before any candidate is timed, what all times need."""

    def _operator(self, folder: str) -> Operator:
        if folder not in self._operators:
            self._operators[folder] = load_operator(Path(folder))
            self._modules = _quiet_collector()  # an operator stays: later collections need not look at it
        return self._operators[folder]

    def _state(self, key: str) -> State:
        """A named problem. From now on it counts as the last one that was used."""
        if key not in self._states:
            work = self._named[key]
            self._states[key] = self._make_state(self._operator(work.operator_folder), work)
        self._states.move_to_end(key)
        return self._states[key]

    def _ready_for(self, handle: str, key: str) -> Ready:
        if (handle, key) not in self._ready:
            self._ready[handle, key] = self._make_ready(self._loaded[handle], self._state(key))
        return self._ready[handle, key]

    @contextmanager
    def _confined(self) -> Iterator[None]:
        """The block may take only so much of the host's memory beyond what is held now."""
        sandbox.memory_limit(self._memory)
        try:
            yield
        finally:
            sandbox.memory_limit(None)

    def _work(self, request: messages.Work, _emit: Emit) -> messages.Reply:
        self._named[request.key] = request
        return messages.Done()

    def _prepare(self, request: messages.Prepare, _emit: Emit) -> messages.Reply:
        self._warm([request.key], quick=True)
        self._state(request.key).rotation()
        self._collect()
        return messages.Done()

    def _warm(self, keys: Sequence[str], quick: bool) -> None:
        """Make the buffers of some problems, see `_fill`. Release those of others that were used longest ago."""
        self._make_room_for(keys)
        for key in keys:
            self._fill(self._state(key), quick)

    def _make_room_for(self, keys: Sequence[str]) -> None:
        """Release buffers of other problems, so that there is room for those of these."""
        new = [self._named[k] for k in keys if not self._state(k).bytes]
        coming = sum(self._operator(w.operator_folder).tensor_bytes(w.check.problem) for w in new)
        self._make_room(keys, _COPIES * coming)

    def _collect(self) -> None:
        """Free what is in cycles. This is between problems: nothing is timed."""
        gc.collect()
        if len(sys.modules) > self._modules:  # what a framework imported stays: no later collection looks at it
            self._modules = _quiet_collector()

    def _make_room(self, keys: Sequence[str], coming: int = 0) -> None:
        """If there are too many buffers, release those that were used longest ago. Those of `keys` are kept.

        `coming` are the bytes that are about to be made.
        """
        held = coming + sum(s.bytes for s in self._states.values())
        used = {*keys, *(k for _, k in self._ready)}
        for key, state in list(self._states.items()):
            if held <= self._most:
                break
            if key not in used:
                held -= state.bytes
                state.close()

    def _reference(self, request: messages.Reference, _emit: Emit) -> messages.Reply:
        self._write_reference(self._operator(request.operator_folder), request)
        self._collect()
        return messages.Done()

    def _load(self, request: messages.Load, _emit: Emit) -> messages.Reply:
        try:
            with self._confined():
                self._loaded[request.handle] = self._open(request)
        except (LoadError, LaunchError) as error:
            return messages.Failure(kind="LoadError", reason=error.what)
        return messages.Done()

    def _open(self, request: messages.Load) -> Loaded:
        return load(Path(request.path), request.symbol, request.variant)

    def _unload(self, request: messages.Unload, _emit: Emit) -> messages.Reply:
        for pair in [p for p in self._ready if p[0] == request.handle]:
            self._ready.pop(pair).close()
        for pair in [p for p in self._accepted if p[0] == request.handle]:
            del self._accepted[pair]
        for kept in (self._loaded, self._baselines):
            if request.handle in kept:
                kept.pop(request.handle).close()
        return messages.Done()

    def _verify(self, request: messages.Verify, emit: Emit) -> messages.Reply:
        loaded = self._loaded[request.handle]
        self._warm(request.keys, request.quick)
        worst, bitwise, checked = 0.0, None, messages.Checked(status="ok")
        for key in request.keys:
            state = self._state(key)
            try:
                with self._confined():
                    checked, bits = verify(
                        self._attempt(loaded, state),
                        state.check,
                        self._plan(state, request),
                        lambda where: emit(progress(where)),
                        renewed=request.renewed,
                    )
            except WorkspaceError as error:
                return messages.Checked(status="skipped", reason=str(error))
            if len(request.keys) == 1:
                self._accept(request.handle, key, checked.runs, bits)
            worst = max(worst, checked.error)
            bitwise = checked.bitwise if bitwise is None else bitwise and checked.bitwise is not False
            if checked.status != "ok":
                break
        return msgspec.structs.replace(checked, error=worst, bitwise=bitwise)

    def _accept(self, handle: str, key: str, runs: tuple[float, ...], bits: Bits) -> None:  # noqa: ARG002
        """Keep outputs that were right, to compare with after timed calls."""
        self._accepted[handle, key] = bits

    def _bench(self, request: messages.Screen, emit: Emit) -> messages.Reply:
        emit(progress("timed calls"))
        return _timed(lambda: self._screen(request))

    def _screen(self, request: messages.Screen) -> messages.Timed:
        """A verified candidate's screen."""
        key, state = (request.handle, request.key), self._state(request.key)
        self._get_ready_to_time()
        with self._confined():
            ready = self._ready_for(*key)
            ready.calls.poison()
            taken = self._take_screen(ready, request.best_ns)
            ready.settle()
        best = min(taken.samples)
        tested = taken.status == "ok" and (request.best_ns is None or best < request.best_ns)
        less, fault = self._look_after(ready, state, self._accepted.pop(key, {}), best, tested=tested)
        self._ready.pop(key).close()
        return _told(taken, fault and f"{fault} (after {ready.made} timed calls)", less)

    def _look_after(self, ready: Ready, state: State, bits: Bits, call_ns: float, *, tested: bool) -> tuple[str, str]:
        """How a candidate does less when a call is repeated, if it is `tested`, and what is wrong after all calls."""
        fault = self._fault(ready, state, bits)
        if fault or not tested:
            return "", fault
        with self._confined():
            less = does_less(self._fresh_calls(ready, state, call_ns).play, max(call_ns, 1.0), self._least_ns)
        return less, self._fault(ready, state, bits)

    def _survey(self, request: messages.SurveyOne, emit: Emit) -> messages.Reply:
        emit(progress("calls of a survey"))
        if request.first:
            self._make_room([request.key])
        return _timed(lambda: self._surveyed(self._loaded[request.handle], self._state(request.key), request))

    def _surveyed(self, loaded: Loaded, state: State, request: messages.SurveyOne) -> messages.Timed:
        """A candidate's times on a problem without reference results."""
        self._get_ready_to_time()
        with self._confined():
            ready = self._make_ready(loaded, state)
        with contextlib.closing(ready):
            with self._confined():
                ready.first_call()
                taken = self._take_screen(ready, request.best_ns)
                ready.settle()
            fault = self._survey_fault(
                ready,
                state,
                lambda: self._results.compare(request.key, ready.calls.results(), first=request.first),
            )
        return _told(messages.Timed(samples=taken.samples, overhead=taken.overhead), fault)

    def _baseline(self, request: messages.PrepareBaseline, _emit: Emit) -> messages.Reply:
        self._make_room_for([request.key])
        try:
            prepared = self._baselines[request.handle] = self._prepare_baseline(request)
        except UnusableError as error:
            return messages.Empty(reason=str(error))
        self._collect()
        return messages.Checked(status="ok", error=prepared.error, reason=prepared.note)

    def _turn(self, request: messages.Turn, emit: Emit) -> messages.Reply:
        if request.handle in self._baselines:
            return self._time_baseline(self._baselines[request.handle], request)
        emit(progress("timed calls of a race"))
        return _timed(lambda: self._sample(request))

    def _sample(self, request: messages.Turn) -> messages.Timed:
        """A candidate's sample in a race."""
        key = request.handle, request.key
        self._get_ready_to_time()
        with self._confined():
            ready = self._ready_for(*key)
            if request.fresh or request.poison:
                ready.calls.poison()
            taken = self._take_turn(ready, request)
            if request.fresh:
                ready.settle()
        if not request.fresh:
            return taken
        state, bits = self._state(request.key), self._accepted.get(key, {})
        less, fault = self._look_after(ready, state, bits, taken.samples[0], tested=taken.status == "ok")
        return _told(taken, fault and f"{fault} (after a race)", less)

    def _time_baseline(self, baseline: PreparedBaseline, request: messages.Turn) -> messages.Timed:
        return messages.Timed(samples=(baseline.sample(request.calls, request.warm),))


def progress(place: str) -> messages.Place:
    """Where this worker is now."""
    return messages.Place(place=place, resident_bytes=resident_bytes())


def _told(taken: messages.Timed, fault: str, less: str = "") -> messages.Timed:
    """Times, with what is wrong after timed calls, or how a candidate does less when a call is repeated."""
    if fault:
        return msgspec.structs.replace(taken, status="wrong-result", reason=fault)
    return msgspec.structs.replace(taken, status="suspicious", reason=less) if less else taken


def _timed(take: Callable[[], messages.Timed]) -> messages.Timed:
    """Times, or why there are none."""
    try:
        return take()
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


def session_of(policy: Policy, role: Role, device: Device) -> WorkerSession[Any, Any]:
    """The session for a device. `make_session` of this package's module for the family makes it."""
    module = importlib.import_module(f"aot_tune.bench.worker.{device.family}.worker_session")
    return cast(WorkerSession[Any, Any], module.make_session(policy, role, device))
