"""The engine of the CPU: the host's memory, with guards around each tensor, and numpy's arrays in it.

Canaries around a tensor's memory reveal a write, and pages without access stop every access. A region is laid out as
[no access][canaries][storage][canaries][no access]. The placement decides which side of the storage touches a page
without access. With `inside`, neither side does, so a stray write is found and named. With `end` and `start`, that side
does, so a stray read stops the process too.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.devices.cpu import last_cache_bytes
from aot_tune.bench.protocol.measurement_records import Check, Device, Policy, Role
from aot_tune.bench.worker.comparison import compare_stored
from aot_tune.bench.worker.cpu.timing import CandidateTimer, FrameworkTimer
from aot_tune.bench.worker.engine import CANARY, Call, CallSet, Engine, Expected, Piece, Placement, Undo, Want
from aot_tune.bench.worker.inputs import Strided, fill, layout
from aot_tune.bench.worker.loaded_objects import LaunchError
from aot_tune.bench.worker.reference_results import Truth, read_truth, write_truth
from aot_tune.bench.worker.stored_elements import array_dtype, values_of
from aot_tune.spec import Operator, Tensor
from aot_tune.support.kernel_features import allow_tiles
from aot_tune.support.limits import allowed_memory, kept_memory

__all__ = ["CpuEngine", "Region", "make_engine"]

_LEAST_NS = 300.0
"""Differences between calls that count as noise, because they include Python's own work."""
_BLOCK = 4096
"""A call may change only a few rows of a large cache. So only the blocks, of so many bytes, that it changes are put
back."""
_STAGGER = 5 * 64
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


class _Mapping:
    """Memory of so many bytes between two pages without access.

    Raises:
        MemoryError: when the system gives none.
    """

    def __init__(self, size: int) -> None:
        self._length = size + 2 * _PAGE
        address: int | None = _libc.mmap(None, self._length, _PROT_NONE, _PRIVATE_ANONYMOUS, -1, 0)
        if address is None or address == _FAILED:
            self._length = 0
            raise MemoryError(f"no {size + 2 * _PAGE} bytes of address space")
        self._base, self.begin = address, address + _PAGE
        if _libc.mprotect(self.begin, size, _PROT_RW) != 0:
            raise MemoryError(f"no {size} bytes of memory")
        if size >= _HUGE:
            _libc.madvise(self.begin, size, _MADV_HUGEPAGE)  # numpy does this too for large arrays

    def __del__(self) -> None:
        if self._length:
            _libc.munmap(self._base, self._length)


