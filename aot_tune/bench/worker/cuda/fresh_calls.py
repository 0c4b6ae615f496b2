"""Calls on a GPU that each differ from the call before, beside calls that are repeated. See `honesty`.

Both kinds write to the same places before each call, so that caches are in the same state. Only the contents differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from aot_tune.bench.worker.cuda.engine import Call, CaptureError, Engine, Recorded
from aot_tune.bench.worker.cuda.restoring import Undo, put_back
from aot_tune.bench.worker.cuda.state import CallSet
from aot_tune.bench.worker.honesty import exchangeable

__all__ = ["FreshCalls"]

_SAMPLE_NS = 200_000
_MOST = 16


class FreshCalls:
    """A candidate on one call set. The outputs of the set hold the right results for its inputs.

    Args:
        engine: of the device.
        call: the candidate's call on the set.
        calls: the call set.
        call_ns: roughly the time of a call.
    """

    def __init__(self, engine: Engine, call: Call, calls: CallSet, call_ns: float) -> None:
        self._engine, self._call, self._calls = engine, call, calls
        self._count = min(max(2 * round(_SAMPLE_NS / max(call_ns, 1.0) / 2), 2), _MOST)
        made = [t.name for t in calls.outputs() if t.name not in calls.sources]
        self._outputs = [calls.storages[name] for name in made if calls.storages[name].numel()]
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
            batch += [_copying(copies, self._undo), _changing(changes, number & 1), self._call]
        try:
            return self._engine.record(batch)
        except CaptureError:
            return self._engine.plain(batch)

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


def _copying(copies: list[tuple[Any, Any]], undo: list[Undo]) -> Call:
    def copy() -> int:
        for storage, source in copies:
            storage.copy_(source)
        for one in undo:
            one()
        return 0

    return copy


def _changing(changes: list[tuple[Any, tuple[Any, Any]]], turn: int) -> Call:
    def change() -> int:
        for element, contents in changes:
            element.copy_(contents[turn])
        return 0

    return change
