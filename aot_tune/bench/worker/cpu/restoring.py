"""What calls change of the tensors that they read and write, and how to put it back after each call.

A call is timed on the contents that it was verified on. Otherwise thousands of calls in a row, each on the results of
the last, would drift to infinity. Contents are put back after the call, not before the next, so that what is cold has
time to leave the caches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from aot_tune.bench.worker.cpu.state import CallSet

__all__ = ["Copies", "changes_of", "restoring"]

Copies = list[tuple[int, int, int]]
"""Where to copy to, where to copy from, and how many bytes."""

_BLOCK = 4096
"""A call may change only a few rows of a large cache. So only the blocks, of so many bytes, that it changes are put
back."""


def changes_of(sets: Sequence[CallSet], run: Callable[[], object]) -> list[Copies]:
    """For each call set, the copies that undo a call. Empty if no tensor is both read and written.

    `run` makes a call on the first set, which shows what calls change. Afterwards, all sets are as before any call.
    """
    first = sets[0]
    if not first.sources:
        return []
    for one in sets:
        one.poison()
    run()
    changed = {n: first.regions[n].differing(source, _BLOCK) for n, source in first.sources.items()}
    first.poison()
    return [
        [
            (one.regions[name].address + offset, one.sources[name].address + offset, length)
            for name, spans in changed.items()
            for offset, length in spans
        ]
        for one in sets
    ]


def restoring(copies: Copies) -> Callable[[], None]:
    """A function that makes these copies."""
    memmove = ctypes.memmove

    def restore() -> None:
        for to, source, size in copies:
            memmove(to, source, size)

    return restore