class Region:
    """Storage of `size` bytes, given back when nothing refers to it.

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
        mapping = _Mapping(body)
        self._low, self._high = mapping.begin, mapping.begin + body
        self.address = self._place(origin, alignment, stagger)
        self._before = self.address - self._low
        self._after = self._high - self.address - size
        self._canary = bytes([CANARY]) * max(self._before, self._after)
        ctypes.memset(self._low, CANARY, self._before)
        ctypes.memset(self.address + size, CANARY, self._after)
        block = (ctypes.c_uint8 * max(size, 1)).from_address(self.address)
        block.mapping = mapping  # type: ignore[attr-defined]  # so that it lasts as long as an array in it
        self.storage: NDArray[np.uint8] = np.frombuffer(memoryview(block), np.uint8)[:size]

    def _place(self, origin: int, alignment: int, stagger: int) -> int:
        wanted = 0 if alignment >= 64 else alignment  # the address modulo 64
        if self.placement == "end":
            address = self._high - self.size
            return address - (address + origin - wanted) % 64
        address = self._low if self.placement == "start" else self._low + _PAGE + stagger
        return address + (wanted - address - origin) % 64

    def damage(self) -> str:
        """Where the guard zones were written to, such as `4 bytes past its end`. Empty when they are intact."""
        for name, address, length in (
            ("before its start", self._low, self._before),
            ("past its end", self.address + self.size, self._after),
        ):
            if length and _libc.memcmp(address, self._canary, length) != 0:
                zone = np.frombuffer(ctypes.string_at(address, length), dtype=np.uint8)
                hit = np.flatnonzero(zone != CANARY)
                nearest = int(hit[0]) if name == "past its end" else int(length - 1 - hit[-1])
                return f"{hit.size} bytes written {nearest} bytes {name}"
        return ""

    def heal(self) -> None:
        """Write the guard zones again after damage."""
        ctypes.memset(self._low, CANARY, self._before)
        ctypes.memset(self.address + self.size, CANARY, self._after)


class _Regions:
    """See `Arena`: a region for each piece."""

    def __init__(self, wants: Sequence[Want], placement: Placement) -> None:
        self._regions = {
            w.name: Region(w.size, w.origin, w.alignment or 64, placement, w.number * _STAGGER) for w in wants
        }
        self.pieces = {n: Piece(r.address, r.size, r.storage) for n, r in self._regions.items()}
        self.bytes = sum(r.size for r in self._regions.values())

    def heal(self) -> None:
        """Write the guard zones."""
        for region in self._regions.values():
            region.heal()

    def damaged(self) -> bool:
        """Whether a guard zone was written to."""
        return any(region.damage() for region in self._regions.values())

    def damage(self) -> tuple[str, str]:
        """The first piece whose guard was written to, and where."""
        for name, region in self._regions.items():
            if where := region.damage():
                return name, where
        return "", ""


class _Truths:
    """See `Expected`: values that another process computed."""

    bytes = 0  # they are in a file

    def __init__(self, tensor: Tensor, truth: Truth, values: NDArray[Any]) -> None:
        self.tensor, self._bounds, self.undefined, self._values = tensor, truth.bounds, truth.undefined, values

    def worst(self, got: NDArray[Any]) -> float:
        """Of all elements."""
        return 0.0 if self.undefined else self.judge(got)[1]

    def judge(self, got: NDArray[Any]) -> tuple[str, float]:
        """See `compare_stored`."""
        return compare_stored(self.tensor, got, self._values, self._bounds)


def make_engine(policy: Policy, role: Role, device: Device) -> CpuEngine:
    """The engine of a worker on a CPU."""
    del role, device
    allow_tiles()  # libraries do so too; a CPU without tiles refuses, and gets no candidate that uses them
    return CpuEngine(policy, last_cache_bytes())


class CpuEngine(Engine):
    """See `Engine`."""

    on_host, at_once = True, False
    placements = ("inside", "end", "start")
    kept_results = sys.maxsize
    fresh_ns, fresh_calls = 100_000, 256

    def __init__(self, policy: Policy, last_cache: int) -> None:
        super().__init__(policy, min(policy.memory_bytes, allowed_memory() // 2), kept_memory(), _LEAST_NS)
        self._last_cache = last_cache

    @property
    def last_cache(self) -> int:
        """Of the machine."""
        return self._last_cache

    def allocate(self, wants: Sequence[Want], placement: Placement = "inside") -> _Regions:
        """A region for each."""
        return _Regions(wants, placement)

    def fill(self, storage: NDArray[np.uint8], value: int) -> None:
        """By numpy."""
        storage.fill(value)

    def writing(self, pairs: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8]]]) -> Undo:
        """By `memmove`, from addresses that are looked up once."""
        memmove = ctypes.memmove
        copies = [(storage.ctypes.data, source.ctypes.data, len(storage)) for storage, source in pairs]

        def write(_held: object = pairs) -> None:  # the arrays, which keep their memory
            for to, source, size in copies:
                memmove(to, source, size)

        return write

    def clone(self, storage: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """An array."""
        copied: NDArray[np.uint8] = storage.copy()
        return copied

    def beside(self, storage: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """At the same place in a page.

        A copy from a few bytes below that place waits for its own stores, and takes ten times as long.
        """
        held = np.empty(len(storage) + _PAGE, np.uint8)
        start = (storage.ctypes.data - held.ctypes.data) % _PAGE
        part: NDArray[np.uint8] = held[start : start + len(storage)]
        return part

    def differ(self, one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
        """By `memcmp`."""
        return bool(_libc.memcmp(one.ctypes.data, other.ctypes.data, len(one)) != 0)

    def places(self, mask: NDArray[np.bool_]) -> NDArray[np.intp]:
        """In an array."""
        return np.flatnonzero(mask)

    def answers(self, asked: Sequence[Any]) -> list[float]:
        """They are known already."""
        return list(map(float, asked))

    def array(self, tensor: Tensor, strided: Strided, storage: NDArray[np.uint8]) -> NDArray[Any]:
        """numpy's array."""
        return strided.array(array_dtype(tensor.dtype), storage if len(storage) else np.empty(8, np.uint8))

    def values(self, tensor: Tensor, array: NDArray[Any], *, wide: bool) -> NDArray[Any]:
        """As numbers."""
        values = values_of(tensor.dtype, array)
        return values.astype(np.float32) if wide else values.copy()

    def reverse(self, tensor: Tensor, storage: NDArray[np.uint8], source: NDArray[np.uint8]) -> bool:
        """Bits are moved."""
        kind = f"u{tensor.dtype.itemsize}"
        storage.view(kind)[...] = source.view(kind)[::-1]
        return self.differ(storage, source)

    def gap(self, strided: Strided, width: int, storage: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """A mask."""
        mask = np.ones(len(storage) // width, bool)
        strided.array(bool, mask)[...] = False
        return np.repeat(mask, width)

    def draw(self, operator: Operator, check: Check) -> dict[str, NDArray[np.uint8]]:
        """In regions, whose places in a page are known."""
        present = [t for t in operator.inputs if operator.is_present(check.problem, t)]
        storages = {t.name: Region(layout(operator, check, t).extent() * t.dtype.itemsize).storage for t in present}
        flats = {t.name: storages[t.name].view(array_dtype(t.dtype)) for t in present}
        fill(operator, check, flats, self.policy.seed)
        return storages

    def expected(self, operator: Operator, check: Check, folder: Path, inputs: Mapping[str, Any]) -> list[Expected]:  # noqa: ARG002
        """From files."""
        truths = read_truth(folder)
        return [_Truths(t, *truths[t.name]) for t in operator.outputs if t.name in truths]

    def write_reference(self, operator: Operator, check: Check, folder: Path) -> None:
        """By numpy."""
        write_truth(operator, check, folder, self.policy.seed)

    def play(self, batch: Sequence[Call]) -> float:
        """One after the other."""
        begin = time.perf_counter_ns()
        codes = [call() for call in batch]
        end = time.perf_counter_ns()
        for code in codes:
            if code:
                raise LaunchError(f"launch returned {code}")
        return float(end - begin)

    def put_back(self, storage: NDArray[np.uint8], source: NDArray[np.uint8]) -> Undo:
        """Only the blocks that differ."""
        return self.writing([(storage[s], source[s]) for s in _differing(storage, source)])

    def timer(
        self, sets: Sequence[CallSet], launch: Callable[..., int], arguments: Sequence[tuple[Any, ...]]
    ) -> CandidateTimer:
        """By the host's clock."""

        def run() -> None:
            code = launch(*arguments[0])
            if code:
                raise LaunchError(str(code))

        return CandidateTimer(self.policy, launch, arguments, self._undo_of(sets, run))

    def framework(self, check: Check, sets: Sequence[CallSet]) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        """It does so by itself."""
        return contextlib.nullcontext()

    def handed_on(self, module: ModuleType, tensor: Tensor, strided: Strided, storage: NDArray[np.uint8]) -> Any:
        """By DLPack. Elements of dtypes that numpy lacks are integers on their way."""
        dtype, array = tensor.dtype, self.array(tensor, strided, storage)
        if dtype.numpy:
            return module.from_dlpack(array)
        return module.from_dlpack(array.view(f"int{dtype.bits}")).view(getattr(module, dtype.torch))

    def framework_timer(self, functions: Sequence[Callable[[], object]], sets: Sequence[CallSet]) -> FrameworkTimer:
        """By the host's clock."""
        return FrameworkTimer(functions, self._undo_of(sets, functions[0]))

    def _undo_of(self, sets: Sequence[CallSet], run: Callable[[], object]) -> list[Undo]:
        """For each call set, what undoes a call. Empty if no tensor is both read and written.

        `run` makes a call on the first set, which shows what calls change. Afterwards, all sets are as before any call.
        """
        first = sets[0]
        if not first.sources:
            return []
        for calls in sets:
            calls.poison()
        run()
        changed = {n: _differing(first.storages[n], source) for n, source in first.sources.items()}
        first.poison()
        return [
            self.writing([(calls.storages[n][s], calls.sources[n][s]) for n, spans in changed.items() for s in spans])
            for calls in sets
        ]


def _differing(storage: NDArray[np.uint8], source: NDArray[np.uint8]) -> list[slice]:
    """Where two storages of the same size differ, in whole blocks. Adjacent blocks are merged."""
    spans: list[slice] = []
    to, other, size = storage.ctypes.data, source.ctypes.data, len(storage)
    for offset in range(0, size, _BLOCK):
        length = min(_BLOCK, size - offset)
        if _libc.memcmp(to + offset, other + offset, length) == 0:
            continue
        begin = spans.pop().start if spans and spans[-1].stop == offset else offset
        spans.append(slice(begin, offset + length))
    return spans
