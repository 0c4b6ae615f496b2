"""Whether a candidate does less when a call is repeated, as in timed calls, than in a call whose results are needed.

Calls are timed in two ways. Before each call, its outputs and an element of each input are written. In a fresh call,
that is poison and another element. In a repeated call, it is what is there already. An honest candidate takes the same
time in both. A candidate that notices that its output exists, or that its inputs have not changed, does not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from aot_tune.bench.worker.engine import Call, CallSet, Engine, Undo, exchangeable

__all__ = ["FreshCalls", "does_less"]

_SHARE = 0.25
"""Share of a call's time. Less is noise."""
_PAIRS = 16
"""Pairs of a repeated and a fresh play. Other programs make single plays of either kind longer, but not all of one
kind."""
_PAUSES = (0.0, 0.02, 0.08, 0.3)
"""Seconds before each test. The pairs of a test take milliseconds. A core may slow down in between, and stay slow."""


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
    limit, least = max(_SHARE * call_ns, least_ns), math.inf
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

    It stops as soon as this is noise.
    """
    repeated, fresh = math.inf, math.inf
    for _ in range(_PAIRS):
        repeated, fresh = min(repeated, play(False)), min(fresh, play(True))
        if fresh - repeated <= limit:
            break
    return fresh - repeated


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
            elements = two_elements(pristine, tensor.dtype.itemsize, self._places)
            if elements is not None:
                mine, another = elements
                other.append((storage[mine], pristine[another if fresh else mine]))
                own.append((storage[mine], pristine[mine]))
        return self._engine.writing(other), self._engine.writing(own)


def two_elements(values: Any, width: int, places: np.random.Generator) -> tuple[slice, slice] | None:
    """Where two different elements of a storage are, or None if some tries found none."""
    count = len(values) // width
    for pair in places.integers(0, max(count, 1), (16, 2)).tolist() if count > 1 else ():
        one, other = (slice(n * width, (n + 1) * width) for n in pair)
        if (values[one] != values[other]).any():
            return one, other
    return None
