"""Checks that devices of one model agree: each times the same probe before it may measure part of the workload."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from aot_tune.bench.protocol.measurement_records import Measurement
from aot_tune.bench.times import median_error
from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.spec import Problem
from aot_tune.support.errors import AotTuneError

__all__ = ["check_agreement", "deviations"]

_FLOOR = 0.03
"""Relative difference that equal devices may have, because each has its own clock."""
_BYTES = 1 << 26
"""A probe should move about this many bytes: more than caches hold, but little enough to be quick."""
_FLOPS_PER_BYTE = 16.0
"""More FLOPs per byte would make a generic kernel slow."""
_SCREENS = 3

Probe = tuple[LoadedOperator, Problem, Variant]


def check_agreement(
    session: Session,
    pool: DevicePool,
    pairs: Sequence[tuple[LoadedOperator, Evidence]],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Leave out the devices of a pool whose time for a generic variant differs from the others', and say so.

    One device needs no check. If no probe runs on any device, all stay, and a line says that they were not compared. A
    probe that the end of the budget broke off says nothing, and nothing is measured after it. `meanwhile` is called
    when the probe is compiled, before the devices run it, because the compilers then have nothing to do.
    """
    if len(pool.members) < 2:
        return
    probe = _probe(pairs)
    if probe is not None:
        loaded, problem, generic = probe
        (generic,) = session.compile([generic], "probe", [evidence for _, evidence in pairs])
        probe = loaded, problem, generic
    meanwhile()
    found: dict[int, Measurement | str] = {}
    if probe is not None and probe[2].compiled:
        pool.each_member(partial(_time, found, pool.members.index, probe))
    if not session.turn.allows(1e-9):
        return
    times = {i: m for i, m in found.items() if isinstance(m, Measurement)}
    if not times:
        session.progress.line(f"NOTE no probe ran on any of the {len(pool.members)} devices: they count as equal")
        return
    ratios = deviations(times)
    for i, bench in reversed(list(enumerate(pool.benches))):
        told = found.get(i, "it gave no time")
        if i in times and abs(ratios[i][0] - 1.0) <= ratios[i][1]:
            continue
        why = told if isinstance(told, str) else f"it takes {ratios[i][0]:.3f} x the others' time for the same probe"
        session.progress.line(f"LEFT OUT {bench.device.name} {bench.device.unit}: {why}; nothing is measured on it")
        pool.leave_out(i)
    if len(pool.members) > 1:
        kept = ", ".join(f"{ratios[i][0]:.3f}" for i in sorted(times) if abs(ratios[i][0] - 1.0) <= ratios[i][1])
        session.progress.line(f"{len(pool.members)} devices agree on a probe: {kept} x its median time")


def deviations(times: Mapping[int, Measurement]) -> dict[int, tuple[float, float]]:
    """For each device: its time divided by the median device's time, and the relative difference that is noise.

    Of two devices, the faster one is the median. Noise is 3 %, or three standard errors of the two medians.
    """
    middle = statistics.median_low(_ns(m) for m in times.values())
    base = next(m for m in times.values() if _ns(m) == middle)
    return {
        i: (
            _ns(m) / middle,
            max(_FLOOR, 3.0 * math.hypot(*map(median_error, (m.screen, base.screen))) * _ns(m) / middle),
        )
        for i, m in times.items()
    }


def _ns(measurement: Measurement) -> float:
    return statistics.median(measurement.screen)


def _probe(pairs: Sequence[tuple[LoadedOperator, Evidence]]) -> Probe | None:
    """The generic variant and problem that come closest to a short read of memory; None if there are none."""
    found: list[tuple[bool, float, str, Probe]] = []
    for loaded, evidence in pairs:
        operator = loaded.operator
        generics = [e for e in evidence.entries.values() if e.candidate.generic]
        for problem in evidence.workload:
            for entry in generics:
                if evidence.meant_for(entry, problem):
                    size = max(operator.compulsory_bytes(problem), 1)
                    dense = operator.flops.evaluate(operator.facts(problem)) > _FLOPS_PER_BYTE * size
                    far = abs(math.log(size / _BYTES))
                    found.append((dense, far, f"{operator.name} {problem.id}", (loaded, problem, entry)))
    return min(found, key=lambda f: f[:3])[3] if found else None


def _time(
    found: dict[int, Measurement | str], position: Callable[[Measurer], int], probe: Probe, measurer: Measurer
) -> None:
    """Screen the probe on a member's device a few times. `found` gets the result, or what went wrong."""
    i = position(measurer)
    try:
        screens = [measurer.probe(*probe) for _ in range(_SCREENS)]
    except AotTuneError as error:
        found[i] = f"the probe failed on it: {error.what}"
        return
    samples = tuple(s for m in screens for s in m.screen if m.status == "ok")
    bad = next((m for m in screens if m.status != "ok"), None)
    if bad is not None or not samples:
        found[i] = f"the probe failed on it: {bad.status}: {bad.reason}" if bad is not None else "it gave no time"
    else:
        found[i] = msgspec.structs.replace(screens[0], screen=samples)
