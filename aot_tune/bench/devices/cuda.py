"""The CUDA family: identity, peaks, environment of its workers. Nothing here loads torch. Workers load libcuda."""

from __future__ import annotations

import ctypes
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

import msgspec

from aot_tune.bench.devices.family import Family, Monitor, make_device
from aot_tune.bench.devices.nvml import POWER_CAP, REASONS, Gpu, open_gpu
from aot_tune.bench.protocol.measurement_records import Device, DeviceState, GpuTiming, Policy, Role
from aot_tune.support.errors import WorkerError
from aot_tune.support.kernel_log import xid_text

_IDLE_STEP = 0.5
_COUNT_SECONDS = 1.0
_CUBLAS_KIB = 32 << 10
_VERSION = 9
"""Raised when the code of this package changes what a measurement means."""
_HIGHEST_HZ = 3.2e9
_FLOPS_PER_CLOCK = {"f32": 2 * 256, "f64": 2 * 256, "tf32": 2 * 4096}
_MOST_FLOPS_PER_CLOCK = 2 * 8192
"""FLOP per cycle and multiprocessor, dense: twice what Hopper does, or as much as Blackwell does."""
_L2_RATE, _MEMORY_RATE = 20_000.0, 16_000.0
"""Bytes per ns. No cache or memory on sale reaches this."""


