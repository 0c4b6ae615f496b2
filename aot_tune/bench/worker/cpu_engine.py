"""The engine of the CPU: the host's memory, with guards around each tensor, numpy's arrays in it, and its clock.

Canaries around a tensor's memory reveal a write, and pages without access stop every access. A region is laid out as
[no access][canaries][storage][canaries][no access]. The placement decides which side of the storage touches a page
without access. With `inside`, neither side does, so a stray write is found and named. With `end` and `start`, that side
does, so a stray read stops the process too.

What a timed call has changed is put back after it, not before the next, so that what is cold has time to leave the
caches.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import mmap
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.devices.cpu import last_cache_bytes
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import MOST_CALLS, Check, Device, Policy, Role, group_size
from aot_tune.bench.worker.comparison import compare_stored
from aot_tune.bench.worker.engine import (
    CANARY,
    Call,
    CallSet,
    Engine,
    Expected,
    Piece,
    Placement,
    T,
    Undo,
    Want,
    screen,
)
from aot_tune.bench.worker.inputs import Strided, fill, layout
from aot_tune.bench.worker.loaded_objects import LaunchError, empty_call
from aot_tune.bench.worker.process_state import has_team, openmp_threads
from aot_tune.bench.worker.reference_results import Truth, read_truth, write_truth
from aot_tune.bench.worker.stored_elements import array_dtype, values_of
from aot_tune.spec import Operator, Tensor
from aot_tune.support.kernel_features import allow_tiles
from aot_tune.support.limits import allowed_memory, kept_memory
from aot_tune.support.processes import resident_bytes

_clock = time.perf_counter_ns
_LEAK = 1 << 10
"""Bytes that a call may lose of what `malloc` gave it."""
_LONG_NS = 4_000_000
"""Samples that are longer are always disturbed a little."""
_TRIES = 4
"""How often samples are taken at most that are no longer than empty calls."""
_LEAST_NS = 300.0
"""Differences between calls that count as noise, because they include Python's own work."""
_SHORT_NS, _GAIN = 50_000.0, 1.5
"""A call that takes less with one thread takes more of them only if it is so many times as fast with all: while another
program has a core, it waits some milliseconds for a thread there."""
_BLOCK = 4096
"""A call may change only a few rows of a large cache. So only the blocks, of so many bytes, that it changes are put
back."""
_STAGGER = 5 * 64
_PAGE = mmap.PAGESIZE
_HUGE = 4 << 20
_MADV_HUGEPAGE = 14
_PROT_NONE, _PROT_READ, _PROT_RW = 0, 1, 3
_PRIVATE_ANONYMOUS = 0x22
_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Mallinfo(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    )


def _given_away() -> int:
    """Bytes that `malloc` has given away and not got back. 0 if the C library is older than 2.33."""
    if not hasattr(_libc, "mallinfo2"):
        return 0
    _libc.mallinfo2.restype = _Mallinfo
    told = _libc.mallinfo2()
    return int(told.uordblks + told.hblkhd)


class _Mapping:
    """Memory of so many bytes between two pages without access. Raises MemoryError when the system gives none."""

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

    def lock(self, *, locked: bool) -> None:
        """Let nobody write to the storage and its canaries, or everybody again."""
        _libc.mprotect(self._low, self._high - self._low, _PROT_READ if locked else _PROT_RW)

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

    def lock(self, names: Sequence[str], *, locked: bool) -> None:
        """Let nobody write to some pieces, or everybody again."""
        for name in names:
            self._regions[name].lock(locked=locked)

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
        return 0.0 if self.undefined else self.judge(got)[1]

    def judge(self, got: NDArray[Any]) -> tuple[str, float]:
        return compare_stored(self.tensor, got, self._values, self._bounds)


class _CallSampler:
    """Makes calls in turn, each of a function with its arguments, and times groups of them.

    `undo` undoes the calls, one for each. With it, each call is timed by itself, and undone outside its time. Results
    are codes of candidates, or else dropped at once, since they may be large.

    Raises:
        LaunchError: out of `sample`, when a candidate's call does not return 0.
    """

    def __init__(
        self,
        rotation: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]],
        undo: Sequence[Undo] = (),
        *,
        codes: bool = True,
    ) -> None:
        self._next, self._codes = itertools.cycle(rotation), codes
        self._undo = itertools.cycle(undo) if undo else None

    def sample(self, calls: int) -> float:
        """Mean ns of `calls` calls. They are made back to back, unless they are undone."""
        batch = list(itertools.islice(self._next, calls))
        if self._undo is not None:
            return self._one_by_one(batch, self._undo) / calls
        if not self._codes:  # they take no arguments, and unpacking none would take as long as a small call
            functions = [function for function, _ in batch]
            begin = _clock()
            for function in functions:
                function()
            return (_clock() - begin) / calls
        codes = [0] * calls
        begin = _clock()
        for number, (function, arguments) in enumerate(batch):
            codes[number] = function(*arguments)
        end = _clock()
        _check(codes)
        return (end - begin) / calls

    def _one_by_one(self, batch: Sequence[tuple[Any, tuple[Any, ...]]], undo: Iterator[Undo]) -> int:
        clock, spent = _clock, 0
        for function, arguments in batch:
            begin = clock()
            code = function(*arguments)
            spent += clock() - begin
            next(undo)()
            if self._codes:
                _check([code])
        return spent


