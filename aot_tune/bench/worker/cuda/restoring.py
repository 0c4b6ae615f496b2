"""How tensors that calls read and write have their first contents in front of each timed call on a GPU.

A graph of calls is played at once, so that nothing can be put back between them: each call of a graph has a copy of its
own instead, and all of them are written again between plays, outside of their time. Thousands of calls in a row on what
the ones before them left would drift to infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aot_tune.bench.protocol.measurement_records import Policy

__all__ = ["Undo", "calls_between", "copies_in_place", "put_back", "undoing"]

Undo = Callable[[], None]
"""Writes again what the calls on one call set have changed."""

_MEMORY = 1 << 30
"""Copies take no more than that, but for the first."""
_LEAST = 8
"""Calls of a graph of short ones: where there are fewer copies, as of a large cache, several calls get the same one."""
_BLOCK, _ROWS, _FEW = 4096, 1 << 16, 8
"""Bytes of a block, blocks that are compared at a time, and the share of blocks, one of so many, that is few."""
_BYTES_PER_NS = 8_000
"""No call moves more: a quick one takes as many ns as its bytes over this."""


def copies_in_place(size: int, call_bytes: int, policy: Policy) -> int:
    """How many copies calls of a graph may need that move so many bytes, as far as memory goes for copies of `size`."""
    if not size:
        return 1
    rules, quickest = policy.on_gpu, call_bytes / _BYTES_PER_NS
    wanted = rules.short_calls if quickest < rules.short_ns else math.ceil(policy.sample_ns / quickest)
    return max(1, min(wanted, _MEMORY // size))


def calls_between(wanted: int, copies: int) -> int:
    """How many calls a graph holds where so many are `wanted` and each has a copy of its own, unless these are few."""
    return min(wanted, max(copies, _LEAST))


def put_back(storage: Any, source: Any) -> Undo:
    """What writes again the blocks of a storage that a call has changed, where these are few; else all of it."""
    size = storage.numel() // _BLOCK * _BLOCK
    wide = torch.int64 if storage.storage_offset() % 8 == source.storage_offset() % 8 == 0 else torch.uint8
    rows, held = (s[:size].view(-1, _BLOCK).view(wide) for s in (storage, source))
    found = [(rows[i : i + _ROWS] != held[i : i + _ROWS]).any(1) for i in range(0, rows.shape[0], _ROWS)]
    changed = torch.cat(found).nonzero().flatten() if found else None
    if changed is None or changed.numel() > rows.shape[0] // _FEW:
        return lambda: storage.copy_(source)
    blocks = held[changed]

    def undo() -> None:
        rows.index_copy_(0, changed, blocks)
        storage[size:].copy_(source[size:])

    return undo


def undoing(undo: Sequence[Undo], calls: int) -> Undo:
    """What is to be done in front of a graph of so many calls."""
    used = list(undo[:calls])

    def before() -> None:
        for one in used:
            one()

    return before
