"""Memory of a GPU with guards in it, as tensors of torch, and what results in it are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from aot_tune.bench.worker.comparison import FAR_OFF, compare
from aot_tune.bench.worker.engine import CANARY, Piece, Want
from aot_tune.bench.worker.inputs import Strided
from aot_tune.bench.worker.reference_results import Limits
from aot_tune.spec import Tensor

__all__ = [
    "BLOCK",
    "ApartMemory",
    "GuardedMemory",
    "Truths",
    "moved_as",
    "tensor_of",
    "torch_dtype",
    "unequal",
    "words",
]

GUARD = 4096
_NATURAL, _SEGMENT, _SEGMENT_FROM = 512, 2 << 20, 10 << 20
"""Alignments as torch's allocator gives them: 512 bytes, and 2 MiB from 10 MiB on, where a tensor has its own segment.
On an H200 some kernels took 4 to 5 % longer on torch's tensors than on others that lie side by side."""
_MOVED_AS = {
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}
BLOCK = 1 << 24
"""How many elements are compared at a time. Each takes about 80 bytes, for float64 and what is computed from it."""


class GuardedMemory:
    """See `Arena`: one allocation with a guard zone before, between and after its pieces.

    Raises:
        torch.OutOfMemoryError: when there is no such memory.
    """

    def __init__(self, device: torch.device, wants: Sequence[Want]) -> None:
        room = sum(w.size + 2 * GUARD + _step(w) for w in wants) + 2 * GUARD
        self._memory = torch.empty(room, dtype=torch.uint8, device=device)
        self._base = int(self._memory.data_ptr())
        self.pieces: dict[str, Piece] = {}
        self._zones: list[tuple[str, str, int, int]] = []  # the piece beside a zone, which side of it, from, to
        last, end = "", 0
        for want in wants:
            begin = self._place(end + GUARD, want)
            self._zones += _zones(last, want.name, end, begin)
            end, last = begin + want.size, want.name
            self.pieces[want.name] = Piece(self._base + begin, want.size, self._memory[begin:end])
        self._zones.append((last, "", end, min(end + GUARD, room)))
        self.heal()

    def _place(self, at: int, want: Want) -> int:
        wanted = want.alignment  # the address modulo the step
        return at + (wanted - self._base - at - want.origin) % _step(want)

    @property
    def bytes(self) -> int:
        """Size of the allocation."""
        return int(self._memory.numel())

    def heal(self) -> None:
        """Write the guard zones."""
        for _, _, begin, end in self._zones:
            self._memory[begin:end].fill_(CANARY)

    @cached_property
    def _all(self) -> Any:
        """Indices of all guard bytes."""
        return torch.cat([torch.arange(a, b, device=self._memory.device) for _, _, a, b in self._zones])

    def damaged(self) -> Any:
        """Whether a guard zone was written to, as a tensor. Nothing waits for the answer."""
        return (self._memory[self._all] != CANARY).any()

    def damage(self) -> tuple[str, str]:
        """The name of the piece whose guard was written to, and where. Two empty texts if there is none."""
        for before, after, begin, end in self._zones:
            hit = (self._memory[begin:end] != CANARY).nonzero().flatten().tolist()
            if hit and (before and (not after or hit[0] < end - begin - 1 - hit[-1])):
                return before, f"{len(hit)} bytes written {hit[0]} bytes past its end"
            if hit:
                return after, f"{len(hit)} bytes written {end - begin - 1 - hit[-1]} bytes before its start"
        return "", ""


class ApartMemory(GuardedMemory):
    """See `Arena`: an allocation for each piece, which ends with the piece. There are no guard zones.

    Raises:
        torch.OutOfMemoryError: when there is no such memory.
    """

    def __init__(self, device: torch.device, wants: Sequence[Want]) -> None:
        self.pieces, self._zones, self._allocated = {}, [], 0
        for want in wants:
            step = _step(want)
            before = (want.alignment - want.origin) % step  # an allocation begins at a multiple of 512
            memory = torch.empty(before + want.size, dtype=torch.uint8, device=device)
            self.pieces[want.name] = Piece(int(memory.data_ptr()) + before, want.size, memory[before:])
            self._allocated += before + want.size

    @property
    def bytes(self) -> int:
        """Size of the allocations."""
        return self._allocated


def _step(want: Want) -> int:
    """The addresses of all first elements of such pieces are equal modulo this."""
    if want.alignment:
        return 2 * want.alignment
    return _SEGMENT if want.size >= _SEGMENT_FROM else _NATURAL