def _check(codes: Sequence[int]) -> None:
    for code in codes:
        if code:
            raise LaunchError(str(code))


class _CandidateTimer:
    """See `Timer`. The time of an empty call is taken off.

    Calls of screens are counted, and the growth of resident memory after the first ones. That is the leak. A smaller
    one is seen in what `malloc` has given away, if that grows as fast in each half of the calls.
    """

    note = ""

    def __init__(
        self, policy: Policy, launch: Callable[..., int], arguments: Sequence[tuple[Any, ...]], undo: Sequence[Undo]
    ) -> None:
        self._policy, self._arguments, self._undone = policy, arguments[0], bool(undo)
        self._sampler = _CallSampler([(launch, a) for a in arguments], undo)
        self.made = 0
        self._after_first, self._resident = 0, 0
        self._given: list[tuple[int, int]] = []

    def screen(self, best_ns: float | None) -> messages.Timed:
        """One sample to warm up (one call if calls are long), two that count, more unless both are slow."""

        def take(empty: float) -> list[float]:
            calls, samples = _warm_up(self._sample, self._policy)
            samples += [self._sample(calls) for _ in range(2 - len(samples))]
            sample_ns = sum(samples) / len(samples) * calls
            more = lambda count: [self._sample(calls) for _ in range(count)]  # noqa: E731
            return screen(samples, sample_ns, more, self._policy, best_ns, empty)

        samples, overhead = _beside_empty(take, self._empty_ns)
        return messages.Timed(
            samples=tuple(max(s - overhead, 0.0) for s in samples), overhead=overhead, leak=self._leak()
        )

    def turn(self, calls: int, warm: int, *, clock: bool = False) -> messages.Timed:  # noqa: ARG002
        samples, overhead = _beside_empty(
            lambda _empty: [_warm_sample(self._sampler.sample, calls, warm)], self._empty_ns
        )
        return messages.Timed(samples=(max(samples[0] - overhead, 0.0),), overhead=overhead)

    def _sample(self, calls: int) -> float:
        ns = self._sampler.sample(calls)
        self.made += calls
        if not self._resident:
            self._resident, self._after_first = resident_bytes(), self.made
        self._given.append((self.made, _given_away()))
        return ns

    def _leak(self) -> int:
        """Bytes per call by which the process grew, or 0 when the growth is small, or too small to tell."""
        later, grown = self.made - self._after_first, resident_bytes() - self._resident
        leak = grown // later if later > 0 and grown > 1 << 20 else 0
        points = self._given[0], self._given[len(self._given) // 2], self._given[-1]
        halves = [(b[1] - a[1]) // (b[0] - a[0]) for a, b in itertools.pairwise(points) if b[0] > a[0]]
        small = min(halves) if len(halves) == 2 else 0
        return leak if leak > self._policy.leak_bytes else small if small >= _LEAK else 0

    def _empty_ns(self) -> float:
        """ns of calling a function that does nothing with such arguments: the least of some samples.

        If calls are undone, these are timed one by one too. Disturbances make an empty call slower. Its time is taken
        off every time of a candidate, so it must not be too long.
        """
        sampler = _CallSampler([empty_call(self._arguments)], [lambda: None] if self._undone else [])
        return min(sampler.sample(32) for _ in range(8))

    def close(self) -> None:
        """It holds nothing."""

    def sample(self, most_ns: float) -> float:
        """ns per call, with all that a call from here costs; one call alone if it takes more than `most_ns`."""
        alone = self._sampler.sample(1)
        return alone if alone > most_ns else self._sampler.sample(group_size(alone, self._policy.sample_ns))


class _FrameworkTimer:
    """See `Turns`."""

    note = ""

    def __init__(self, functions: Sequence[Callable[[], object]], undo: Sequence[Undo]) -> None:
        self._sampler = _CallSampler([(f, ()) for f in functions], undo, codes=False)
        # ns that reading the clock takes, which are in the time of each call that is undone
        self._reading = min(-_clock() + _clock() for _ in range(32)) if undo else 0

    def turn(self, calls: int, warm: int, *, clock: bool = False) -> messages.Timed:  # noqa: ARG002
        ns = _warm_sample(self._sampler.sample, calls, warm) - self._reading
        return messages.Timed(samples=(max(ns, 0.0),))

    def close(self) -> None:
        """It holds nothing."""


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


def _beside_empty(take: Callable[[float], list[float]], empty: Callable[[], float]) -> tuple[list[float], float]:
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


def _warm_sample(sample: Callable[[int], float], calls: int, warm: int) -> float:
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
        return self._last_cache

    def allocate(self, wants: Sequence[Want], placement: Placement = "inside") -> _Regions:
        return _Regions(wants, placement)

    def burden(self) -> Callable[[], None]:
        """By numpy, which does not hold Python's lock, for about half of the time."""
        numbers = np.ones(1 << 20, np.float32)

        def work() -> None:
            np.sqrt(numbers, out=numbers)
            time.sleep(0.0005)

        return work

    @contextlib.contextmanager
    def oddly(self, calls: CallSet, *, locked: bool, threads: int) -> Iterator[None]:
        """By the system's page tables, and OpenMP's runtime library."""
        names = [t.name for t in calls.kept()] if locked else []
        assert isinstance(calls.arena, _Regions)
        with openmp_threads(threads) if threads else contextlib.nullcontext():
            try:
                calls.arena.lock(names, locked=True)
                yield
            finally:
                calls.arena.lock(names, locked=False)

    def fill(self, storage: NDArray[np.uint8], value: int, width: int = 1) -> None:
        storage.view(f"u{width}").fill(value)

    def writing(self, pairs: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8]]]) -> Undo:
        """By `memmove`, from addresses that are looked up once."""
        memmove = ctypes.memmove
        copies = [(storage.ctypes.data, source.ctypes.data, len(storage)) for storage, source in pairs]

        def write(_held: object = pairs) -> None:  # the arrays, which keep their memory
            for to, source, size in copies:
                memmove(to, source, size)

        return write

    def clone(self, storage: NDArray[np.uint8]) -> NDArray[np.uint8]:
        copied: NDArray[np.uint8] = storage.copy()
        return copied

    def beside(self, storage: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """At the same place in a page. From a few bytes below, a copy waits for its own stores: ten times as long."""
        held = np.empty(len(storage) + _PAGE, np.uint8)
        start = (storage.ctypes.data - held.ctypes.data) % _PAGE
        part: NDArray[np.uint8] = held[start : start + len(storage)]
        return part

    def differ(self, one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
        return bool(_libc.memcmp(one.ctypes.data, other.ctypes.data, len(one)) != 0)

    def places(self, mask: NDArray[np.bool_]) -> NDArray[np.intp]:
        return np.flatnonzero(mask)

    def answers(self, asked: Sequence[Any]) -> list[float]:
        return list(map(float, asked))

    def array(self, tensor: Tensor, strided: Strided, storage: NDArray[np.uint8]) -> NDArray[Any]:
        return strided.array(array_dtype(tensor.dtype), storage if len(storage) else np.empty(8, np.uint8))

    def values(self, tensor: Tensor, array: NDArray[Any], *, wide: bool) -> NDArray[Any]:
        values = values_of(tensor.dtype, array)
        return values.astype(np.float32) if wide else values.copy()

    def reverse(self, tensor: Tensor, storage: NDArray[np.uint8], source: NDArray[np.uint8]) -> bool:
        kind = f"u{tensor.dtype.itemsize}"
        storage.view(kind)[...] = source.view(kind)[::-1]
        return self.differ(storage, source)

    def gap(self, strided: Strided, width: int, storage: NDArray[np.uint8]) -> NDArray[np.bool_]:
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
        truths = read_truth(folder)
        return [_Truths(t, *truths[t.name]) for t in operator.outputs if t.name in truths]

    def write_reference(self, operator: Operator, check: Check, folder: Path) -> str:
        return write_truth(operator, check, folder, self.policy.seed)

    def play(self, batch: Sequence[Call]) -> float:
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
    ) -> _CandidateTimer:

        def run() -> None:
            code = launch(*arguments[0])
            if code:
                raise LaunchError(str(code))

        return _CandidateTimer(self.policy, launch, arguments, self._undo_of(sets, run))

    def alone(self, timer: _CandidateTimer, make: Callable[[], tuple[T, Any]]) -> tuple[T, Any] | None:
        """Other programs only make calls seem longer. So the least of some samples counts."""
        most = 4 * _SHORT_NS  # a first call takes longer
        if not has_team() or (team := min(timer.sample(most), timer.sample(most))) > most:
            return None
        with openmp_threads(1):
            made = make()
        one = math.inf
        for number in range(3):
            with openmp_threads(1):
                one = min(one, made[1].sample(most))
            team = min(team, timer.sample(most))
            if one <= team or (number and one > 2 * _GAIN * team):
                break
        return made if one < min(_SHORT_NS, _GAIN * team) else None

    def framework(self, check: Check, sets: Sequence[CallSet]) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        return contextlib.nullcontext()

    def handed_on(self, module: ModuleType, tensor: Tensor, strided: Strided, storage: NDArray[np.uint8]) -> Any:
        """By DLPack. Elements of dtypes that numpy lacks are integers on their way."""
        dtype, array = tensor.dtype, self.array(tensor, strided, storage)
        if dtype.numpy:
            return module.from_dlpack(array)
        return module.from_dlpack(array.view(f"int{dtype.bits}")).view(getattr(module, dtype.torch))

    def framework_timer(self, functions: Sequence[Callable[[], object]], sets: Sequence[CallSet]) -> _FrameworkTimer:
        return _FrameworkTimer(functions, self._undo_of(sets, functions[0]))

    def _undo_of(self, sets: Sequence[CallSet], run: Callable[[], object]) -> list[Undo]:
        """What undoes a call, by call set; empty if nothing is read and written. `run` shows what calls change."""
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
