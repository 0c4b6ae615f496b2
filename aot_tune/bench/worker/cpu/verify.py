"""Whether a loaded candidate is right: its values, nothing else written, nothing read outside, the same bits again.

And whether it is honest, see `honesty`: here are calls that each differ from the call before, beside repeated ones.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.protocol.measurement_records import Policy
from aot_tune.bench.worker import comparison
from aot_tune.bench.worker.cpu.engine import Region
from aot_tune.bench.worker.cpu.state import CallSet, Copies, ProblemState
from aot_tune.bench.worker.honesty import exchangeable, two_elements
from aot_tune.bench.worker.loaded_objects import LaunchError, Loaded
from aot_tune.bench.worker.process_state import arithmetic_change, arithmetic_now
from aot_tune.bench.worker.reference_results import Bounds
from aot_tune.bench.worker.stored_elements import limits_of, values_of
from aot_tune.bench.worker.verification import Bits, Trial, TrialResult, aliased, allowed_workspace
from aot_tune.spec import FLOATING, Tensor

__all__ = ["FreshCalls", "HostAttempt", "compare", "inspect", "plan", "same_bits", "unsteady", "workspace_for"]

_SAMPLE_NS = 100_000
_MOST = 256
_PAGE = mmap.PAGESIZE


class FreshCalls:
    """A candidate on one call set. The outputs of the set hold the right results for its inputs.

    Fresh and repeated calls copy from and to the same places before each call, and only the contents differ. So caches
    are in the same state, and no kind is slow because of where its source lies.

    Args:
        launch: the candidate's function.
        calls: the call set.
        pristine: the inputs' contents, by name.
        call_ns: roughly the time of a call.
        undone: what undoes a call on the tensors that it reads and writes.
    """

    def __init__(
        self,
        launch: Callable[..., Any],
        arguments: tuple[Any, ...],
        calls: CallSet,
        pristine: dict[str, Region],
        call_ns: float,
        undone: Copies | None = None,
    ) -> None:
        self._launch, self._arguments, self._calls, self._pristine = launch, arguments, calls, pristine
        self._outputs = [calls.storages[t.name] for t in calls.made()]
        self._undone = undone or []
        self._inputs = [t for t in exchangeable(calls.operator, calls.inputs()) if pristine[t.name].size]
        self._count = min(max(2 * round(_SAMPLE_NS / max(call_ns, 1.0) / 2), 2), _MOST)
        self._results = [r.bytes().copy() for r in self._outputs]
        self._sources = [_beside(r) for r in self._outputs]
        self._places = np.random.default_rng()

    def play(self, fresh: bool) -> float:
        """ns of a call and of the work before it. Afterwards the inputs are as they were.

        Raises:
            LaunchError: when a call fails.
        """
        for held, result in zip(self._sources, self._results, strict=True):
            held[...] = 0xFF if fresh else result
        copies = [(r.address, s.ctypes.data, r.size) for r, s in zip(self._outputs, self._sources, strict=True)]
        copies += self._undone
        changes = self._changes(fresh)
        memmove, launch, arguments = ctypes.memmove, self._launch, self._arguments
        codes = []
        begin = time.perf_counter_ns()
        for number in range(self._count):
            for address, source, size in copies:
                memmove(address, source, size)
            for address, contents, width in changes:
                memmove(address, contents[number & 1], width)
            codes.append(launch(*arguments))
        end = time.perf_counter_ns()
        for code in codes:
            if code:
                raise LaunchError(f"launch returned {code}")
        return (end - begin) / self._count

    def _changes(self, fresh: bool) -> list[tuple[int, tuple[int, int], int]]:
        """For an element of each input: where it is, and what to write there (another element, then its own)."""
        changes = []
        for tensor in self._inputs:
            pristine, width = self._pristine[tensor.name], tensor.dtype.itemsize
            places = two_elements(pristine.bytes(), width, self._places)
            if places is not None:
                one, other = places
                contents = (pristine.address + (other if fresh else one), pristine.address + one)
                changes.append((self._calls.storages[tensor.name].address + one, contents, width))
        return changes


def _beside(region: Region) -> NDArray[np.uint8]:
    """As many bytes as a region has, at the same place in a page.

    A copy from a few bytes below that place waits for its own stores, and takes ten times as long.
    """
    held = np.empty(region.size + _PAGE, np.uint8)
    start = (region.address - held.ctypes.data) % _PAGE
    return held[start : start + region.size]


def workspace_for(loaded: Loaded, calls: CallSet, policy: Policy) -> Region | None:
    """Guarded memory as large as the candidate asks for, or None when it asks for nothing.

    Raises:
        WorkspaceError: when it asks for more than the policy allows.
        LaunchError: when its function returns an error.
    """
    size = allowed_workspace(loaded.workspace_bytes(calls.arguments), policy)
    return Region(size, placement=calls.placement) if size else None


def plan(state: ProblemState, quick: bool) -> list[Trial]:
    """The runs that verify a candidate: in every placement, the first one twice. One run in all if it is `quick`.

    A long run is repeated only for operators that are deterministic, so that their bits must be equal.
    """
    first, *others = (Trial(placement) for placement in state.placements())
    most_ns = math.inf if state.operator.deterministic else state.policy.long_ns
    runs = [first] if quick else [first, first._replace(again=True, most_ns=most_ns), *others]
    return [*runs, *aliased(state.operator, state.check.problem)]


class HostAttempt:
    """See `Attempt`. A workspace of its own for each run."""

    def __init__(self, loaded: Loaded, state: ProblemState, policy: Policy) -> None:
        self._loaded, self._state, self._policy = loaded, state, policy

    def _calls(self, trial: Trial) -> CallSet:
        return self._state.at(trial.placement, trial.aliases)

    def make(self, trial: Trial, garbage: int, bits: Bits, *, renewed: bool) -> TrialResult:
        """Judges the thread's arithmetic too."""
        calls, loaded, state = self._calls(trial), self._loaded, self._state
        workspace = workspace_for(loaded, calls, self._policy)
        try:
            before = arithmetic_now()
            if renewed:
                if calls.renew():
                    _run(loaded, calls, workspace, garbage, renewed=True)
                calls.put_back()
            ns = _run(loaded, calls, workspace, garbage)
            disturbed, same = arithmetic_change(before), same_bits(calls, bits)
            fault, error = inspect(state, calls, workspace, whole=not (bits and same))
        finally:
            if workspace is not None:
                workspace.close()
        return TrialResult(ns, fault or disturbed or (unsteady(state, calls, bits) if trial.again else ""), error, same)

    def bits(self, trial: Trial) -> Bits:
        """With the gaps between rows."""
        calls = self._calls(trial)
        return {t.name: calls.storages[t.name].bytes().copy() for t in calls.outputs()}

    def restore(self, trial: Trial) -> None:
        """Those of this run alone."""
        self._calls(trial).restore()