class GpuMonitor:
    """See `family.Monitor`. `gpu` is None without NVML. A GPU that stays slow is measured as it is."""

    def __init__(
        self,
        device: Device,
        log: Callable[[str], None],
        gpu: Gpu | None,
        rules: GpuTiming,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._device, self._log, self._gpu, self._rules, self._sleep = device, log, gpu, rules, sleep
        self._expected = (gpu.max_sm_mhz() or 0) if gpu is not None else 0
        self._in_a_row = self._recoveries = 0
        self._capped_ns = gpu.capped_ns() if gpu is not None else None
        self._others, self._counted = 0, -_COUNT_SECONDS
        self._told: set[str] = set()

    def begin(self) -> None:
        """Refuses a GPU that serves no second process. Waits for a busy GPU, but not for ever."""
        if self._gpu is None:
            self._say("NVML is not here: clocks, temperature and other processes of the GPU are not watched")
            return
        self._gpu.xids()
        if self._expected and self._capped_ns is None:
            self._say(
                "NVML does not count the time under the power cap here: large products may be timed again after pauses"
            )
        mode = self._gpu.compute_mode()
        if mode:
            prohibited = mode == 2
            raise WorkerError(
                f"{self._device.name} ({self._device.unit}) is in compute mode "
                f"{'prohibited' if prohibited else 'exclusive'}",
                why="no process may use it"
                if prohibited
                else "candidates and the frameworks they are compared with are two processes on it",
                fix=f"`nvidia-smi -i {self._device.unit} -c DEFAULT` as administrator, or leave it out of "
                "CUDA_VISIBLE_DEVICES",
            )
        waited = 0.0
        while (others := self._busy(self._gpu)) >= 0:
            if waited >= self._rules.busy_seconds:
                self._say(
                    f"noisy: {self._device.name} is still busy after {waited:.0f} s, with {others} other processes; "
                    "measuring anyway"
                )
                return
            if not waited:
                self._say(f"{self._device.name} is busy, {others} other processes use it: waiting")
            self._sleep(_IDLE_STEP)
            waited += _IDLE_STEP

    def _busy(self, gpu: Gpu) -> int:
        """How many other processes use the GPU while it computes, or -1 when it is idle."""
        percent = gpu.utilization()
        others = len(gpu.processes())
        busy = percent >= self._rules.busy_percent if percent is not None else others > 0
        return others if busy else -1

    def read(self, workers: Sequence[int]) -> DeviceState | None:
        """Clocks, temperature, power, reasons, and how many processes beside `workers` have a context.

        The power cap is one of the reasons if it held the clocks down at any time since the last reading.
        """
        gpu = self._gpu
        if gpu is None:
            return None
        return DeviceState(
            sm_mhz=gpu.sm_mhz() or 0,
            memory_mhz=gpu.memory_mhz() or 0,
            celsius=gpu.celsius() or 0,
            watts=round((gpu.milliwatts() or 0) / 1000, 1),
            reasons=(gpu.reasons() or 0) | (POWER_CAP if self._was_capped(gpu) else 0),
            others=self._count(gpu, workers),
        )

    def _was_capped(self, gpu: Gpu) -> bool:
        before, self._capped_ns = self._capped_ns, gpu.capped_ns()
        return before is not None and self._capped_ns is not None and self._capped_ns > before

    def _count(self, gpu: Gpu, workers: Sequence[int]) -> int:
        """Other processes on the GPU. NVML is slow to list them, so the answer is kept for a second."""
        if time.monotonic() - self._counted >= _COUNT_SECONDS:
            self._others, self._counted = _others(gpu.processes(), workers), time.monotonic()
            if self._others:
                self._say(f"noisy: other processes use {self._device.name} during measurements; the records note it")
        return self._others

    def spoiled(self, state: DeviceState | None) -> str:
        """Thermal and hardware slowdowns, and clocks that fell without a stated reason.

        A slowdown that lasts is accepted in the end. A clock that stays low is then the expected clock.
        """
        why = self._why(state) if state is not None else ""
        if not why or state is None:
            self._in_a_row = 0
            return ""
        self._in_a_row += 1
        if self._in_a_row > 3 or self._recoveries >= self._rules.recoveries:
            self._say(f"noisy: {self._device.name}: {why}, which does not pass; its times are kept")
            if "clock" in why:
                self._expected = state.sm_mhz
            self._in_a_row = 0
            return ""
        return why

    def _why(self, state: DeviceState) -> str:
        dropped = state.reasons & self._rules.dropped
        if dropped:
            names = [name for bit, name in REASONS.items() if dropped & bit] or [f"clock event reasons {dropped:#x}"]
            return f"{names[0]} at {state.celsius} C, {state.sm_mhz} MHz"
        low = 0 < state.sm_mhz < self._rules.least_clock * self._expected
        if low and not state.reasons & self._rules.kept:
            return f"a clock of {state.sm_mhz} MHz instead of {self._expected}"
        return ""

    def capped(self, state: DeviceState) -> bool:
        """Whether the software power cap acts. Large matrix products reach it."""
        return bool(state.reasons & POWER_CAP)

    def recover(self, why: str) -> None:
        """Let the GPU cool down, and say why."""
        self._recoveries += 1
        self._log(
            f"{self._device.name}: {why}: what was just timed is timed again in "
            f"{self._rules.recovery_seconds:g} s ({self._recoveries} of at most {self._rules.recoveries} times)"
        )
        self._sleep(self._rules.recovery_seconds)

    def faults(self) -> str:
        """Errors that the driver calls Xid."""
        return "; ".join(map(xid_text, dict.fromkeys(self._gpu.xids() if self._gpu else ())))

    def _say(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._log(line)


def _others(pids: Sequence[int], workers: Sequence[int]) -> int:
    """Processes that are not the bench's. In a container NVML may number them otherwise. Then they are only counted."""
    visible = set(pids) & set(workers)
    if visible or not workers:
        return len(set(pids) - set(workers))
    return max(len(set(pids)) - len(workers), 0)


class Cuda(Family):
    """The machine's NVIDIA GPUs, each a device."""

    start_seconds = 5.0  # on an H200's machine 4.4 s to import torch, 0.3 s for CUDA
    peaks = ": more than any GPU on sale has"

    def devices(self, threads: int) -> list[Device]:  # noqa: ARG002
        """One per GPU that CUDA_VISIBLE_DEVICES leaves visible."""
        from aot_tune.compile.visible_gpus import visible_devices

        query = visible_devices()
        return [
            device_of(
                name=d.name,
                uuid=d.uuid,
                capability=d.capability,
                sm_count=d.sm_count,
                l2_bytes=d.l2_bytes,
                memory_bytes=d.memory_bytes,
                driver=query.driver_text or str(query.driver),
                settings=d.settings,
            )
            for d in query.devices
        ]

    def unit_here(self) -> str:
        """The driver tells the UUID of a slice as it tells a GPU's."""
        raw = (ctypes.c_ubyte * 16)()
        try:
            driver = ctypes.CDLL("libcuda.so.1")
            told = driver.cuInit(0) == 0 and driver.cuDeviceGetUuid_v2(ctypes.byref(raw), 0) == 0
        except (OSError, AttributeError):
            return ""
        return f"GPU-{uuid.UUID(bytes=bytes(raw))}" if told else ""

    def policy(self, base: Policy = Policy()) -> Policy:  # noqa: B008 - it is frozen
        """Samples are short, because a clock on the device takes them. Copies of the tensors fill four times the L2."""
        return msgspec.structs.replace(
            base,
            version=_VERSION,
            sample_ns=min(base.sample_ns * 4, 200_000),
            screen_ns=min(base.screen_ns, 3_000_000),
            screen_samples=min(base.screen_samples, 10),
            race_ns=min(base.race_ns, 250_000_000),
            race_rounds=min(base.race_rounds, 13),
            race_least=7,
            cold_factor=4.0,
            copies=512,
            gpu=GpuTiming(),
            deadlines=msgspec.structs.replace(base.deadlines, handshake=180.0, load=30.0, check=15.0),
        )

    def environment(
        self,
        device: Device,
        threads: int,  # noqa: ARG002
        role: Role,  # noqa: ARG002
        scratch: Path,
        policy: Policy,
    ) -> Mapping[str, str]:
        """One GPU, by name, so that the worker sees it as number 0.

        cuBLAS gets 32 MiB of workspace, as torch gives it on such a GPU, or what the user allows candidates. The host's
        cores are for compilers, so frameworks take one core.
        """
        most = policy.workspace_bytes >> 10
        kib = _CUBLAS_KIB if most == Policy().workspace_bytes >> 10 else most
        return {
            "CUDA_VISIBLE_DEVICES": device.unit,
            "CUDA_MODULE_LOADING": "LAZY",
            "CUDA_CACHE_PATH": str(scratch / "cuda-cache"),
            "CUBLAS_WORKSPACE_CONFIG": f":{kib // 8}:8" if kib >= 8 else ":0:0",
            "CUBLASLT_WORKSPACE_SIZE": str(kib),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }

    def writable(self) -> tuple[Path, ...]:
        """What the driver writes to. The worker itself asks this, so `/proc/self` is the worker."""
        files = sorted(p for p in Path("/dev").glob("nvidia*"))
        return (*files, Path("/proc/self/task"))

    def floor_ns(self, device: Device, flops: int, nbytes: int, math: str = "f32") -> float:
        """From the number of multiprocessors, the highest clock, and the memory's bus."""
        clock, memory = peak_rates(device.unit)
        per_clock = _FLOPS_PER_CLOCK.get(math, _MOST_FLOPS_PER_CLOCK)
        rate = int(device.identity.get("sm_count", 256)) * clock * per_clock / 1e9
        near = min(nbytes, 2 * int(device.identity.get("l2_bytes", 0)))
        return max(flops / rate, near / _L2_RATE + (nbytes - near) / memory)

    def memory_of(self, device: Device) -> int | None:
        return int(device.identity["memory_gib"]) << 30 if "memory_gib" in device.identity else None

    def cache_of(self, device: Device) -> int:
        return int(device.identity.get("l2_bytes", 0))

    def monitor(self, device: Device, policy: Policy, log: Callable[[str], None]) -> Monitor:
        """Watches by NVML, if it is here."""
        return GpuMonitor(device, log, open_gpu(device.unit), policy.on_gpu)


FAMILY = Cuda()


@cache
def peak_rates(unit: str) -> tuple[float, float]:
    """A GPU's highest clock in Hz, and 1.25 x its memory's bytes per ns. Generous numbers if NVML does not tell."""
    gpu = open_gpu(unit)
    hertz = (gpu.max_sm_mhz() or 0) * 1e6 if gpu else 0.0
    memory = 1.25 * gpu.memory_rate() if gpu else 0.0
    return hertz or _HIGHEST_HZ, memory or _MEMORY_RATE


def device_of(
    *,
    name: str,
    uuid: str,
    capability: int,
    sm_count: int,
    l2_bytes: int,
    memory_bytes: int,
    driver: str,
    settings: Mapping[str, int] = MappingProxyType({}),
) -> Device:
    """The record of a GPU. Equal GPUs with the same branch of the driver and the same settings differ in the unit only.

    Later releases of a branch only correct faults. Its compiler, and what it supports, stay the same. `settings` are
    those that are not as usual on the board. So records of usual boards do not name them.
    """
    identity: dict[str, str | int] = {
        "name": name,
        "capability": capability,
        "sm_count": sm_count,
        "l2_bytes": l2_bytes,
        "memory_gib": round(memory_bytes / (1 << 30)),
        "driver": driver.partition(".")[0],
        **settings,
    }
    return msgspec.structs.replace(make_device("cuda", name, f"{sm_count}sm", identity, uuid), driver=driver)