def _zones(before: str, after: str, begin: int, end: int) -> list[tuple[str, str, int, int]]:
    """The guard zones of a gap between two pieces: the whole gap, or both ends if it is wide."""
    if end - begin <= 2 * GUARD or not before:
        return [(before, after, begin if before else max(begin, end - GUARD), end)]
    return [(before, "", begin, begin + GUARD), ("", after, end - GUARD, end)]


def words(storage: Any) -> Any:
    """Bytes as the widest integers that fit, to compare and fill them quickly."""
    wide = storage.numel() % 8 == 0 and storage.storage_offset() % 8 == 0
    return storage.view(torch.int64) if wide else storage


def tensor_of(strided: Strided, storage: Any, dtype: Any) -> Any:
    """torch's tensor at a place in a storage of bytes. It is a copy if a stride is negative."""
    flat = storage.view(moved_as(dtype))
    if 0 in strided.shape:
        return flat.new_empty(strided.shape).view(dtype)
    strides = tuple(abs(s) for s in strided.strides)
    tensor = flat.as_strided(strided.shape, strides, flat.storage_offset())
    return (tensor.flip(strided.backward()) if strided.backward() else tensor).view(dtype)


def moved_as(dtype: Any) -> Any:
    """The dtype of the same width that torch moves elements as: it has few functions for unsigned integers and f8."""
    return _MOVED_AS.get(dtype, dtype)


def torch_dtype(tensor: Tensor) -> Any:
    """torch's dtype of a tensor."""
    return getattr(torch, tensor.dtype.torch)


def unequal(one: Any, other: Any) -> Any:
    """Whether two storages of the same size differ, as a tensor."""
    wide, too = words(one), words(other)
    return ((wide != too) if wide.dtype == too.dtype else (one != other)).any()


class Truths:
    """See `Expected`: true values, in float32 for narrower outputs, and the reciprocals of the allowed errors.

    Integers of 64 bits are compared as bits.
    """

    def __init__(self, tensor: Tensor, values: Any, limits: Limits) -> None:
        self.tensor, self.bounds, self.undefined = tensor, limits.bounds, limits.undefined
        if not values.dtype.is_floating_point:
            self.values = values.view(torch.int64)
            return
        dtype = torch_dtype(tensor)
        allowed = (values.abs() * self.bounds.relative).add_(self.bounds.absolute + 5e-324)
        narrow = dtype.is_floating_point and dtype.itemsize < 4
        self.values = values.to(torch.float32) if narrow else values
        self._scale = allowed.reciprocal_().to(self.values.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of the values and the reciprocals."""
        return int(self.values.numel() * self.values.element_size() * 2)

    def worst(self, got: Any) -> Any:
        """The largest error in tolerances, as a tensor. It is NaN if NaN or infinities need a closer look."""
        if not got.numel() or self.undefined:
            return torch.zeros((), dtype=torch.float64, device=got.device)
        if self.values.dtype == torch.int64 or self.bounds.share < 1:  # `judge` tells which elements are right
            return (_comparable(got) != self.values).any() * FAR_OFF
        got = _comparable(got)
        error = torch.sub(got, self.values) if got.dtype.is_floating_point else got.to(self.values.dtype) - self.values
        return torch.linalg.vector_norm(error.mul_(self._scale), float("inf")).to(torch.float64)

    def judge(self, got: Any) -> tuple[str, float]:
        """What is wrong with the worst element, or empty, and the largest error in tolerances."""
        dtype = torch_dtype(self.tensor)
        highest = float(torch.finfo(dtype).max) if dtype.is_floating_point else float("inf")
        if dtype == torch.uint64:  # torch cannot compare these
            host, true = got.cpu().numpy(), self.values.cpu().numpy().view(np.uint64)
            return compare(np, self.tensor.name, host, true, self.bounds, highest, BLOCK)
        return compare(torch, self.tensor.name, _comparable(got), self.values, self.bounds, highest, BLOCK)


def _comparable(got: Any) -> Any:
    """In a dtype that torch computes with. torch takes many bytes for true in a boolean, but only one is right."""
    if got.dtype == torch.bool:
        return got.view(torch.uint8)
    if got.dtype == torch.uint64:
        return got.view(torch.int64)
    if got.dtype.is_floating_point:
        return got.to(torch.float32) if got.dtype.itemsize == 1 else got
    return got.to(torch.int64) if got.dtype in (torch.uint16, torch.uint32) else got
