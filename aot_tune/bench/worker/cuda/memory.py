"""Device memory for tensors with guard zones around it, as torch sees it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from aot_tune.bench.worker.comparison import CANARY
from aot_tune.bench.worker.inputs import Strided

__all__ = ["Arena", "Piece", "Want", "moved_as", "tensor_of", "words"]

GUARD = 4096
_NATURAL, _SEGMENT, _SEGMENT_FROM = 512, 2 << 20, 10 << 20
"""Alignments as torch's allocator gives them: 512 bytes, and 2 MiB from 10 MiB on, where a tensor has its own segment.
On an H200 some kernels took 4 to 5 % longer on torch's tensors than on others that lie side by side."""


class Want(NamedTuple):
    """Storage of `size` bytes. The address of byte `origin` (a tensor's first element) is aligned.

    An `alignment` is kept exactly: with 16, the address is 16 times an odd number. 0 means what torch's allocator
    gives.
    """

    name: str
    size: int
    origin: int = 0
    alignment: int = 0


class Piece(NamedTuple):
    """Part of an arena."""

    address: int
    size: int
    storage: Any


class Arena:
    """One allocation with a guard zone before, between and after its pieces.

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


def tensor_of(place: Strided, storage: Any, dtype: Any) -> Any:
    """torch's tensor at a place in a storage of bytes. It is a copy if a stride is negative."""
    flat = storage.view(moved_as(dtype))
    if 0 in place.shape:
        return flat.new_empty(place.shape).view(dtype)
    strides = tuple(abs(s) for s in place.strides)
    found = flat.as_strided(place.shape, strides, flat.storage_offset())
    return (found.flip(place.backward()) if place.backward() else found).view(dtype)


_MOVED_AS = {
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}


def moved_as(dtype: Any) -> Any:
    """The dtype of the same width that torch moves elements as: it has few functions for unsigned integers and f8."""
    return _MOVED_AS.get(dtype, dtype)
