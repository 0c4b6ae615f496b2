"""What differs on a CPU for a session: memory with guards around it, and the times of calls on a monotonic clock.

Canaries around a tensor's memory reveal a write, and pages without access stop every access. A region is laid out as
[no access][canaries][storage][canaries][no access]. The placement decides which side of the storage touches a page
without access. With `inside`, neither side does, so a stray write is found and named. With `end` and `start`, that side
does, so a stray read stops the process too.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.protocol.measurement_records import MOST_CALLS, Policy, group_size
from aot_tune.bench.worker.inputs import Strided
from aot_tune.bench.worker.loaded_objects import LaunchError
from aot_tune.bench.worker.verification import CANARY, Placement

__all__ = [
    "PLACEMENTS",
    "Region",
    "Repeater",
    "Sampler",
    "beside_empty",
    "measure_empty",
    "screen",
    "warm_sample",
]

_clock = time.perf_counter_ns
_LONG_NS = 4_000_000
_TRIES = 4
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


class Sampler:
    """Calls a function with one tuple of arguments after the other, and times groups of calls.

    `restores` undo the calls, one for each tuple. With them, each call is timed by itself, and undone outside its time.

    Raises:
        LaunchError: out of `sample`, when a call does not return 0.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        rotation: Sequence[tuple[Any, ...]],
        restores: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._function = function
        self._next: Iterator[tuple[Any, ...]] = itertools.cycle(rotation)
        self._restores = itertools.cycle(restores) if restores else None

    def sample(self, calls: int) -> float:
        """Mean ns of `calls` calls. They are made back to back, unless they are undone."""
        batch = list(itertools.islice(self._next, calls))
        if self._restores is not None:
            return self._one_by_one(batch, self._restores) / calls
        function = self._function
        codes = [0] * calls
        begin = _clock()
        for number, arguments in enumerate(batch):
            codes[number] = function(*arguments)
        end = _clock()
        for code in codes:
            if code:
                raise LaunchError(str(code))
        return (end - begin) / calls

    def _one_by_one(self, batch: Sequence[tuple[Any, ...]], restores: Iterator[Callable[[], None]]) -> int:
        function, clock, spent = self._function, _clock, 0
        for arguments in batch:
            begin = clock()
            code = function(*arguments)
            spent += clock() - begin
            next(restores)()
            if code:
                raise LaunchError(str(code))
        return spent


class Repeater:
    """Calls functions without arguments in turn, and times groups of calls. The results are dropped.

    `restores` undo the calls, one for each function, as those of a `Sampler` do.
    """

    def __init__(self, functions: Sequence[Callable[[], object]], restores: Sequence[Callable[[], None]] = ()) -> None:
        self._next = itertools.cycle(functions)
        self._restores = itertools.cycle(restores) if restores else None
        # ns that reading the clock takes, which are then in each call's time
        self._reading = min(-_clock() + _clock() for _ in range(32)) if restores else 0

    def sample(self, calls: int) -> float:
        """Mean ns of `calls` calls. They are made back to back, unless they are undone."""
        batch = list(itertools.islice(self._next, calls))
        if self._restores is not None:
            return max(self._one_by_one(batch, self._restores) / calls - self._reading, 0.0)
        begin = _clock()
        for function in batch:
            function()
        return (_clock() - begin) / calls

    def _one_by_one(self, batch: Sequence[Callable[[], object]], restores: Iterator[Callable[[], None]]) -> int:
        clock, spent = _clock, 0
        for function in batch:
            begin = clock()
            function()
            spent += clock() - begin
            next(restores)()
        return spent


def screen(sample: Callable[[int], float], policy: Policy, best_ns: float | None, overhead: float = 0.0) -> list[float]:
    """Samples of a screen: one to warm up (one call if calls are long), two that count, more unless both are slow.

    Samples include the cost of an empty call, but `best_ns` does not.
    """
    calls, samples = _warm_up(sample, policy)
    samples += [sample(calls) for _ in range(2 - len(samples))]
    if best_ns is not None and min(samples) - overhead > policy.screen_stop * best_ns:
        return samples
    spent = sum(samples) * calls
    while spent < policy.screen_ns and len(samples) < policy.screen_samples:
        samples.append(sample(calls))
        spent += samples[-1] * calls
    return samples


def _warm_up(sample: Callable[[int], float], policy: Policy) -> tuple[int, list[float]]:
    """How many calls make a sample, and the samples that count already. If a call is long enough, one call is a sample.

    The first call pays for what later ones find ready, and an idle core takes a while to wake. Other programs only make
    calls seem longer, never shorter. So the least time decides how many calls there are. Otherwise a short disturbance
    would give the whole screen too few calls per sample.
    """
    least = sample(1)
    if group_size(least, policy.sample_ns) == 1:
        again = sample(1)
        if group_size(again, policy.sample_ns) == 1:
            return 1, [again]
        least = again
    for most in (8, MOST_CALLS):
        calls = min(group_size(least, policy.sample_ns), most)
        least = min(least, sample(calls))
    return group_size(least, policy.sample_ns), []


def measure_empty(function: Callable[..., Any], arguments: tuple[Any, ...], *, undone: bool = False) -> float:
    """ns of calling a function that does nothing with such arguments: the least of some samples.

    With `undone`, calls are timed one by one, like calls that are undone.

    Disturbances make an empty call slower. Its time is taken off every time of a candidate, so it must not be too long.
    """
    restores = [lambda: None] if undone else []
    sampler = Sampler(function, [arguments], restores)
    return min(sampler.sample(32) for _ in range(8))


def beside_empty(take: Callable[[float], list[float]], empty: Callable[[], float]) -> tuple[list[float], float]:
    """Samples, and the ns of an empty call, measured before and after them. The lesser counts.

    The speed of some machines changes, as that of virtual ones. This slows down samples and empty calls for a while. If
    a sample is no longer than an empty call, their speeds differed, so samples are taken again. If that repeats, it is
    not the machine's fault. `take` gets the current cost of an empty call.
    """
    for _ in range(_TRIES):
        before = empty()
        samples = take(before)
        overhead = min(before, empty())
        if min(samples) > overhead:
            break
    return samples, overhead


def warm_sample(sample: Callable[[int], float], calls: int, warm: int) -> float:
    """A sample of a race, after `warm` calls that are not timed.

    It is one during which no other process took a core from a thread of this one, if there is one among three.
    Otherwise it is the last one. Long samples are always disturbed a little. They are taken as they are.
    """
    if warm:
        sample(warm)
    for _ in range(2):
        before = _preemptions()
        ns = sample(calls)
        if _preemptions() == before or ns * calls > _LONG_NS:
            return ns
    return sample(calls)


def _preemptions() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


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
        elements: NDArray[Any] = self.bytes()[: self.size // width * width].view(dtype)
        return elements

    def view(self, dtype: Any, strided: Strided) -> NDArray[Any]:
        """A tensor in the storage."""
        return strided.array(dtype, self._memory)

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
        spans: list[tuple[int, int]] = []
        for offset in range(0, self.size, block):
            length = min(block, self.size - offset)
            if _libc.memcmp(self.address + offset, other.address + offset, length) == 0:
                continue
            begin = spans.pop()[0] if spans and sum(spans[-1]) == offset else offset
            spans.append((begin, offset + length - begin))
        return spans

    def same(self, other: Region) -> bool:
        """Whether two storages of one size hold the same bytes."""
        return bool(_libc.memcmp(self.address, other.address, self.size) == 0)
