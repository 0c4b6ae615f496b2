"""The CUDA family: identity, peaks, environment of its workers. Nothing here loads torch, or the driver's libcuda."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from aot_tune.bench.devices.cuda_monitor import GpuMonitor
from aot_tune.bench.devices.family import Monitor, make_device
from aot_tune.bench.devices.nvml import open_gpu
from aot_tune.bench.protocol.measurement_records import Device, GpuTiming, Policy, Role

if TYPE_CHECKING:
    from aot_tune.compile.cuda.visible_gpus import DeviceQuery

__all__ = ["FAMILY", "Cuda", "device_of"]

_VERSION = 9
"""Raised when the code of this package changes what a measurement means."""

_HIGHEST_HZ = 3.2e9
_FLOPS_PER_CLOCK = {"f32": 2 * 256, "f64": 2 * 256, "tf32": 2 * 4096}
_MOST_FLOPS_PER_CLOCK = 2 * 8192
"""FLOP per cycle and multiprocessor, dense: twice what Hopper does, or as much as Blackwell does."""
_L2_RATE, _MEMORY_RATE = 20_000.0, 16_000.0
"""Bytes per ns. No cache or memory on sale reaches this."""


class Cuda:
    """The machine's NVIDIA GPUs, each a device."""

    on_host = False
    compiling_disturbs = False
    is_exclusive = True  # its memory is enough for one build only
    start_seconds = 5.0  # on an H200's machine 4.4 s to import torch, 0.3 s for CUDA
    caution = ""
    peaks = ": more than any GPU on sale has"

    def devices(self, threads: int) -> list[Device]:  # noqa: ARG002
        """One per GPU that CUDA_VISIBLE_DEVICES leaves visible."""
        query = query_driver()
        return [
            device_of(
                name=d.name,
                uuid=d.uuid,
                capability=d.capability,
                sm_count=d.sm_count,
                l2_bytes=d.l2_bytes,
                memory_bytes=d.memory_bytes,
                # Later releases of a branch only mend faults. Its compiler, and what it supports, stay the same.
                driver=(query.driver_text or str(query.driver)).partition(".")[0],
            )
            for d in query.devices
        ]

    def seen(self, device: Device, threads: int) -> Mapping[str, str | int]:  # noqa: ARG002
        """The device that was asked for. The session checks it later: a spare worker does not touch the driver."""
        return device.identity

    def policy(self, base: Policy) -> Policy:
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

    def environment(self, device: Device, threads: int, role: Role, scratch: Path) -> Mapping[str, str]:  # noqa: ARG002
        """One GPU, by name, so that the worker sees it as number 0.

        cuBLAS gets as much workspace as a candidate may have, 32 MiB. The host's cores are for compilers, so frameworks
        take one core.
        """
        return {
            "CUDA_VISIBLE_DEVICES": device.unit,
            "CUDA_MODULE_LOADING": "LAZY",
            "CUDA_CACHE_PATH": str(scratch / "cuda-cache"),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "CUBLASLT_WORKSPACE_SIZE": "32768",
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
        """The memory of the GPU."""
        return int(device.identity["memory_gib"]) << 30 if "memory_gib" in device.identity else None

    def runs(self, module: str) -> bool:
        """Not frameworks that compute on the host alone."""
        return module.partition(".")[0] not in ("numpy", "scipy")

    def monitor(self, device: Device, policy: Policy, log: Callable[[str], None]) -> Monitor:
        """Watches by NVML, if it is here."""
        return GpuMonitor(device, log, open_gpu(device.unit), policy.on_gpu)


FAMILY = Cuda()


def query_driver() -> DeviceQuery:
    """What the driver tells. This stage and the compiling stage both ask only this."""
    from aot_tune.compile.cuda.visible_gpus import visible_devices

    return visible_devices()


@cache
def peak_rates(unit: str) -> tuple[float, float]:
    """A GPU's highest clock in Hz, and 1.25 x its memory's bytes per ns. Generous numbers if NVML does not tell."""
    gpu = open_gpu(unit)
    hertz = (gpu.max_sm_mhz() or 0) * 1e6 if gpu else 0.0
    memory = 1.25 * gpu.memory_rate() if gpu else 0.0
    return hertz or _HIGHEST_HZ, memory or _MEMORY_RATE


def device_of(
    *, name: str, uuid: str, capability: int, sm_count: int, l2_bytes: int, memory_bytes: int, driver: str
) -> Device:
    """The record of a GPU. Equal GPUs with the same driver differ only in the unit."""
    identity: dict[str, str | int] = {
        "name": name,
        "capability": capability,
        "sm_count": sm_count,
        "l2_bytes": l2_bytes,
        "memory_gib": round(memory_bytes / (1 << 30)),
        "driver": driver,
    }
    return make_device("cuda", name, f"{sm_count}sm", identity, uuid)
