"""The CPU family: identity, generous peaks, environment of its workers."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from aot_tune.bench.devices.family import Family, Monitor, Unwatched, make_device
from aot_tune.bench.protocol.measurement_records import Device, DeviceState, Policy, Role
from aot_tune.support.limits import usable_cores
from aot_tune.support.processes import stat_of

_FLAGS = re.compile(
    r"(sse|ssse|avx|fma|f16c|bmi|popcnt|movbe|abm|lzcnt|aes|vaes|sha|gfni|vpclmul|pclmul|adx|amx|cx16|lahf|xsave\b|fsrm|erms)"
)
_LOAD_SECONDS = 0.5
_UNKNOWN_HZ = 6e9
"""Clock in Hz to assume if the system does not tell the highest one. No CPU on sale reaches it."""

_MORE_THAN_F32 = {
    "bf16": {"avx512_bf16": 2, "amx_bf16": 16},
    "f16": {"avx512_fp16": 2, "amx_fp16": 16},
    **{name: {"sse2": 2} for name in ("i16", "u16")},
    **{name: {"ssse3": 4, "amx_int8": 32} for name in ("i8", "u8")},
}
"""How many operations of a dtype take as long as one in f32, by the CPU flag that gives so many."""


class Cpu(Family):
    """The machine's CPU cores, as one device."""

    on_host = True
    peaks = ": two of the widest multiply-adds a cycle on all threads"

    def devices(self, threads: int) -> list[Device]:
        """There is one: model, stepping, instruction sets, caches, usable cores and threads."""
        identity = {**cpu_identity(), "threads": threads}
        return [make_device("cpu", str(identity["model_name"]), f"{threads}t", identity)]

    def seen(self, device: Device, threads: int) -> Mapping[str, str | int]:  # noqa: ARG002
        """What this process runs on."""
        return self.devices(threads)[0].identity

    def monitor(self, device: Device, policy: Policy, log: Callable[[str], None]) -> Monitor:  # noqa: ARG002
        """Watches what other processes take of the cores. The worker itself sees what disturbs a sample."""
        return LoadMonitor()

    def environment(
        self,
        device: Device,  # noqa: ARG002
        threads: int,
        role: Role,
        scratch: Path,  # noqa: ARG002
        policy: Policy,  # noqa: ARG002
    ) -> Mapping[str, str]:
        """Thread counts. Beside candidates, numpy's own BLAS must start no threads.

        After a call, OpenBLAS's threads spin for 2^26 cycles by default, about 0.1 s. 2^20 cycles are enough for
        calls in a row, and leave the cores to the next turn of a race.
        """
        blas = str(threads if role == "framework" else 1)
        return {
            "OPENBLAS_THREAD_TIMEOUT": "20",
            "OMP_NUM_THREADS": str(threads),
            "OMP_DYNAMIC": "false",
            "OPENBLAS_NUM_THREADS": blas,
            "MKL_NUM_THREADS": blas,
            "BLIS_NUM_THREADS": blas,
        }

    def floor_ns(self, device: Device, flops: int, nbytes: int, math: str = "f32") -> float:
        """Assumes the widest instructions, two a cycle, on all threads at the highest clock. Bytes are as from L1."""
        flags = str(device.identity.get("flags", "")).split()
        lanes = 16 if "avx512f" in flags else 8 if "avx" in flags else 4
        times = max((more for flag, more in _MORE_THAN_F32.get(math, {}).items() if flag in flags), default=1)
        hertz = float(device.identity.get("max_khz", 0)) * 1000 or _UNKNOWN_HZ
        threads = int(device.identity.get("threads", 1))
        rate = threads * hertz / 1e9
        return max(flops / (rate * 4 * lanes * times), nbytes / (rate * 12 * lanes))

    def memory_of(self, device: Device) -> int | None:  # noqa: ARG002
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def cache_of(self, device: Device) -> int:
        return _last_bytes(tuple(c.split("=")) for c in str(device.identity.get("caches", "")).split())


FAMILY = Cpu()


class LoadMonitor(Unwatched):
    """How many cores other processes used, on average, in the last half second or more. Tests pass times."""

    def __init__(
        self,
        of_machine: Callable[[], float] | None = None,
        of_process: Callable[[int], float] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._of_machine, self._now = of_machine or busy_seconds, now
        self._of_process = of_process or (lambda pid: stat_of(pid).busy)
        self._before: tuple[float, float] | None = None
        self._state: DeviceState | None = None

    def read(self, workers: Sequence[int]) -> DeviceState | None:
        """The load of others. None the first time, and where the system does not tell."""
        now = self._now()
        if self._before is not None and now - self._before[0] < _LOAD_SECONDS:
            return self._state
        try:
            of_others = self._of_machine() - sum(map(self._of_process, (os.getpid(), *workers)))
        except (OSError, ValueError):  # or a worker has just died
            return self._state
        if self._before is not None:
            load = (of_others - self._before[1]) / (now - self._before[0])
            self._state = DeviceState(load=round(max(load, 0.0), 2))
        self._before = now, of_others
        return self._state


def busy_seconds() -> float:
    """CPU seconds since boot of all processes on the machine, and of what the hypervisor gave to other machines."""
    user, nice, system, _, _, irq, softirq, steal, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / os.sysconf("SC_CLK_TCK")


def cpu_identity() -> dict[str, str | int]:
    """What two CPUs must have in common to share measurements, from /proc/cpuinfo and /sys; not the thread count."""
    info: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        info.setdefault(key.strip(), value.strip())
        if not line:
            break
    flags = sorted(f for f in info.get("flags", info.get("Features", "")).split() if _FLAGS.match(f))
    identity: dict[str, str | int] = {
        "vendor": info.get("vendor_id", info.get("CPU implementer", "unknown")),
        "model_name": info.get("model name", os.uname().machine),
        "family": info.get("cpu family", info.get("CPU architecture", "")),
        "model": info.get("model", info.get("CPU part", "")),
        "stepping": info.get("stepping", info.get("CPU revision", "")),
        "flags": " ".join(flags),
        "caches": " ".join(f"{name}={size}" for name, size in _caches()),
        "cores": usable_cores(),
    }
    with contextlib.suppress(OSError, ValueError):
        identity["max_khz"] = int(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").read_text())
    return identity


@functools.cache
def last_cache_bytes() -> int:
    """Bytes of the last cache level, or 32 MiB if the system does not tell."""
    return _last_bytes(_caches())


def _last_bytes(caches: Iterable[tuple[str, ...]]) -> int:
    return max((_bytes(size) for name, size in caches if not name.endswith("i")), default=32 << 20)


def _caches() -> list[tuple[str, str]]:
    caches = []
    letters = {"Data": "d", "Instruction": "i"}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / n).read_text().strip() for n in ("level", "type", "size"))
        except OSError:
            continue
        caches.append((f"L{level}{letters.get(kind, '')}", size))
    return caches


def _bytes(size: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(size[:-1]) * units[size[-1]] if size[-1:] in units else int(size or 0)
