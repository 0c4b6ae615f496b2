"""One stream of a GPU: its faults, recorded calls, and a clock for them."""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from aot_tune.bench.protocol.measurement_records import WORKER_FAULT, Device
from aot_tune.bench.worker.cuda_memory import Mapper
from aot_tune.bench.worker.engine import Call, FaultError
from aot_tune.bench.worker.loaded_objects import LaunchError

Play = Callable[[], None]
"""Makes recorded calls once more."""
_FAULTS = {
    700: "illegal memory access",
    702: "kernel stopped by the driver's time limit",
    710: "device-side assertion",
    714: "hardware stack error",
    715: "illegal instruction",
    716: "misaligned address",
    717: "invalid address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
    721: "contained error",
}
"""Errors by which a kernel spoils its context for good."""
_CAPTURE_GLOBAL = 0
_LAUNCHES = 2
"""How many to launch on each of the other streams. On an H100, one on each of 16, 24 on eight, or 32 on two were
enough."""
_QUEUEING = 60_000
"""Cycles, about 30 us, that queuing a graph takes."""


def _fault(code: int, text: str) -> FaultError:
    """An error by which the context is unusable."""
    return FaultError(f"{_FAULTS.get(code, text)} ({code})", by_kernel=code in _FAULTS)


class CaptureError(Exception):
    """Calls cannot be captured in a graph."""


_TABLE, _COPIERS, _LATE_NS, _STARTS_EARLY = 8, 32, 30_000, 6
"""Of late copies: tensors of a launch, blocks, how late they are, and the attribute of a launch that may start early
(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)."""


class DeviceStream(Protocol):
    """One device's stream.

    `dlpack` is DLPack's type and number of the device. `stream` is what candidates are passed. `last_busy` is when the
    device was last kept busy, on the monotonic clock. `mapper` maps its memory, if anything does.
    """

    device: torch.device
    dlpack: tuple[int, int]
    stream: int | None
    last_busy: float
    mapper: Mapper | None

    def guard(self) -> Any:
        """A context manager. In it, torch's work goes to the stream."""

    def check(self) -> None:
        """Wait until all work is done. Raises FaultError when the context is unusable."""

    def forget(self) -> None:
        """Clear an error that a failed launch left behind."""

    def claim(self, device: Device, share: float) -> None:
        """Take at most a `share` of the device's memory. Raises FaultError when this is another than `device`."""

    def free(self) -> None:
        """Give back memory that torch keeps. It would be missing in the other worker."""

    def use_streams(self, count: int) -> None:
        """Launch kernels on so many other streams, as programs do. See docs/measuring-gpu.md, "Streams"."""

    def record(self, calls: Sequence[Call], framework: bool = False) -> Recorded:
        """Record calls; those of a `framework` may allocate. Raises CaptureError: `one_by_one` takes such calls."""

    def callers(self) -> list[tuple[int | None, Callable[[], AbstractContextManager[Any]]]]:
        """This stream and another one, and what a thread that uses it is in. All work is done at the end of that."""

    def burden(self) -> Play:
        """Work on another stream, which takes about a millisecond."""

    def copying(self, pairs: Sequence[tuple[Any, Any]], waits: bool = False) -> Call:
        """A call of a kernel that copies the second storage of each pair to the first, after a while.

        A kernel that may start early can start before that. With `waits`, this one starts early itself, and waits for
        the kernels before it. Then it copies at once.
        """

    def time(self, play: Play, count: int, warm: bool = True, before: Play | None = None) -> list[float]:
        """ns of each of `count` plays in a row. With `warm`, one play before them is not timed.

        The time of what is done `before` each play is not included.

        Raises:
            FaultError: as `check` does.
            LaunchError: when a call returns an error.
        """

    def empty(self) -> Call:
        """A call of a kernel that does nothing."""

    def clock_mhz(self, cycles: int) -> float:
        """The clock now, by a kernel that spins for so many cycles; 0 when nothing tells. Raises FaultError."""

    def read_rate(self, storages: Sequence[Any]) -> float:
        """Bytes per ns at which tensors of bytes are read in turn; 0 when nothing tells. Raises FaultError."""


class Recorded:
    """Calls that can be played again. `nodes` is how much work a graph holds, or None without a graph."""

    def __init__(self, play: Play, nodes: int | None = None, close: Callable[[], None] = lambda: None) -> None:
        self.play, self.nodes, self.close = play, nodes, close


def one_by_one(calls: Sequence[Call]) -> Recorded:
    """Calls without a graph."""

    def play() -> None:
        for call in calls:
            code = call()
            if code:
                raise LaunchError(f"launch returned {code}")

    return Recorded(play)


