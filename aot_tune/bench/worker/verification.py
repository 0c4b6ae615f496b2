"""Whether a loaded candidate is right, and whether it is honest.

It is right if its values are, nothing else is written, nothing is read outside, and bits are the same again. A plan
says which runs are made on a problem. Each is judged.

It is honest if it does no less when a call is repeated, as in timed calls, than in a call whose results are needed.
Calls are timed in two ways. Before each call, its outputs and an element of each input are written. In a fresh call,
that is poison and another element. In a repeated call, it is what is there already. An honest candidate takes the same
time in both. A candidate that notices that its output exists, or that its inputs have not changed, does not.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from aot_tune.bench.protocol.measurement_records import Check, Status
from aot_tune.bench.protocol.messages import Checked
from aot_tune.bench.worker.comparison import is_off
from aot_tune.bench.worker.engine import Arena, Call, CallSet, Engine, Placement, Undo, exchangeable
from aot_tune.bench.worker.loaded_objects import LaunchError, Loaded, RefusedError
from aot_tune.bench.worker.problem_state import ProblemState
from aot_tune.bench.worker.process_state import arithmetic_change, arithmetic_now, guarded, openmp_threads
from aot_tune.spec.calls import aliases_on

_SHARE, _SHORT_SHARE, _SHORT_NS = 0.08, 0.25, 1_600
"""Shares of a call's time, and ns. Less is noise: of a call that is shorter than 20 us, clocks tell less."""
_PAIRS = 16
"""Pairs of a repeated and a fresh play. Other programs make single plays of either kind longer, but not all of one
kind."""
_LEAST_PAIRS, _LONG_NS = 8, 1_000_000
"""Of calls that are longer, one pair tells as much, and so do two equal repeated plays."""
_PAUSES = (0.0, 0.02, 0.08, 0.3)
"""Seconds before each test. The pairs of a test take milliseconds. A core may slow down in between, and stay slow."""
_REPEATS, _REPEATED_NS = 30, 6e8
"""How often a winner's call is repeated, and the most ns of all repeats."""
_TOGETHER, _TOGETHER_NS, _TOGETHER_MOST = 4, 1e7, 1e8
"""The least calls of each of two callers at once, and for how many ns they call: on a core, and at most in all."""
_APART = 2.0
"""Tolerances by which results of different calls differ."""


_OFTEN = 4
"""Of so many problems, one has a run with three threads, which is no power of two. On two cores, they wait long."""
GARBAGE = (0xFF, 0x7F)
"""Bytes that fill a workspace before the runs of one problem, in turn: NaN, then 3.4e38."""

Bits = Mapping[str, Any]
"""Bytes of outputs, by name."""

_BESIDE: Mapping[Placement, str] = MappingProxyType(
    {
        "inside": "",
        "end": ", whose tensors end where memory that may be read ends",
        "start": ", whose tensors begin where memory that may be read begins",
    }
)


_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "": "",
        "between": ", between kernels that write its inputs",
        "repeated": ", in a repeated call",
        "together": ", with two callers at once",
    }
)


class WorkspaceError(Exception):
    """A candidate asks for more workspace than it may have."""


class Trial(NamedTuple):
    """One run of a plan. `aliases` are the outputs that use an input's memory, `poison` is what the others hold.

    `locked` inputs cannot be written. OpenMP has so many `threads`, or as many as usual if that is 0. The stack may be
    `small`. `again` says that bits are compared with those of the first run. There is no run if one before it took
    longer than `most_ns`. A run is one call, or several:

    * `between` other kernels that come right before and after the call, see `Engine.chains`
    * `repeated` while the device is busy
    * `together` with a caller that calls with other data at the same time
    """

    placement: Placement = "inside"
    aliases: Mapping[str, str] = MappingProxyType({})
    again: bool = False
    most_ns: float = math.inf
    poison: int = 0
    locked: bool = False
    threads: int = 0
    small: bool = False
    kind: Literal["", "between", "repeated", "together"] = ""

    @property
    def beside(self) -> str:
        """Which outputs use which input's memory, and how calls are made, to follow a problem's name."""
        aliases = [f", {output!r} in the memory of {name!r}" for output, name in self.aliases.items()]
        threads = f", with {self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        return "".join([*aliases, threads, _KINDS[self.kind]])

    @property
    def limits(self) -> str:
        """What memory allows in the run, to follow these."""
        locked, small = ", whose inputs cannot be written" * self.locked, ", on a stack of 256 KiB" * self.small
        return _BESIDE[self.placement] + locked + small