def _run(loaded: Loaded, calls: CallSet, workspace: Region | None, garbage: int, *, renewed: bool = False) -> float:
    calls.poison(renewed=renewed)
    if workspace is not None:
        workspace.scribble(garbage)
    arguments = calls.arguments.launch(workspace)
    begin = time.perf_counter_ns()
    code = loaded.launch(*arguments)
    end = time.perf_counter_ns()
    if code != 0:
        raise LaunchError(loaded.failure("_launch", code))
    return float(end - begin)


def same_bits(calls: CallSet, bits: Bits) -> bool:
    """Whether all outputs, and the gaps between their rows, hold these bits."""
    return all(np.array_equal(calls.storages[n].bytes(), b) for n, b in bits.items())


def unsteady(state: ProblemState, calls: CallSet, bits: Bits) -> str:
    """Where outputs differ from those of an earlier run, if the operator is deterministic. Otherwise empty."""
    for name, before in bits.items() if state.operator.deterministic else ():
        differing = np.flatnonzero(calls.storages[name].bytes() != before)
        if differing.size:
            return (
                f"not deterministic: {differing.size} bytes of {name!r} differ between two runs, first {differing[0]}"
            )
    return ""


def inspect(state: ProblemState, calls: CallSet, workspace: Region | None, *, whole: bool = True) -> tuple[str, float]:
    """Judge what a run left behind: what is wrong (empty when nothing is), and the largest error in tolerances.

    Values are compared only when `whole`. Guard zones and inputs are always checked.
    """
    zones = {**calls.storages, **({"workspace": workspace} if workspace is not None else {})}
    for name, region in zones.items():
        damage = region.damage()
        if damage:
            return f"oob: guard zone of {name!r}: {damage}", 0.0
    pristine = state.pristine
    for tensor in calls.kept():
        region = calls.storages[tensor.name]
        if not region.same(pristine[tensor.name]):
            return f"input {tensor.name!r} was changed, first at {_first_change(region, pristine[tensor.name])}", 0.0
    worst = 0.0
    if whole:
        for tensor in calls.outputs():
            truth, values = state.truth[tensor.name]
            if not truth.undefined:
                fault, error = compare(tensor, calls.views[tensor.name], values, truth.bounds)
                worst = max(worst, error)
                if fault:
                    return fault, worst
            gap = _written_gap(tensor, calls)
            if gap:
                return gap, worst
    return "", worst


def _first_change(region: Region, pristine: Region) -> str:
    return f"byte {int(np.flatnonzero(region.bytes() != pristine.bytes())[0])}"


def _written_gap(tensor: Tensor, calls: CallSet) -> str:
    """Whether something was written between an output's rows, where no element is."""
    region, view, source = calls.storages[tensor.name], calls.views[tensor.name], calls.sources.get(tensor.name)
    if region.size == view.size * view.itemsize:
        return ""
    kept = view.copy()
    held = source.bytes().copy() if source is not None else np.full(region.size, 0xFF, np.uint8)
    view.view(np.dtype(f"u{view.itemsize}"))[...] = np.iinfo(f"u{view.itemsize}").max
    calls.layouts[tensor.name].array(np.dtype(f"u{view.itemsize}"), held)[...] = np.iinfo(f"u{view.itemsize}").max
    hit = np.flatnonzero(region.bytes() != held)
    view[...] = kept
    return (
        f"oob: {hit.size} bytes between the rows of {tensor.name!r} were written, first {int(hit[0])}"
        if hit.size
        else ""
    )


def compare(tensor: Tensor, got: NDArray[Any], want: NDArray[Any], bounds: Bounds) -> tuple[str, float]:
    """See `comparison.compare`. `got` is like a call set's views."""
    # Only one of the bytes that numpy takes for true is right.
    got = got.view(np.uint8) if got.dtype.kind == "b" else got
    got = values_of(tensor.dtype, got)
    highest = limits_of(tensor.dtype).max if tensor.dtype.code in FLOATING else np.inf
    with np.errstate(all="ignore"):
        return comparison.compare(np, tensor.name, got, want, bounds, highest)