class _Copy(ctypes.Structure):
    _fields_ = (("to", ctypes.c_void_p), ("source", ctypes.c_void_p), ("size", ctypes.c_uint64))


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, with a number as its value."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_int * 15))


class _Launch(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class LateCopies:
    """The kernel of `late_copy.ptx`, loaded into the current context by the driver."""

    def __init__(self, driver: Any, function: ctypes.c_void_p) -> None:
        self._driver, self._function = driver, function

    @classmethod
    def on(cls, device: torch.device) -> LateCopies | Literal[False]:
        """False where no kernel starts early, or where the driver does not take it."""
        if torch.cuda.get_device_capability(device) < (9, 0):
            return False
        try:
            driver = ctypes.CDLL("libcuda.so.1")
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            text = Path(__file__).with_name("late_copy.ptx").read_bytes() + b"\0"
            failed = driver.cuModuleLoadData(ctypes.byref(module), text)
            failed = failed or driver.cuModuleGetFunction(ctypes.byref(function), module, b"aot_tune_late_copy")
            return not failed and hasattr(driver, "cuLaunchKernelEx") and cls(driver, function)
        except OSError:
            return False

    def call(self, pairs: Sequence[tuple[Any, Any]], stream: ctypes.c_void_p, *, waits: bool) -> Call:
        """See `DeviceStream.copying`. A launch takes at most eight tensors."""
        launches = [self._launch(pairs[i : i + _TABLE], stream, waits) for i in range(0, len(pairs), _TABLE)]

        def call() -> int:
            return next(filter(None, (launch() for launch in launches)), 0)

        return call

    def _launch(self, pairs: Sequence[tuple[Any, Any]], stream: ctypes.c_void_p, waits: bool) -> Callable[[], int]:
        table = (_Copy * _TABLE)(*(_Copy(to.data_ptr(), source.data_ptr(), to.numel()) for to, source in pairs))
        count, wait, ns = ctypes.c_int(len(pairs)), ctypes.c_int(waits), ctypes.c_uint64(0 if waits else _LATE_NS)
        given = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in (table, count, wait, ns)))
        early = _Attribute(_STARTS_EARLY, 0, 1)
        launch = _Launch((_COPIERS, 1, 1), (256, 1, 1), 0, stream.value, ctypes.pointer(early), int(waits))

        def start(_held: object = (table, count, wait, ns, pairs)) -> int:
            return int(self._driver.cuLaunchKernelEx(ctypes.byref(launch), self._function, given, None))

        return start