def plan(
    state: ProblemState,
    engine: Engine,
    *,
    quick: bool = False,
    alone: bool = True,
    repeat: bool = False,
    threads: int = 0,
    turn: int = 0,
) -> list[Trial]:
    """The runs that verify a candidate. Only the first one, and those on aliases, if it is `quick`.

    `alone` says that it is the only problem, and `turn` its number otherwise. The poison of the first run is that of
    `turn`, and each run has the next one. With `repeat`, calls that go on for a while come last.
    """
    host, whole, steady = engine.on_host, not quick, bool(state.operator.deterministic)
    once = whole and (alone or (host and not turn))
    counts = (threads, 1, threads if turn % _OFTEN else 3)
    first, *others = (Trial(p, threads=n) for p, n in zip(state.placements(), counts, strict=False))
    short = first._replace(most_ns=engine.policy.long_ns if host and not steady else math.inf)
    longer = Trial(threads=threads, most_ns=_REPEATED_NS / _REPEATS)
    table = (
        (True, [first]),
        (once or (whole and host and steady), [short._replace(again=True, locked=True, small=alone)]),
        (once and host and not alone, [short._replace(small=True)]),
        (whole, others),
        (engine.edged and not (alone or turn), [Trial("end")]),
        (True, [Trial(aliases=aliases) for aliases in aliases_on(state.operator, state.check.problem)]),
        (once and not host, [Trial(kind="between")]),
        (repeat, [longer._replace(kind="repeated"), longer._replace(kind="together")]),
    )
    runs = [run for wanted, of_kind in table if wanted for run in of_kind]
    return [run._replace(poison=turn + number) for number, run in enumerate(runs)]


class TrialResult(NamedTuple):
    """What a run did: its ns, what is wrong, the largest error in tolerances, and whether the bits were the same."""

    ns: float
    fault: str
    error: float
    same: bool


def verify(
    attempt: Attempt, check: Check, plan: Sequence[Trial], tell: Callable[[str], None], *, renewed: bool = False
) -> tuple[Checked, Bits]:
    """Make the runs of a plan. The first fault ends it. Returns the outputs too, if they are right.

    `tell` is told where it is. With `renewed`, other contents come before the first run, see `Attempt.make`.

    Raises:
        WorkspaceError: when the candidate wants too much.
        RefusedError: when it cannot serve the problem.
    """
    runs: list[float] = []
    worst, bitwise = 0.0, None
    bits: Bits = {}

    def ended(status: Status, reason: str) -> tuple[Checked, Bits]:
        attempt.restore(trial)
        return Checked(status=status, reason=reason, error=worst, bitwise=bitwise, runs=tuple(runs)), {}

    for trial in plan:
        if runs and min(runs) > trial.most_ns:
            continue
        tell(f"a run of {check.place}{trial.beside}{trial.limits}")
        try:
            earlier, second = ({}, False) if trial.aliases else (bits, len(runs) == 1)
            judged = attempt.make(trial, GARBAGE[second], earlier, renewed=renewed and not runs)
        except RefusedError:
            attempt.restore(trial)
            raise
        except LaunchError as failure:
            return ended("failed", f"{failure.what} ({check.place}{trial.beside})")
        worst = max(worst, judged.error)
        if not (trial.aliases or trial.kind):
            runs.append(judged.ns)
        if trial.again or trial.kind == "repeated":
            bitwise = judged.same and bitwise is not False
        if judged.fault:
            return ended("wrong-result", f"{judged.fault} ({check.place}{trial.beside}{_hint(check)})")
        bits = bits or attempt.bits(trial)
    return Checked(status="ok", error=worst, bitwise=bitwise, runs=tuple(runs)), bits


def _hint(check: Check) -> str:
    """What could be declared if calls have no such values, to follow a problem's name."""
    if check.special:
        return f"; if no call has any there, declare {check.special!r} with finite=True"
    if check.odd == "scalars":
        low = min(check.scalars.values()) <= 0
        return "; if no call passes that, declare the scalar with least=..." if low else ""
    return "; if no call has any, declare inputs with values=uniform(...) without 0" if check.odd else ""


