"""What must be so before a build measures on a GPU; each fault has its own message, before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aot_tune.compile import native_targets
from aot_tune.compile.cuda_devices import check_ready, visible_devices
from aot_tune.spec import Target

__all__ = ["check_measuring"]


def check_measuring(targets: Sequence[Target], toolkit: str, environment: Mapping[str, str]) -> list[str]:
    """Check GPU, driver and torch for the CUDA targets that have a device here; returns warnings.

    Args:
        toolkit: version of nvcc.

    Raises:
        ToolchainError: when candidates could not be measured, with the remedy.
    """
    native = {t.name for t in native_targets()}
    if not any(t.family == "cuda" and t.name in native for t in targets):
        return []
    warning = check_ready(toolkit, visible_devices(environment))
    return [warning] if warning else []
