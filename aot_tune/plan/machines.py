"""Where a build may measure: on this machine's devices, or on its CPU and a cluster's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from aot_tune.bench.devices.family import devices as devices_of
from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.compile import native_targets
from aot_tune.plan.preflight import check_measuring
from aot_tune.spec import Target

__all__ = ["Machines", "ThisMachine", "device_families", "devices"]


class Machines(Protocol):
    """Where a build measures."""

    def best(self) -> list[Target] | None:
        """The best targets of the devices; None means this machine only."""

    def native(self) -> list[Target]:
        """Targets that run on the devices, by family and level."""

    def devices(self, threads: int, families: Sequence[str]) -> list[Device]:
        """The devices of some families. `threads` is for the CPU."""

    def check_measuring(self, targets: Sequence[Target], toolkit: str, environment: Mapping[str, str]) -> list[str]:
        """See `preflight.check_measuring`."""


class ThisMachine:
    """The machine of this process."""

    def best(self) -> None:
        """See `Machines`."""

    def native(self) -> list[Target]:
        """See `Machines`."""
        return native_targets()

    def devices(self, threads: int, families: Sequence[str]) -> list[Device]:
        """See `Machines`."""
        return devices(threads, families)

    def check_measuring(self, targets: Sequence[Target], toolkit: str, environment: Mapping[str, str]) -> list[str]:
        """See `Machines`."""
        native = {t.name for t in native_targets()}
        return check_measuring([t for t in targets if t.name in native], toolkit, environment)


def devices(threads: int, families: Sequence[str]) -> list[Device]:
    """This machine's devices of the requested families. `threads` is for the CPU."""
    here = device_families(native_targets())
    return [d for family in here if family in families for d in devices_of(family, threads)]


def device_families(targets: Iterable[Target]) -> list[str]:
    """The families of targets, by name."""
    return sorted({t.family for t in targets})
