"""Where a run was made, and with which versions."""

from __future__ import annotations

import datetime
import importlib.util
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["NOISE", "Usage", "describe"]

NOISE = 0.03
"""Share of the processor time that may go elsewhere. Beyond it, the figures are in doubt."""


def describe(threads: int) -> dict[str, Any]:
    """The machine, and the versions of all that takes part; None for what the system does not tell."""
    import numpy

    from aot_tune import ops
    from aot_tune.bench.devices.cpu import cpu_identity, usable_cores

    identity = cpu_identity()
    manifest = ops.manifest()
    blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        "cpu": identity["model_name"],
        "family, model, stepping": f"{identity['family']}, {identity['model']}, {identity['stepping']}",
        "caches": identity["caches"],
        "cores": usable_cores(),
        "threads": threads,
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "mhz": _megahertz(),
        "load": os.getloadavg()[0],
        "numpy": f"{numpy.__version__} ({blas['name']} {blas['version']})",
        "torch": version("torch") if importlib.util.find_spec("torch") is not None else None,
        "aot_tune": version("aot_tune"),
        "mode": manifest["mode"],
        "targets": sorted({v["target"] for o in manifest["operators"] for v in o["variants"]}),
    }


class Usage:
    """Who has used the processors since this object was made."""

    def __init__(self) -> None:
        self._ticks, self._ours = _ticks(), _own_seconds()

    def shares(self) -> dict[str, float]:
        """Shares of the machine's processor time: idle, stolen by other guests of the host, used by other processes.

        Children count as ours when they have ended.
        """
        total, idle, stolen = (now - then for now, then in zip(_ticks(), self._ticks, strict=True))
        ours = (_own_seconds() - self._ours) * os.sysconf("SC_CLK_TCK")
        others = max(0.0, total - idle - stolen - ours)
        return {"idle": idle / max(total, 1), "stolen": stolen / max(total, 1), "others": others / max(total, 1)}


def _ticks() -> tuple[int, int, int]:
    """Ticks of the whole machine since it started: all, idle, stolen."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4], ticks[7]


def _own_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _megahertz() -> str | None:
    """The clocks that the system shows now. A guest may show a nominal clock."""
    lines = (_read("/proc/cpuinfo") or "").splitlines()
    found = sorted({line.partition(":")[2].strip() for line in lines if line.startswith("cpu MHz")})
    return " to ".join([found[0], found[-1]] if len(found) > 1 else found) or None