class Caller:
    """A loaded candidate on call sets, with its workspace. A `second` caller has its own, and calls on its `stream`.

    Raises:
        WorkspaceError: when it asks for more than the policy allows.
        LaunchError: when its function returns an error.
    """

    def __init__(
        self,
        engine: Engine,
        loaded: Loaded,
        sets: Sequence[CallSet],
        stream: int | None = None,
        *,
        second: bool = False,
    ) -> None:
        self._engine, self.loaded, self.sets, self.first = engine, loaded, sets, sets[0]
        self._disturbed = ""
        self.changed()  # by nobody that is known
        size, operator = loaded.workspace_bytes(self.first.arguments), self.first.operator
        most = min(n for n in (engine.policy.workspace_bytes, operator.workspace_max) if n is not None)
        if size > most:
            raise WorkspaceError(f"asks for {size} bytes of workspace, but only {most} are allowed")
        make = engine.second_workspace if second else engine.workspace
        self.workspace: Arena | None = make(size, self.first.placement)
        piece = None if self.workspace is None else self.workspace.pieces["workspace"]
        stream = stream if second else engine.stream
        self.arguments = [s.arguments.launch(piece, stream) for s in sets]
        self.call: partial[int] = partial(loaded.launch, *self.arguments[0])
        self.other: partial[int] = partial(loaded.launch, *self.first.other_arguments.launch(piece, stream))

    def changed(self) -> str:
        """See `Arguments.changed`, of all call sets, and what runs did to the thread that called."""
        every = [self.first.other_arguments, *(s.arguments for s in self.sets)]
        return next(filter(None, [arguments.changed() for arguments in every]), self._disturbed)

    def run(self, garbage: int | None, poison: int = 0, *, renewed: bool = False, small: bool = False) -> float:
        """Poison the outputs, make the first call, and wait for it. Returns its ns.

        With `renewed`, contents are kept, and scalars are others. Without `garbage`, so is the workspace. On the host,
        the stack may be `small`.

        Raises:
            LaunchError: when the call returns an error.
            FaultError: when it spoils the device.
        """
        engine = self._engine
        self.first.poison(poison, renewed=renewed)
        if self.workspace is not None and garbage is not None:
            engine.fill(self.workspace.pieces["workspace"].storage, garbage)
        call = self.other if renewed else self.call
        engine.check()
        before = arithmetic_now()
        begin = time.perf_counter_ns()
        code, lost = guarded(call, small=small) if engine.on_host else (call(), "")
        if code:
            engine.forget()
        engine.check()
        end = time.perf_counter_ns()
        if engine.on_host:
            self._disturbed = lost or arithmetic_change(before) or self._disturbed
        if code:
            raise LaunchError(self.loaded.failure("_launch", code))
        return float(end - begin)


