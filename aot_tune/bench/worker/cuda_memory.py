"""Memory of a GPU with guards in it, as tensors of torch, and what results in it are compared with."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from aot_tune.bench.worker.comparison import FAR_OFF, compare
from aot_tune.bench.worker.engine import CANARY, Piece, Want
from aot_tune.bench.worker.inputs import Strided
from aot_tune.bench.worker.reference_results import Limits
from aot_tune.spec import Tensor

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
    """See `Arena`: an allocation with guard zones around its pieces. Raises torch.OutOfMemoryError."""

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
        return int(self._memory.numel())

    def heal(self) -> None:
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


class EdgeMemory(GuardedMemory):
    """See `Arena`: each piece ends near where mapped memory ends. Raises torch.OutOfMemoryError."""

    def __init__(self, mapper: Mapper, wants: Sequence[Want]) -> None:
        parts = [_rounded(w.size + GUARD + _step(w), mapper.unit) for w in wants]
        self._memory, self._mapped = mapper.memory(parts), sum(parts)
        self._base = int(self._memory.data_ptr())
        self.pieces, self._zones, end = {}, [], 0
        for want, part in zip(wants, parts, strict=True):
            end += part
            begin = end - want.size
            begin -= (self._base + begin + want.origin - want.alignment) % _step(want)
            self._zones += [("", want.name, begin - GUARD, begin), (want.name, "", begin + want.size, end)]
            self.pieces[want.name] = Piece(self._base + begin, want.size, self._memory[begin : begin + want.size])
            end += mapper.unit
        self.heal()

    @property
    def bytes(self) -> int:
        return self._mapped


class _Place(ctypes.Structure):
    """CUmemLocation of <cuda.h>: of a device."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp. What is not named here is 0."""

    _fields_ = (("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", _Place), ("more", ctypes.c_uint64 * 2))


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("place", _Place), ("flags", ctypes.c_int))


_PINNED, _ON_DEVICE, _READ_WRITE = 1, 1, 3


class Mapper:
    """Memory of a device of which parts are mapped. An access to what lies between them is a fault.

    `unit`: parts are so many bytes, or a multiple of that. 0 if the driver maps nothing.

    Args:
        driver: libcuda. A context of the device is current.
        ordinal: of the device.
        view: makes a tensor of bytes of memory that has a `__cuda_array_interface__`, and keeps it.
    """

    def __init__(self, driver: Any, ordinal: int, view: Callable[[Any], Any]) -> None:
        self.driver, self._view = driver, view
        self._place = _Place(_ON_DEVICE, ordinal)
        self._properties = _Properties(type=_PINNED, place=self._place)
        unit = ctypes.c_size_t(0)
        try:
            code = driver.cuMemGetAllocationGranularity(ctypes.byref(unit), ctypes.byref(self._properties), 0)
        except AttributeError:  # a driver of before CUDA 10.2
            code = 1
        self.unit = 0 if code else int(unit.value)

    @cached_property
    def works(self) -> bool:
        """Whether it maps memory that torch takes. It tries."""
        try:
            return self.unit > 0 and bool((self.memory([self.unit])[: self.unit].fill_(1) == 1).all())
        except Exception:  # a part of a GPU may not have it, and versions of torch object in their own ways
            return False

    def memory(self, parts: Sequence[int]) -> Any:
        """A tensor over parts with `unit` bytes of no memory behind each. Raises torch.OutOfMemoryError."""
        return self._view(_Mapped(self, parts))

    def map(self, address: int, size: int) -> None:
        """Map new memory. Raises torch.OutOfMemoryError when there is none."""
        driver, handle = self.driver, ctypes.c_uint64(0)
        where, length = ctypes.c_uint64(address), ctypes.c_size_t(size)
        none, zero = ctypes.c_ulonglong(0), ctypes.c_size_t(0)
        access = _Access(self._place, _READ_WRITE)
        code = driver.cuMemCreate(ctypes.byref(handle), length, ctypes.byref(self._properties), none)
        if not code:
            code = driver.cuMemMap(where, length, zero, handle, none)
            driver.cuMemRelease(handle)  # when it is no longer mapped
        code = code or driver.cuMemSetAccess(where, length, ctypes.byref(access), ctypes.c_size_t(1))
        if code:
            raise torch.OutOfMemoryError(f"the driver maps no {size} bytes ({code})")


class _Mapped:
    """Parts of a range of addresses. It ends with the last tensor over it."""

    def __init__(self, mapper: Mapper, parts: Sequence[int]) -> None:
        self._driver, self._parts = mapper.driver, list[tuple[int, int]]()
        self.size = sum(parts) + len(parts) * mapper.unit
        address = ctypes.c_uint64(0)
        none = ctypes.c_uint64(0)
        if mapper.driver.cuMemAddressReserve(
            ctypes.byref(address), ctypes.c_size_t(self.size), ctypes.c_size_t(0), none, ctypes.c_ulonglong(0)
        ):
            raise torch.OutOfMemoryError(f"no {self.size} bytes of addresses")
        self.address = int(address.value)
        at = self.address
        for part in parts:
            mapper.map(at, part)
            self._parts.append((at, part))
            at += part + mapper.unit

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.address, False), "version": 2}

    def __del__(self) -> None:
        for at, part in self._parts:
            self._driver.cuMemUnmap(ctypes.c_uint64(at), ctypes.c_size_t(part))
        if hasattr(self, "address"):
            self._driver.cuMemAddressFree(ctypes.c_uint64(self.address), ctypes.c_size_t(self.size))


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class ApartMemory(GuardedMemory):
    """See `Arena`: an allocation for each piece, without guard zones. Raises torch.OutOfMemoryError."""

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
    """See `Expected`: true values, float32 for narrower outputs, and reciprocals of allowed errors; i64 as bits."""

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
