"""The HIP family: AMD's GPUs. Libraries are built for them, but no device is looked for and nothing is measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aot_tune.bench.devices.family import Family
from aot_tune.bench.protocol.measurement_records import Device, Policy, Role
from aot_tune.support.errors import WorkerError


class Hip(Family):
    """AMD's GPUs. The bench finds none, so no method that needs a device is ever called."""

    caution = "hip targets: nothing is measured on AMD's devices, and their code is untested on real cards"

    def devices(self, threads: int) -> list[Device]:  # noqa: ARG002
        """None. They cannot be measured on yet."""
        return []

    def environment(
        self,
        device: Device,  # noqa: ARG002
        threads: int,  # noqa: ARG002
        role: Role,  # noqa: ARG002
        scratch: Path,  # noqa: ARG002
        policy: Policy,  # noqa: ARG002
    ) -> Mapping[str, str]:
        raise WorkerError(
            "there is no AMD GPU to measure on: the bench does not support them yet",
            fix="build for them with AOT_TUNE_MODE=auto or generic; records decide, else the generic variants serve",
        )


FAMILY = Hip()