class Attempt:
    """A loaded candidate on a problem. A `FaultError` says that a run has spoiled the device.

    With `timed`, timed calls may follow. Then `others` are the outputs of the renewed call, see `other_results`.
    """

    def __init__(self, engine: Engine, loaded: Loaded, state: ProblemState, *, timed: bool = False) -> None:
        self._engine, self._loaded, self._state, self._timed = engine, loaded, state, timed
        self.others: Bits = {}

    def _calls(self, trial: Trial) -> CallSet:
        return self._state.at(trial.placement, trial.aliases)

    def make(self, trial: Trial, garbage: int, bits: Bits, *, renewed: bool) -> TrialResult:
        """Make a run on poisoned outputs, with a workspace full of `garbage`, and judge what it left.

        Outputs that hold `bits`, which were right before, are right. With `renewed`, there is first a call on other
        contents of the same memory, if there are any. Its result is not judged. It exposes a candidate that keeps, by
        the addresses of its inputs, what it made of them.

        Raises:
            LaunchError: when the call returns an error.
            WorkspaceError: when it wants too much.
        """
        calls = self._calls(trial)
        with self._engine.oddly(calls, locked=trial.locked, threads=trial.threads):
            caller = Caller(self._engine, self._loaded, [calls])
            if trial.kind:
                kinds = {"between": self._between, "repeated": self._repeated, "together": self._together}
                return kinds[trial.kind](caller, trial, bits)
            if renewed and self._timed:
                first = self._state.timed()
                calling = caller if first is calls else Caller(self._engine, self._loaded, [first])
                self.others = other_results(self._engine, self._state, calling, garbage)
            elif renewed:
                if calls.renew():
                    with contextlib.suppress(LaunchError):  # of these scalars that may be no fault
                        caller.run(garbage, trial.poison, renewed=True)
                calls.put_back()
            ns = caller.run(garbage, trial.poison, small=trial.small)
            changed = caller.changed()
            fault, error, same = inspect(self._engine, self._state, calls, caller.workspace, bits)
            fault = changed or fault or (calls.unsteady(bits) if trial.again and not same else "")
            if fault and caller.workspace is not None:
                caller.workspace.heal()
            return TrialResult(ns, fault, error, same)

    def _between(self, caller: Caller, trial: Trial, bits: Bits) -> TrialResult:
        """Calls right behind a kernel that writes the inputs late, and before kernels that overwrite them.

        Meanwhile the inputs hold other contents. A candidate that reads before the kernel before it has ended, or when
        later ones have begun, computes with those.
        """
        engine, calls, workspace = self._engine, caller.first, caller.workspace
        if not calls.renew():
            return TrialResult(0.0, "", 0.0, same=True)
        inputs = [(t, calls.storages[t.name]) for t in calls.inputs()]
        before = [(storage, calls.pristine[t.name]) for t, storage in inputs]
        over = [(storage, engine.clone(storage)) for _, storage in inputs]
        made = [(engine.clone(calls.storages[t.name]), calls.storages[t.name]) for t in calls.outputs()]
        error, same = 0.0, True
        for where, play in engine.chains(before, caller.call, (made, over)):
            calls.poison(trial.poison, renewed=True)
            engine.writing(over)()
            engine.check()
            play()
            engine.check()
            calls.put_back()
            engine.writing([(storage, kept) for kept, storage in made])()
            fault, worst, equal = inspect(engine, self._state, calls, workspace, bits)
            error, same = max(error, worst), same and equal
            if fault := caller.changed() or fault:
                return TrialResult(0.0, f"{fault}{where}", error, same)
        calls.put_back()
        return TrialResult(0.0, "", error, same)

    def _repeated(self, caller: Caller, _trial: Trial, bits: Bits) -> TrialResult:
        """Whether results are the same all the time while the device is busy. If not, they must be right at least."""
        engine, calls, same, fault = self._engine, caller.first, True, ""
        with engine.busy():
            for number in range(2, _REPEATS):
                caller.run(GARBAGE[number % 2], number)
                if any(engine.answers(calls.differs(bits))):
                    same, fault = False, calls.unsteady(bits) or judge(engine, self._state, calls)[0]
                if fault:
                    break
        return TrialResult(0.0, caller.changed() or fault, 0.0, same)

    def _together(self, caller: Caller, trial: Trial, bits: Bits) -> TrialResult:
        """Whether results are right when another caller calls with other data at the same time."""
        engine, state, calls, second = self._engine, self._state, caller.first, self._state.second()
        right = TrialResult(0.0, "", 0.0, same=True)
        (_, ours), (stream, theirs) = engine.callers()
        other = Caller(engine, caller.loaded, [second], stream, second=True)
        second.undo()
        second.renew()
        data = {name: engine.clone(second.storages[name]) for name in second.sources}
        try:
            other.run(GARBAGE[0], renewed=True)
        except LaunchError:  # of these scalars that may be no fault
            return right
        with theirs():  # until it is done
            wanted = second.bits()
        engine.check()
        begin = threading.Barrier(2, timeout=60.0)

        def use(one: CallSet, call: Call, right: Bits, sources: Bits, inside: Callable[[], Any]) -> Bits:
            reset = engine.writing([(one.storages[name], source) for name, source in sources.items()])
            begin.wait()
            with openmp_threads(trial.threads), inside():
                end, most, count = time.thread_time_ns() + _TOGETHER_NS, time.perf_counter_ns() + _TOGETHER_MOST, 0
                while count < _TOGETHER or (time.thread_time_ns() < end and time.perf_counter_ns() < most):
                    count += 1
                    reset()
                    if code := call():
                        raise LaunchError(caller.loaded.failure("_launch", code))
                    if any(engine.answers(one.differs(right))):
                        return one.bits()
            return {}

        with ThreadPoolExecutor(1) as thread:
            answer = thread.submit(use, second, other.other, wanted, data, theirs)
            mine, its = use(calls, caller.call, bits, calls.sources, ours), answer.result()
        second.put_back()
        fault = judge(engine, state, calls, mine)[0] if mine else ""
        return right._replace(fault=fault or (_differ(state, second, wanted, its) if its else ""))

    def bits(self, trial: Trial) -> Bits:
        """Copies of the bytes of the outputs."""
        return self._calls(trial).bits()

    def restore(self, trial: Trial) -> None:
        """Write inputs and guard zones of this run again."""
        self._calls(trial).restore()


