"""NVML through ctypes: clocks, temperature, power, throttle reasons and processes of one GPU, from any process.

The bench's own process may load this library, because it makes no context on a GPU. It never loads libcuda.
"""

from __future__ import annotations

import ctypes
from typing import Any

# Numbers of nvml.h. Bits of the clock event reasons:
POWER_CAP = 0x4
REASONS = {
    0x1: "idleness",
    0x2: "set clocks",
    POWER_CAP: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "thermal slowdown",
    0x80: "power brake",
}
"""What holds the clocks down, in words. The policy says which of these spoil samples."""

_SM, _MEMORY = 1, 2
_POWER = 0
_CORE_TEMPERATURE = 0
_MOST_PROCESSES = 64
_XID_EVENTS = ctypes.c_ulonglong(8)


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Violation(ctypes.Structure):
    _fields_ = (("reference", ctypes.c_ulonglong), ("violation", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _XidEvent(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Gpu:
    """One GPU. The answer to a question is None, or an empty list, if this NVML cannot tell."""

    def __init__(self, library: Any, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle
        self._events: ctypes.c_void_p | None = None

    def sm_mhz(self) -> int | None:
        return self._number("nvmlDeviceGetClockInfo", _SM)

    def memory_mhz(self) -> int | None:
        return self._number("nvmlDeviceGetClockInfo", _MEMORY)

    def max_sm_mhz(self) -> int | None:
        return self._number("nvmlDeviceGetMaxClockInfo", _SM)

    def memory_rate(self) -> float:
        """Peak bytes per ns of the memory, which moves data twice per clock. 0 if NVML does not tell."""
        clock, width = self._number("nvmlDeviceGetMaxClockInfo", _MEMORY), self._number("nvmlDeviceGetMemoryBusWidth")
        return 2.0 * (clock or 0) * 1e-3 * (width or 0) / 8

    def celsius(self) -> int | None:
        return self._number("nvmlDeviceGetTemperature", _CORE_TEMPERATURE)

    def milliwatts(self) -> int | None:
        return self._number("nvmlDeviceGetPowerUsage")

    def reasons(self) -> int | None:
        """Bits that say what holds the clocks down."""
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            bits = self._number(name, kind=ctypes.c_ulonglong)
            if bits is not None:
                return bits
        return None

    def capped_ns(self) -> int | None:
        """For how many ns in all the power cap has held the clocks down. It counts in steps of about 20 ms.

        `reasons` shows the power cap 0.1 s late. NVML 13 calls this question deprecated, and CUDA 14 will not have it.
        """
        value = _Violation()
        answered = self._ask("nvmlDeviceGetViolationStatus", ctypes.c_uint(_POWER), ctypes.byref(value))
        return int(value.violation) if answered else None

    def utilization(self) -> int | None:
        value = _Utilization()
        return int(value.gpu) if self._ask("nvmlDeviceGetUtilizationRates", ctypes.byref(value)) else None

    def processes(self) -> list[int]:
        count, rows = ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        if not self._ask("nvmlDeviceGetComputeRunningProcesses_v3", ctypes.byref(count), rows):
            return []
        return [int(rows[i].pid) for i in range(min(count.value, _MOST_PROCESSES))]

    def compute_mode(self) -> int | None:
        """0 default, 1 and 3 exclusive, 2 prohibited."""
        return self._number("nvmlDeviceGetComputeMode")

    def xids(self) -> list[int]:
        """Numbers of the errors (Xid) that the driver has reported since the last call. The first call only begins."""
        numbers, event = [], _XidEvent()
        try:
            if self._events is None:
                self._events = ctypes.c_void_p()
                self._library.nvmlEventSetCreate(ctypes.byref(self._events))
                self._ask("nvmlDeviceRegisterEvents", _XID_EVENTS, self._events)
            while self._events and not self._library.nvmlEventSetWait_v2(self._events, ctypes.byref(event), 0):
                numbers.append(int(event.data))
        except AttributeError:
            pass
        return numbers

    def _number(self, name: str, *arguments: int, kind: Any = ctypes.c_uint) -> int | None:
        value = kind(0)
        numbers = [ctypes.c_uint(a) for a in arguments]
        return int(value.value) if self._ask(name, *numbers, ctypes.byref(value)) else None

    def _ask(self, name: str, *arguments: Any) -> bool:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return False
        return bool(function(self._handle, *arguments) == 0)


def open_gpu(unit: str, library: str = "libnvidia-ml.so.1") -> Gpu | None:
    """The GPU with a UUID, or the GPU that a MIG name is a slice of. None without NVML, or if NVML does not know it."""
    try:
        loaded = ctypes.CDLL(library)
        if loaded.nvmlInit_v2() != 0:
            return None
        handle = ctypes.c_void_p()
        if loaded.nvmlDeviceGetHandleByUUID(unit.encode(), ctypes.byref(handle)) != 0:
            return None
        if unit.startswith("MIG-"):
            parent = ctypes.c_void_p()
            if loaded.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle, ctypes.byref(parent)) != 0:
                return None
            handle = parent
    except (OSError, AttributeError):
        return None
    return Gpu(loaded, handle)
