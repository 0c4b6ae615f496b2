"""How tensors that calls read and write get their first contents before each timed call on a GPU.

A graph of calls is played at once, so nothing can be put back between its calls. Instead, each call of a graph has its
own copy, and all copies are written again between plays, outside their time. Otherwise thousands of calls in a row,
each on the results of the last, would drift to infinity.
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
"""The most bytes of all copies together. The first copy may be larger."""
_LEAST = 8
"""The least calls of a graph, if so many are wanted. If there are fewer copies, as of a large cache, calls share
them."""
_BLOCK, _ROWS, _FEW = 4096, 1 << 16, 8
"""Bytes of a block. How many blocks are compared at a time. Few blocks means at most one of so many."""
_BYTES_PER_NS = 8_000
"""Bytes per ns that no call exceeds. A quick call takes at least its bytes divided by this, in ns."""


def copies_in_place(size: int, call_bytes: int, policy: Policy) -> int:
    """How many copies a graph's calls may need if each moves so many bytes. Memory limits the copies of `size`
    bytes."""
    if not size:
        return 1
    rules, quickest = policy.on_gpu, call_bytes / _BYTES_PER_NS
    wanted = rules.short_calls if quickest < rules.short_ns else math.ceil(policy.sample_ns / quickest)
    return max(1, min(wanted, _MEMORY // size))


def calls_between(wanted: int, copies: int) -> int:
    """How many calls a graph holds if so many are `wanted`: one for each copy, or more if there are few copies."""
    return min(wanted, max(copies, _LEAST))


def put_back(storage: Any, source: Any) -> Undo:
    """A function that writes again what a call has changed of a storage: its blocks if they are few, or else all."""
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
    """What to do before a graph of so many calls."""
    used = list(undo[:calls])

    def before() -> None:
        for one in used:
            one()

    return before
