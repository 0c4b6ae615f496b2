"""The HIP family: AMD's GPUs. Libraries are built for them, but no device is looked for and nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from aot_tune.bench.devices.family import Monitor
from aot_tune.bench.protocol.measurement_records import Device, Policy, Role
from aot_tune.support.errors import WorkerError

__all__ = ["FAMILY", "Hip"]


class Hip:
    """AMD's GPUs. The bench finds none, so no method that needs a device is ever called."""

    on_host = False
    compiling_disturbs = False
    is_exclusive = True
    start_seconds = 0.0  # there is none
    caution = "hip targets: nothing is measured on AMD's devices, and their code is untested on real cards"
    peaks = ""

    def devices(self, threads: int) -> list[Device]:  # noqa: ARG002
        """None. They cannot be measured on yet."""
        return []

    def seen(self, device: Device, threads: int) -> Mapping[str, str | int]:  # noqa: ARG002
        """There is none."""
        _refuse()

    def policy(self, base: Policy) -> Policy:
        """The policy is used as it is. Nothing is measured by it."""
        return base

    def environment(self, device: Device, threads: int, role: Role, scratch: Path) -> Mapping[str, str]:  # noqa: ARG002
        """There is no worker."""
        _refuse()

    def writable(self) -> tuple[Path, ...]:
        """Nothing more than every worker may write."""
        return ()

    def floor_ns(self, device: Device, flops: int, nbytes: int, math: str = "f32") -> float:  # noqa: ARG002
        """The peaks of these devices are not known, so no recorded time is refused."""
        return 0.0

    def memory_of(self, device: Device) -> int | None:  # noqa: ARG002
        """It is not known."""
        return None

    def runs(self, module: str) -> bool:
        """Not frameworks that compute on the host alone."""
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