def inspect(
    engine: Engine, state: ProblemState, calls: CallSet, workspace: Arena | None, bits: Bits
) -> tuple[str, float, bool]:
    """Judge what a run left behind.

    Returns what is wrong (empty when nothing is), the largest error in tolerances, and whether outputs hold `bits`, if
    there are any. These were right before, so their values need no look. The device gets all questions at once, and
    only a fault is looked at more closely.
    """
    flags = calls.changed()
    asked = [f for _, f in flags]
    if workspace is not None:
        asked.append(workspace.damaged())
    asked += calls.differs(bits)
    answers = engine.answers(asked)
    same = not any(answers[len(answers) - len(bits) :]) if bits else True
    for (name, _), hit in zip(flags, answers, strict=False):
        if hit:
            return calls.describe(name), 0.0, same
    if workspace is not None and answers[len(flags)]:
        return f"oob: guard zone of 'workspace': {workspace.damage()[1]}", 0.0, same
    if bits and same:
        return "", 0.0, True
    return (*judge(engine, state, calls), same)


def other_results(
    engine: Engine, state: ProblemState, caller: Caller, garbage: int | None = None, before: Bits = MappingProxyType({})
) -> Bits:
    """The outputs of a call on inputs of which a few elements changed places, with other scalars.

    Empty if it fails, or if they are as `before`. Right values are not known. But the same call has the same result
    before and after timed calls, unless a candidate keeps results, by where its inputs are or by some of their
    elements, or what it was once given.
    """
    calls = caller.first
    calls.undo()
    try:
        if not calls.swap(state.places):
            return {}
        caller.run(garbage, renewed=True)
        return {} if before and not any(engine.answers(calls.differs(before))) else calls.bits()
    except LaunchError:  # of these scalars that may be no fault
        return {}
    finally:
        calls.swap(state.places, back=True)
        calls.undo()


def remembers(engine: Engine, state: ProblemState, calls: CallSet, before: Bits, after: Bits) -> str:
    """What is wrong if results of `other_results` differ by more than rounding, in large values or by staleness."""
    if not (before and after):
        return ""
    kept = "it keeps something between calls: after timed calls, another call has another result"
    if fault := _differ(state, calls, before, after):
        return f"{kept}, {fault}"
    own = judge(engine, state, calls, after)[0] == "" and judge(engine, state, calls, before)[1] > _APART
    return kept if own else ""


def judge(engine: Engine, state: ProblemState, calls: CallSet, bits: Bits | None = None) -> tuple[str, float]:
    """What is wrong with the outputs' values, or empty, and the largest error. With `bits`, those that hold these."""
    errors = engine.answers([e.worst(calls.array(e.tensor, bits or {})) for e in state.expected.values()])
    if all(error <= 1.0 for error in errors):
        return "", max(errors, default=0.0)
    worst = 0.0
    for expected in state.expected.values():
        fault, error = ("", 0.0) if expected.undefined else expected.judge(calls.array(expected.tensor, bits or {}))
        worst = max(worst, error)
        if fault:
            return fault, worst
    return "", worst


def _differ(state: ProblemState, calls: CallSet, wanted: Bits, got: Bits) -> str:
    """Which output of a call differs by more than rounding from what it was before. Otherwise empty."""
    results = calls.results(got)
    for name, (values, epsilon, _) in calls.results(wanted).items():
        defined = name in state.expected and not state.expected[name].undefined
        if defined and epsilon is not None and is_off(results[name].values, values, epsilon):
            return f"{name!r} is not what it was before"
    return ""