class GpuStream:
    """See `DeviceStream`. Makes the CUDA context, which candidates share with torch. Raises FaultError."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", 0)
        self.dlpack = (2, 0)
        torch.cuda.init()  # type: ignore[no-untyped-call]
        self._runtime = _runtime()
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.stream: int | None = int(self._stream.cuda_stream)
        self._handle = ctypes.c_void_p(self.stream)
        self.last_busy = -math.inf
        self.mapper: Mapper | None = Mapper(
            ctypes.CDLL("libcuda.so.1"), 0, lambda memory: torch.as_tensor(memory, device=self.device)
        )
        self._events: list[Any] = []
        self._others: list[Any] = []
        self._copies: LateCopies | Literal[False] | None = None

    def guard(self) -> Any:
        return torch.cuda.stream(self._stream)

    def check(self) -> None:
        code = self._runtime.cudaStreamSynchronize(self._handle)
        if code:
            raise _fault(code, self._text(code))

    def forget(self) -> None:
        self._runtime.cudaGetLastError()

    def claim(self, device: Device, share: float) -> None:
        """Freed memory that torch keeps would be missing in the other worker, too."""
        check_device(self.device, device)
        torch.cuda.set_per_process_memory_fraction(share, self.device)

    def free(self) -> None:
        torch.cuda.empty_cache()

    def use_streams(self, count: int) -> None:
        """Launches kernels that do nothing. Graphs and copies do not have the same effect, on however many streams."""
        while len(self._others) < count:
            self._others.append(torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]
        current = torch.cuda.current_stream(self.device)
        try:
            for stream in self._others[:count]:
                torch.cuda.set_stream(stream)
                for _ in range(_LAUNCHES):
                    torch.cuda._sleep(0)  # type: ignore[no-untyped-call]
        finally:
            torch.cuda.set_stream(current)

    def record(self, calls: Sequence[Call], framework: bool = False) -> Recorded:
        """Capture a graph, in the mode that forbids what a launch must not do."""
        if framework:
            return self._record_framework(calls)
        runtime, graph, executable = self._runtime, ctypes.c_void_p(), ctypes.c_void_p()
        code = runtime.cudaStreamBeginCapture(self._handle, ctypes.c_int(_CAPTURE_GLOBAL))
        returned: int | None = 0
        for call in calls:
            returned = call()
            if returned:
                break
        ended = runtime.cudaStreamEndCapture(self._handle, ctypes.byref(graph))
        code = code or returned or ended
        if not code:
            code = runtime.cudaGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        nodes = ctypes.c_size_t(0)
        if graph.value:
            runtime.cudaGraphGetNodes(graph, None, ctypes.byref(nodes))
            runtime.cudaGraphDestroy(graph)
        if code:
            self.forget()
            self.check()
            raise CaptureError(f"{self._text(code)} ({code})")

        def play() -> None:
            code = runtime.cudaGraphLaunch(executable, self._handle)
            if code:
                raise _fault(code, self._text(code))

        def close() -> None:
            runtime.cudaGraphExecDestroy(executable)

        return Recorded(play, int(nodes.value), close)

    def _record_framework(self, calls: Sequence[Call]) -> Recorded:
        """Capture a graph through torch. torch keeps the memory that the calls allocate for the graph."""
        graph = torch.cuda.CUDAGraph()
        try:
            graph.capture_begin(capture_error_mode="global")
            for call in calls:
                call()
            graph.capture_end()
        except Exception as error:
            with contextlib.suppress(Exception):
                graph.capture_end()
            self.forget()
            self.check()
            raise CaptureError(str(error).partition("\n")[0]) from error
        return Recorded(graph.replay, None, graph.reset)

    def callers(self) -> list[tuple[int | None, Callable[[], AbstractContextManager[Any]]]]:
        """Threads have no stream of torch's until they enter one, and no context until the runtime makes it current.

        What is called for users has one, see `switch_device` in runtime/cuda.
        """
        other = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

        def guard(stream: Any) -> Callable[[], AbstractContextManager[Any]]:
            @contextlib.contextmanager
            def inside() -> Iterator[None]:
                self._runtime.cudaSetDevice(0)  # torch leaves this out if the device is the thread's already
                with torch.cuda.stream(stream):
                    yield
                    stream.synchronize()

            return inside

        return [(int(s.cuda_stream), guard(s)) for s in (self._stream, other)]

    def burden(self) -> Play:
        """Sixteen reads and writes of 64 MiB."""
        other = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        numbers = torch.ones(1 << 24, device=self.device)
        other.wait_stream(self._stream)

        def work() -> None:
            with torch.cuda.stream(other):
                for _ in range(16):
                    numbers.mul_(1.0)
                other.synchronize()

        return work

    def copying(self, pairs: Sequence[tuple[Any, Any]], waits: bool = False) -> Call:
        """By `late_copy.ptx`, or by torch on a device on which no kernel starts early."""
        if self._copies is None:
            self._copies = LateCopies.on(self.device)
        late = self._copies
        if late:
            return late.call(pairs, self._handle, waits=waits)

        def call() -> int:
            for to, source in pairs:
                to.copy_(source)
            return 0

        return call

    def time(self, play: Play, count: int, warm: bool = True, before: Play | None = None) -> list[float]:
        """Timed with events. The first play keeps the GPU busy while the rest is queued, so that no gap is timed."""
        if before is not None:
            return self._time_apart(play, count + warm, before)[int(warm) :]
        events = self._timers(count + 1)
        if warm:
            play()
        events[0].record(self._stream)
        for number in range(count):
            play()
            events[number + 1].record(self._stream)
        self.check()
        return [1e6 * events[i].elapsed_time(events[i + 1]) for i in range(count)]

    def _time_apart(self, play: Play, count: int, before: Play) -> list[float]:
        """Something runs before each play, then a spin. The play is queued during the spin."""
        events = self._timers(2 * count)
        for number in range(count):
            before()
            torch.cuda._sleep(_QUEUEING)  # type: ignore[no-untyped-call]
            events[2 * number].record(self._stream)
            play()
            events[2 * number + 1].record(self._stream)
        self.check()
        return [1e6 * events[2 * i].elapsed_time(events[2 * i + 1]) for i in range(count)]

    def _timers(self, count: int) -> list[Any]:
        while len(self._events) < count:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(self._stream)  # recording creates it, which must not take time later
            self._events.append(event)
        return self._events

    def empty(self) -> Call:
        """torch's kernel that spins, for no cycles."""

        def call() -> int:
            torch.cuda._sleep(0)  # type: ignore[no-untyped-call]
            return 0

        return call

    def clock_mhz(self, cycles: int) -> float:
        """Uses torch's kernel that spins until a multiprocessor's counter has advanced by so many cycles.

        The first spin keeps the GPU busy while the host queues the rest. The second is timed. The third has no cycles,
        and tells how much of that time is not spinning.
        """
        events = self._timers(3)
        torch.cuda._sleep(cycles // 2)  # type: ignore[no-untyped-call]
        events[0].record(self._stream)
        for number, spin in enumerate((cycles, 0)):
            torch.cuda._sleep(spin)  # type: ignore[no-untyped-call]
            events[number + 1].record(self._stream)
        self.check()
        microseconds = 1e3 * (events[0].elapsed_time(events[1]) - events[1].elapsed_time(events[2]))
        return cycles / microseconds if microseconds > 0 else 0.0

    def read_rate(self, storages: Sequence[Any]) -> float:
        """The best of three plays of a graph, because the host launches more slowly than the GPU reads."""
        play, size = reads(storages)
        if not size:
            return 0.0

        def call() -> int:
            play()
            return 0

        call()  # its kernels may have to be loaded, which a capture does not allow
        self.check()
        try:
            recorded = self._record_framework([call])
        except CaptureError:
            recorded = one_by_one([call])
        try:
            return size / max(min(self.time(recorded.play, 3)), 1.0)
        finally:
            recorded.close()

    def _text(self, code: int) -> str:
        if code in _FAULTS:
            return _FAULTS[code]
        function = self._runtime.cudaGetErrorString
        function.restype = ctypes.c_char_p
        text: bytes = function(ctypes.c_int(code)) or b"error"
        return text.decode(errors="replace")


def reads(storages: Sequence[Any]) -> tuple[Play, int]:
    """A play that reads tensors of bytes in their order, and how many bytes that is.

    One kernel reads many tensors: with one kernel each, most of the time would be spent between them. Bytes are left
    out if they are not aligned for its numbers, or do not fill one.
    """
    whole = []
    for storage in storages:
        skipped = -int(storage.data_ptr()) % 4
        numbers = (storage.numel() - skipped) // 4
        if numbers > 0:
            whole.append(storage[skipped : skipped + 4 * numbers].view(torch.float32))

    def play() -> None:
        torch._foreach_norm(whole)

    return play, sum(4 * w.numel() for w in whole)


def _runtime() -> Any:
    """The CUDA runtime library that torch has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = re.search(r"(/\S.*libcudart[^/]*\.so[^/]*)$", line)
        if match:
            return ctypes.CDLL(match.group(1))
    raise RuntimeError("torch has loaded no libcudart: this torch is built without CUDA")


def connected(connect: Callable[[], DeviceStream], device: Device, share: float) -> DeviceStream:
    """The device, touched now and tested: memory, a kernel, a comparison.

    A GPU's worker may take `share` of its memory.

    Raises:
        FaultError: when the device cannot be used, with what to do, or when it is not the requested one.
    """
    try:
        engine = connect()
        with engine.guard():
            numbers = torch.arange(4096, device=engine.device, dtype=torch.float32)
            right = bool((numbers * 2 + 1).sum().item() == 4096.0 * 4096.0)
    except FaultError:
        raise
    except Exception as error:
        raise _fault(0, f"{WORKER_FAULT}{_unusable(str(error))}") from error
    if not right:
        raise _fault(0, f"{WORKER_FAULT}the GPU computes a wrong sum: it needs a reset")
    engine.claim(device, share)
    return engine


def check_device(index: torch.device, device: Device) -> None:
    """Raise FaultError if the worker is on another kind of device than the one to measure."""
    seen = torch.cuda.get_device_properties(index)
    pairs = (seen.name, seen.multi_processor_count), (device.identity.get("name"), device.identity.get("sm_count"))
    actual, wanted = (f"{name} with {count} multiprocessors" for name, count in pairs)
    if actual != wanted:
        why = f"this is another device: {actual} instead of {wanted}; GPUs changed meanwhile: build again"
        raise _fault(0, f"{WORKER_FAULT}{why}")


def _unusable(said: str) -> str:
    first = said.partition("\n")[0]
    hints = {
        "busy or unavailable": "another process has it to itself: end that process, or set its compute mode to default",
        "prohibited": "set its compute mode to default with `nvidia-smi -c DEFAULT`",
        "out of memory": "other processes hold its memory: end them, or choose another GPU with CUDA_VISIBLE_DEVICES",
        "driver version is insufficient": "update the driver, or install a torch built for an older CUDA",
        "no CUDA": "install a torch built for CUDA",
    }
    hint = next((h for text, h in hints.items() if text in said), "check with `nvidia-smi`")
    return f"the GPU cannot be used: {first}; {hint}"
