"""Calls on a CPU that each differ from the call before, beside calls that are repeated. See `honesty`.

Both kinds copy from and to the same places before each call, and only the contents differ. So caches are in the same
state, and no kind is slow because of where its source lies.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.worker.cpu.buffers import Region
from aot_tune.bench.worker.cpu.state import CallSet, Copies
from aot_tune.bench.worker.honesty import exchangeable, two_elements
from aot_tune.bench.worker.loaded_objects import LaunchError

__all__ = ["FreshCalls"]

_SAMPLE_NS = 100_000
_MOST = 256
_PAGE = mmap.PAGESIZE


class FreshCalls:
    """A candidate on one call set. The outputs of the set hold the right results for its inputs.

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
        self._outputs = [calls.regions[t.name] for t in calls.outputs() if t.name not in calls.sources]
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
        found = []
        for tensor in self._inputs:
            own, width = self._pristine[tensor.name], tensor.dtype.itemsize
            places = two_elements(own.bytes(), width, self._places)
            if places is not None:
                one, other = places
                contents = (own.address + (other if fresh else one), own.address + one)
                found.append((self._calls.regions[tensor.name].address + one, contents, width))
        return found


def _beside(region: Region) -> NDArray[np.uint8]:
    """As many bytes as a region has, at the same place in a page.

    Copied from a few bytes below that place, memory waits for its own stores: 190 us instead of 14 us for 360 KB.
    """
    held = np.empty(region.size + _PAGE, np.uint8)
    start = (region.address - held.ctypes.data) % _PAGE
    return held[start : start + region.size]
