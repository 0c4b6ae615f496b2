"""Device families: each is a module of this package by the family's name, with one object called FAMILY."""

from __future__ import annotations

import importlib
import pkgutil
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from aot_tune.bench.protocol.measurement_records import Device, DeviceState, Policy, Role, digest_of
from aot_tune.support.errors import WorkerError


class Monitor(Protocol):
    """Watches a device from the bench's own process."""

    def begin(self) -> None:
        """Wait a while for an idle device. Raises WorkerError when the device cannot be measured on as it is set up."""

    def read(self, workers: Sequence[int]) -> DeviceState | None:
        """What the device is like now, or None when nothing tells. `workers` are the bench's own processes on it."""

    def spoiled(self, state: DeviceState | None) -> str:
        """Why the last samples should be taken again. Empty when they are good, or when no more can be done."""

    def capped(self, state: DeviceState) -> bool:
        """Whether the power cap holds the device's clock down. That is normal operation."""

    def recover(self, why: str) -> None:
        """Wait until spoiled samples can be taken again. `why` says what spoiled them."""

    def faults(self) -> str:
        """What the driver has reported of the device since the last call, in words."""


class Unwatched:
    """A monitor that knows nothing. See `Monitor`."""

    def begin(self) -> None:
        """Nothing to wait for."""

    def read(self, workers: Sequence[int]) -> DeviceState | None:  # noqa: ARG002
        return None

    def spoiled(self, state: DeviceState | None) -> str:  # noqa: ARG002
        return ""

    def capped(self, state: DeviceState) -> bool:  # noqa: ARG002
        return False

    def recover(self, why: str) -> None:
        """Returns at once."""

    def faults(self) -> str:
        return ""


class Family(ABC):
    """The bench's side of a family.

    `on_host`: candidates compute on the host's cores. Then other workers must be quiet while candidates are timed, and
    start only when they are needed. Nothing is compiled meanwhile, and builds share the device. `start_seconds`: how
    long a worker takes to start. `caution`: what every build for the family must say, empty for most. `peaks`: what
    `floor_ns` assumes.
    """

    on_host = False
    start_seconds = 0.0
    caution = ""
    peaks = ""

    @abstractmethod
    def devices(self, threads: int) -> list[Device]:
        """The devices of this machine."""

    @abstractmethod
    def environment(self, device: Device, threads: int, role: Role, scratch: Path, policy: Policy) -> Mapping[str, str]:
        """Variables that a worker needs beside the allow-list."""

    def seen(self, device: Device, threads: int) -> Mapping[str, str | int]:  # noqa: ARG002
        """The identity of the device that a worker of `device` is on. The worker calls this, so it must be cheap."""
        return device.identity

    def unit_here(self) -> str:
        """What the driver calls the device that this process, a worker, is on, as in `Device.unit`; or empty."""
        return ""

    def policy(self, base: Policy = Policy()) -> Policy:  # noqa: B008 - it is frozen
        """The policy for this family's devices."""
        return base

    def writable(self) -> tuple[Path, ...]:
        """Files and folders that a worker must be able to write beside its scratch folder."""
        return ()

    def floor_ns(self, device: Device, flops: int, nbytes: int, math: str = "f32") -> float:  # noqa: ARG002
        """A time that no honest call beats, by generous peaks, or 0. `math` is most operations' dtype, or `tf32`."""
        return 0.0

    def memory_of(self, device: Device) -> int | None:  # noqa: ARG002
        """Bytes of memory that a device's candidates compute in, or None when nothing tells."""
        return None

    def cache_of(self, device: Device) -> int:  # noqa: ARG002
        """Bytes of a device's last cache, or 0 when nothing tells."""
        return 0

    def runs(self, module: str) -> bool:
        """Whether a framework's module computes on this family's devices. Some compute on the host alone."""
        return self.on_host or module.partition(".")[0] not in ("numpy", "scipy")

    def monitor(self, device: Device, policy: Policy, log: Callable[[str], None]) -> Monitor:  # noqa: ARG002
        """What watches the device while it is measured on."""
        return Unwatched()


def family(name: str) -> Family:
    """The family of that name. Raises WorkerError when there is no such module."""
    if re.fullmatch(r"[a-z][a-z0-9_]{0,15}", name):
        try:
            module = importlib.import_module(f"aot_tune.bench.devices.{name}")
            return cast(Family, module.FAMILY)
        except (ModuleNotFoundError, AttributeError):
            pass
    names = [m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)])]
    known = [n for n in names if hasattr(importlib.import_module(f"aot_tune.bench.devices.{n}"), "FAMILY")]
    raise WorkerError(f"there is no device family {name!r}", fix=f"use {', '.join(known)}")


def make_device(family: str, name: str, detail: str, identity: dict[str, str | int], unit: str = "") -> Device:
    """A device whose folders are named after its family, its name, a detail, and the digest of its identity."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    slug = f"{family}-{words}-{detail}-{digest_of([family, identity])[:8]}"
    return Device(family=family, name=name, slug=slug, identity=identity, unit=unit)
