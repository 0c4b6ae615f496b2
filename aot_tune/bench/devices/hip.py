"""The HIP family: AMD's devices, for which libraries are built; none is looked for, and nothing is measured on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from aot_tune.bench.devices.family import Monitor
from aot_tune.bench.protocol.measurement_records import Device, Policy, Role
from aot_tune.support.errors import WorkerError

__all__ = ["FAMILY", "Hip"]


class Hip:
    """AMD's GPUs; there are none as far as the bench knows, so that nothing here is ever asked of a device."""

    on_host = False
    compiling_disturbs = False
    is_exclusive = True
    start_seconds = 0.0  # there is none
    caution = "hip targets: nothing is measured on AMD's devices, and their code is untested on real cards"
    peaks = ""

    def devices(self, threads: int) -> list[Device]:  # noqa: ARG002
        """None: they cannot be measured on yet."""
        return []

    def seen(self, device: Device, threads: int) -> Mapping[str, str | int]:  # noqa: ARG002
        """There is none."""
        _refuse()

    def policy(self, base: Policy) -> Policy:
        """As it is; nothing is measured by it."""
        return base

    def environment(self, device: Device, threads: int, role: Role, scratch: Path) -> Mapping[str, str]:  # noqa: ARG002
        """There is no worker."""
        _refuse()

    def writable(self) -> tuple[Path, ...]:
        """Nothing beside what every worker has."""
        return ()

    def floor_ns(self, device: Device, flops: int, nbytes: int, math: str = "f32") -> float:  # noqa: ARG002
        """Nothing is known of these devices' peaks, so that no recorded time is refused for them."""
        return 0.0

    def memory_of(self, device: Device) -> int | None:  # noqa: ARG002
        """Nothing is known of these devices."""
        return None

    def runs(self, module: str) -> bool:
        """What computes on the host alone does not."""
        return module.partition(".")[0] not in ("numpy", "scipy")

    def monitor(self, device: Device, policy: Policy, log: Callable[[str], None]) -> Monitor:  # noqa: ARG002
        """There is nothing to watch."""
        _refuse()


def _refuse() -> NoReturn:
    raise WorkerError(
        "there is no AMD GPU to measure on: the bench does not support them yet",
        fix="build for them with AOT_TUNE_MODE=auto or generic; records decide, else the generic variants serve",
    )


FAMILY = Hip()
