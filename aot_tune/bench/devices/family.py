"""Device families: each is a module of this package by the family's name, with one object called FAMILY."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from aot_tune.bench.protocol.measurement_records import Device, DeviceState, Policy, Role, digest_of
from aot_tune.support.errors import WorkerError

__all__ = [
    "Family",
    "Monitor",
    "caution_of",
    "devices",
    "family",
    "make_device",
    "policy_for",
    "runs_on",
]


class Monitor(Protocol):
    """Watches a device from the bench's own process."""

    def begin(self) -> None:
        """Wait a while for an idle device.

        Raises:
            WorkerError: when the device cannot be measured on as it is set up.
        """

    def read(self, workers: Sequence[int]) -> DeviceState | None:
        """What the device is like now, or None when nothing tells. `workers` are the bench's own processes on it."""

    def spoiled(self, state: DeviceState | None) -> str:
        """Why the last samples should be taken again. Empty when they are good, or when no more can be done."""

    def capped(self, state: DeviceState) -> bool:
        """Whether the power cap holds the device's clock down. That is normal operation."""

    def recover(self, why: str) -> None:
        """Wait until spoiled samples can be taken again. `why` says what spoiled them."""


class Family(Protocol):
    """The bench's side of a family.

    `on_host`: candidates compute on the host's cores. Then other workers must be quiet while candidates are timed, and
    start only when they are needed. `compiling_disturbs`: compilers disturb measurements, so nothing is compiled
    meanwhile. `is_exclusive`: a device that verifies for one build is not free for others. `start_seconds`: how long a
    worker takes to start. `caution`: what every build for the family must say, empty for most. `peaks`: what `floor_ns`
    assumes.
    """

    on_host: bool
    compiling_disturbs: bool
    is_exclusive: bool
    start_seconds: float
    caution: str
    peaks: str

    def devices(self, threads: int) -> list[Device]:
        """The devices of this machine."""

    def seen(self, device: Device, threads: int) -> Mapping[str, str | int]:
        """The identity of the device that a worker of `device` is on. The worker calls this, so it must be cheap."""

    def policy(self, base: Policy) -> Policy:
        """The policy for this family's devices."""

    def environment(self, device: Device, threads: int, role: Role, scratch: Path) -> Mapping[str, str]:
        """Variables that a worker needs beside the allow-list."""

    def writable(self) -> tuple[Path, ...]:
        """Files and folders that a worker must be able to write beside its scratch folder."""

    def floor_ns(self, device: Device, flops: int, nbytes: int, math: str = "f32") -> float:
        """A time that no honest call can beat. It follows from generous estimates of the device's peaks.

        `math` is the dtype that most of the operations are in, or `tf32`.
        """

    def memory_of(self, device: Device) -> int | None:
        """Bytes of memory that a device's candidates compute in, or None when nothing tells."""

    def runs(self, module: str) -> bool:
        """Whether a framework's module computes on this family's devices."""

    def monitor(self, device: Device, policy: Policy, log: Callable[[str], None]) -> Monitor:
        """What watches the device while it is measured on."""


def family(name: str) -> Family:
    """The family of that name.

    Raises:
        WorkerError: when there is no such module.
    """
    if re.fullmatch(r"[a-z][a-z0-9_]{0,15}", name):
        try:
            module = importlib.import_module(f"aot_tune.bench.devices.{name}")
            return cast(Family, module.FAMILY)
        except (ModuleNotFoundError, AttributeError):
            pass
    raise WorkerError(f"there is no device family {name!r}", fix="use 'cpu', 'cuda' or 'hip'")


def make_device(family: str, name: str, detail: str, identity: dict[str, str | int], unit: str = "") -> Device:
    """A device whose folders are named after its family, its name, a detail, and the digest of its identity."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    slug = f"{family}-{words}-{detail}-{digest_of([family, identity])[:8]}"
    return Device(family=family, name=name, slug=slug, identity=identity, unit=unit)


def devices(name: str, threads: int) -> list[Device]:
    """All devices of this machine that belong to a family; empty when there is none.

    Raises:
        WorkerError: when there is no such family.
    """
    return family(name).devices(threads)


def policy_for(name: str, base: Policy) -> Policy:
    """The policy to measure with on the devices of a family. On a CPU it is `base` itself."""
    return family(name).policy(base)


def runs_on(name: str, module: str) -> bool:
    """Whether a baseline that requires a module, such as `numpy`, computes on the devices of a family."""
    return family(name).runs(module)


def caution_of(name: str) -> str:
    """What a build for a family of devices must say. It is empty for most families."""
    return family(name).caution