def does_less(
    play: Callable[[bool], float], call_ns: float, least_ns: float, pause: Callable[[float], None] = time.sleep
) -> str:
    """What is wrong with a candidate that does less in repeated calls, in every test. Otherwise empty.

    The last play is a fresh one. Its results should be verified.

    Args:
        play: ns of a call and of the work before it. With True it is a fresh call, otherwise a repeated one.
        call_ns: ns of a call, as timed.
        least_ns: smaller differences are noise.
        pause: waits for so many seconds.
    """
    limit, least = max(min(max(_SHARE * call_ns, _SHORT_NS), _SHORT_SHARE * call_ns), least_ns), math.inf
    for seconds in _PAUSES:
        pause(seconds)
        more = _difference(play, limit)
        if more <= limit:
            return ""
        least = min(least, more)
    return (
        f"takes {(call_ns + least) / call_ns:.1f} times as long when its outputs are missing and its "
        "inputs have changed: it does less in a call that is repeated"
    )


def _difference(play: Callable[[bool], float], limit: float) -> float:
    """How many ns the shortest fresh play takes longer than the shortest repeated one.

    It stops as soon as this is noise, but not after a few pairs of which each repeated play may have been disturbed.
    """
    repeated, fresh = [math.inf], math.inf
    for number in range(1, _PAIRS + 1):
        repeated, fresh = sorted([*repeated, play(False)])[:2], min(fresh, play(True))
        sure = number >= _LEAST_PAIRS or fresh > _LONG_NS or repeated[1] - repeated[0] <= limit / 2
        if fresh - repeated[0] <= limit and sure:
            break
    return fresh - repeated[0]


class FreshCalls:
    """A candidate on one call set. The outputs of the set hold the right results for its inputs.

    Fresh and repeated calls copy from and to the same places before each call, and only the contents differ. So caches
    are in the same state, and no kind is slow because of where its source lies.

    Args:
        engine: of the device.
        call: the candidate's call on the set.
        calls: the call set.
        call_ns: roughly the time of a call.
    """

    def __init__(self, engine: Engine, call: Call, calls: CallSet, call_ns: float) -> None:
        self._engine, self._call, self._calls = engine, call, calls
        self._count = min(max(2 * round(engine.fresh_ns / max(call_ns, 1.0) / 2), 2), engine.fresh_calls)
        outputs = [s for t in calls.made() if len(s := calls.storages[t.name])]
        self._results = [engine.clone(s) for s in outputs]
        self._sources = [engine.beside(s) for s in outputs]
        self._copy = engine.writing(list(zip(outputs, self._sources, strict=True)))
        self._undo = [engine.put_back(calls.storages[name], source) for name, source in calls.sources.items()]
        self._inputs = [t for t in exchangeable(calls.operator, calls.inputs()) if len(calls.storages[t.name])]
        self._places = np.random.default_rng()

    def play(self, fresh: bool) -> float:
        """ns of a call and of the work before it. Afterwards the inputs are as they were.

        Raises:
            FaultError: when a call spoils the device.
            LaunchError: when one returns an error.
        """
        for held, result in zip(self._sources, self._results, strict=True):
            if fresh:
                self._engine.fill(held, 0xFF)
            else:
                self._engine.writing([(held, result)])()
        changes = self._changes(fresh)
        batch: list[Call] = []
        for number in range(self._count):
            batch += [self._copy, *self._undo, changes[number & 1], self._call]
        return self._engine.play(batch) / self._count

    def _changes(self, fresh: bool) -> tuple[Undo, Undo]:
        """What to write in turn to an element of each input: another element, then its own."""
        other, own = [], []
        for tensor in self._inputs:
            storage, pristine = self._calls.storages[tensor.name], self._calls.pristine[tensor.name]
            elements = _two_elements(pristine, tensor.dtype.itemsize, self._places)
            if elements is not None:
                mine, another = elements
                other.append((storage[mine], pristine[another if fresh else mine]))
                own.append((storage[mine], pristine[mine]))
        return self._engine.writing(other), self._engine.writing(own)


def _two_elements(values: Any, width: int, places: np.random.Generator) -> tuple[slice, slice] | None:
    """Where two different elements of a storage are, or None if some tries found none."""
    count = len(values) // width
    for pair in places.integers(0, max(count, 1), (16, 2)).tolist() if count > 1 else ():
        one, other = (slice(n * width, (n + 1) * width) for n in pair)
        if (values[one] != values[other]).any():
            return one, other
    return None
