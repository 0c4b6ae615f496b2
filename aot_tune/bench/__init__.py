"""Measures candidates: in worker processes, verified, on one device.

    device = identify("cpu", threads=2)
    with Bench(device, Policy(), scratch=folder, threads=2, log=print) as bench:
        prepared = bench.prepare(operator_folder, operator, problem)
        measured = bench.screen(prepared, path, symbol, candidate, code, requires, best_ns)
        finals = bench.race(prepared, [Entry(candidate=..., shared_object=..., symbol=..., code=...)])

Whatever a candidate does is the `status` and `reason` of its Measurement; exceptions mean that the machine or the
operator is at fault. Measurements with a common `race` have `final` times that pair up, round by round: compare them
with `paired_gain(old.final, new.final)`. Baselines appear in races as `baseline:<name>`.
"""

from __future__ import annotations

from aot_tune.bench.bench import Bench
from aot_tune.bench.checks import derived_checks, oddest_checks
from aot_tune.bench.family import family
from aot_tune.bench.linked import verify_linked
from aot_tune.bench.records import (
    STATUSES,
    CandidateLike,
    Check,
    Deadlines,
    Device,
    DeviceState,
    GpuTiming,
    Measurement,
    Policy,
    Prepared,
    Status,
    digest_of,
)
from aot_tune.bench.runner import Entry
from aot_tune.bench.sandbox import features
from aot_tune.bench.timing import paired_gain, spread, without_drift

__all__ = [
    "STATUSES",
    "Bench",
    "CandidateLike",
    "Check",
    "Deadlines",
    "Device",
    "DeviceState",
    "Entry",
    "GpuTiming",
    "Measurement",
    "Policy",
    "Prepared",
    "Status",
    "caution_of",
    "derived_checks",
    "devices",
    "digest_of",
    "features",
    "identify",
    "oddest_checks",
    "paired_gain",
    "policy_for",
    "runs_on",
    "spread",
    "verify_linked",
    "without_drift",
]


def identify(name: str, threads: int) -> Device:
    """The first device of this machine that belongs to a family, such as `cpu`.

    Raises:
        WorkerError: when there is no such family, or no such device.
    """
    return family(name).identify(threads)


def devices(name: str, threads: int) -> list[Device]:
    """All devices of this machine that belong to a family; empty when there is none.

    Raises:
        WorkerError: when there is no such family.
    """
    return family(name).devices(threads)


def policy_for(name: str, base: Policy) -> Policy:
    """The policy to measure with on the devices of a family; that of a CPU is `base` itself."""
    return family(name).policy(base)


def runs_on(name: str, module: str) -> bool:
    """Whether a baseline that requires a module, such as `numpy`, computes on the devices of a family."""
    return family(name).runs(module)


def caution_of(name: str) -> str:
    """What a build for a family of devices must say; empty for most."""
    return family(name).caution
