"""Memory for tensors with guards around it: canaries reveal a write, and pages without access stop every access.

A region is laid out as [no access][canaries][storage][canaries][no access]. The placement decides which side of the
storage touches a page without access. With `inside`, neither side does, so a stray write is found and named. With `end`
and `start`, that side does, so a stray read stops the process too.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.worker.comparison import CANARY
from aot_tune.bench.worker.inputs import Strided

__all__ = ["PLACEMENTS", "Placement", "Region"]

Placement = Literal["inside", "end", "start"]
PLACEMENTS: tuple[Placement, ...] = ("inside", "end", "start")
_PAGE = mmap.PAGESIZE
_HUGE = 4 << 20
_MADV_HUGEPAGE = 14
_PROT_NONE, _PROT_RW = 0, 3
_PRIVATE_ANONYMOUS = 0x22
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_uint8 * size).from_address(address)).cast("B")


class Region:
    """Storage of `size` bytes.

    Args:
        size: bytes of storage; may be 0.
        origin: offset in the storage of a tensor's first element. The address there is aligned.
        alignment: largest power of two, up to 64, that divides this address. With 4, the address is 4 times an odd
            number.
        placement: see the module.
        stagger: bytes, a multiple of 64, by which an `inside` region is moved. So the tensors of a call do not all
            begin at the same place in a page.

    Raises:
        MemoryError: when the system gives none.
    """

    def __init__(
        self, size: int, origin: int = 0, alignment: int = 64, placement: Placement = "inside", stagger: int = 0
    ) -> None:
        self.size, self.placement = size, placement
        body = -(-(size + 3 * 64 + stagger) // _PAGE) * _PAGE + (0 if placement != "inside" else 2 * _PAGE)
        self._length = body + 2 * _PAGE
        address: int | None = _libc.mmap(None, self._length, _PROT_NONE, _PRIVATE_ANONYMOUS, -1, 0)
        if address is None or address == _FAILED:
            raise MemoryError(f"no {self._length} bytes of address space")
        self._base: int = address
        self._low, self._high = address + _PAGE, address + _PAGE + body
        if _libc.mprotect(self._low, body, _PROT_RW) != 0:
            _libc.munmap(self._base, self._length)
            raise MemoryError(f"no {body} bytes of memory")
        if body >= _HUGE:
            _libc.madvise(self._low, body, _MADV_HUGEPAGE)  # numpy does this too for large arrays
        self.address = self._place(origin, alignment, stagger)
        self._before = self.address - self._low
        self._after = self._high - self.address - size
        self._canary = bytes([CANARY]) * max(self._before, self._after)
        ctypes.memset(self._low, CANARY, self._before)
        ctypes.memset(self.address + size, CANARY, self._after)
        self._memory = _memory(self.address, max(size, 1))

    def _place(self, origin: int, alignment: int, stagger: int) -> int:
        wanted = 0 if alignment >= 64 else alignment  # the address modulo 64
        if self.placement == "end":
            address = self._high - self.size
            return address - (address + origin - wanted) % 64
        address = self._low if self.placement == "start" else self._low + _PAGE + stagger
        return address + (wanted - address - origin) % 64

    def close(self) -> None:
        """Give the memory back. Nothing may use it afterwards."""
        if self._base:
            _libc.munmap(self._base, self._length)
            self._base = 0

    def bytes(self) -> NDArray[np.uint8]:
        """The storage, byte by byte."""
        return np.frombuffer(self._memory, dtype=np.uint8, count=self.size)

    def flat(self, dtype: Any) -> NDArray[Any]:
        """The storage as elements."""
        width = np.dtype(dtype).itemsize
        found: NDArray[Any] = self.bytes()[: self.size // width * width].view(dtype)
        return found

    def view(self, dtype: Any, place: Strided) -> NDArray[Any]:
        """A tensor in the storage."""
        return place.array(dtype, self._memory)

    def poison(self) -> None:
        """Fill the storage with 0xFF: NaN in every floating type."""
        ctypes.memset(self.address, 0xFF, self.size)

    def scribble(self, value: int) -> None:
        """Fill the storage with one byte."""
        ctypes.memset(self.address, value, self.size)

    def damage(self) -> str:
        """Where the guard zones were written to, such as `4 bytes past its end`. Empty when they are intact."""
        for name, address, length in (
            ("before its start", self._low, self._before),
            ("past its end", self.address + self.size, self._after),
        ):
            if length and _libc.memcmp(address, self._canary, length) != 0:
                zone = np.frombuffer(_memory(address, length), dtype=np.uint8)
                hit = np.flatnonzero(zone != CANARY)
                nearest = int(hit[0]) if name == "past its end" else int(length - 1 - hit[-1])
                return f"{hit.size} bytes written {nearest} bytes {name}"
        return ""

    def heal(self) -> None:
        """Write the guard zones again after damage."""
        ctypes.memset(self._low, CANARY, self._before)
        ctypes.memset(self.address + self.size, CANARY, self._after)

    def copy_from(self, other: Region) -> None:
        """Copy the storage of a region of the same size."""
        ctypes.memmove(self.address, other.address, self.size)

    def differing(self, other: Region, block: int) -> list[tuple[int, int]]:
        """Where two storages of the same size differ: offset and length of whole blocks. Adjacent blocks are merged."""
        found: list[tuple[int, int]] = []
        for offset in range(0, self.size, block):
            length = min(block, self.size - offset)
            if _libc.memcmp(self.address + offset, other.address + offset, length) == 0:
                continue
            begin = found.pop()[0] if found and sum(found[-1]) == offset else offset
            found.append((begin, offset + length - begin))
        return found

    def same(self, other: Region) -> bool:
        """Whether two storages of one size hold the same bytes."""
        return bool(_libc.memcmp(self.address, other.address, self.size) == 0)
