"""The measurement policy in words."""

from __future__ import annotations

from collections.abc import Iterator

from aot_tune.bench.devices.nvml import REASONS
from aot_tune.bench.protocol.measurement_records import GpuTiming, Policy

__all__ = ["policy_lines"]


def policy_lines(family: str, policy: Policy) -> tuple[str, ...]:
    """How devices of a family are measured, in a few lines. The first line names the policy."""
    return (
        f"{family} version {policy.version}, digest {policy.digest[:12]}",
        *(_on_gpu(policy, policy.gpu) if policy.gpu else _on_host(policy)),
    )


def _on_host(policy: Policy) -> Iterator[str]:
    yield (
        f"cold inputs rotate through copies of {policy.cold_factor:g} x the last cache (at most {policy.copies}), the "
        "rest is warm"
    )
    yield f"samples of {_time(policy.sample_ns)}, less an empty call, taken again when another process took the core"
    yield from _rounds(policy, "median")


def _on_gpu(policy: Policy, gpu: GpuTiming) -> Iterator[str]:
    yield (
        f"cold inputs rotate through copies of {policy.cold_factor:g} x the L2 (at most {policy.copies}), the rest is "
        "warm; all rotate where a call's tensors exceed the L2; noted where a probe reads the copies "
        f"{gpu.read_limit:g} x as fast as memory"
    )
    how = "calls on a stream"
    if gpu.launch == "graph":
        how = f"graphs of at least {gpu.short_calls} calls below {_time(gpu.short_ns)}, a stream for what has no graph"
    yield (
        f"{how}; samples of {_time(policy.sample_ns)} by the device's events, after launches on {gpu.streams} other "
        "streams; an empty kernel's time is recorded, not taken off"
    )
    yield from _rounds(policy, gpu.statistic)
    heat = f"{_time(1e9 * gpu.heat_seconds)} to {_time(1e9 * gpu.heat_most)}"
    clock = f"clock: {heat} of heating after {_time(1e9 * gpu.idle_seconds)} idle"
    if gpu.loaded_ns:
        clock += f", {_time(gpu.loaded_ns)} of load before each sample of a race of calls that are not short"
    if gpu.probe_cycles:
        changed = f"{_percent(gpu.clock_change)} off their median are taken again (at most {_percent(gpu.repeats)})"
        clock += (
            f", until it is steady; a spin of {gpu.probe_cycles} cycles probes it in each round, and rounds {changed} "
            "unless power-capped"
        )
    yield clock
    low = f"below {_percent(gpu.least_clock)} of the highest clock without {_reasons(gpu.kept)}"
    yield (
        f"NVML, from another process: samples under {_reasons(gpu.dropped)}, or {low}, are taken again after "
        f"{_time(1e9 * gpu.recovery_seconds)} (at most {gpu.recoveries} times); other processes are noted"
    )


def _rounds(policy: Policy, statistic: str) -> Iterator[str]:
    yield (
        f"screen: 2 samples, unless both are over {policy.screen_stop:g} x the best up to {policy.screen_samples} in "
        f"{_time(policy.screen_ns)}; race: {policy.race_least} to {policy.race_rounds} interleaved rounds in "
        f"{_time(policy.race_ns)}, their {statistic}"
    )


def _reasons(bits: int) -> str:
    return " or ".join(name for bit, name in REASONS.items() if bits & bit) or "no reason"


def _time(ns: float) -> str:
    unit, size = next(((u, s) for u, s in (("s", 1e9), ("ms", 1e6), ("us", 1e3)) if ns >= s), ("ns", 1.0))
    return f"{ns / size:g} {unit}"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
