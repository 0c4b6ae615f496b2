"""What a report says of races: all entrants, with their times and the spread of these."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from aot_tune.bench.protocol.measurement_records import BASELINE, Measurement, is_baseline
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.naming import variant_name
from aot_tune.report import RaceRunner

__all__ = ["runners_on"]

_MOST = 6
"""How many candidates are shown, beside the baselines, for a problem without a race."""


def runners_on(evidence: Evidence, problem: str, beside: Iterable[str] = ()) -> tuple[RaceRunner, ...]:
    """What raced on a problem, and the candidates in `beside`, the fastest first; without a race, the best screens.

    The times of a candidate that failed elsewhere do not count.
    """
    row = evidence.row(problem)
    timed = {c: m for c, m in row.items() if m.ns is not None and (is_baseline(c) or _is_in(evidence, c))}
    raced = {c for c, m in timed.items() if m.final}
    if all(map(is_baseline, raced)):
        ours = sorted((c for c in timed if not is_baseline(c)), key=lambda c: (timed[c].ns or 0.0, c))
        raced.update(ours[:_MOST])
    shown = {c for c in timed if c in raced or c in set(beside) or is_baseline(c)}
    found = [_runner(evidence, c, timed[c]) for c in sorted(shown)]
    return tuple(sorted(found, key=lambda r: (r.ns, r.name)))


def _is_in(evidence: Evidence, candidate: str) -> bool:
    return candidate in evidence.entries and not evidence.failed(candidate)


def _runner(evidence: Evidence, candidate: str, measured: Measurement) -> RaceRunner:
    samples = measured.final or measured.screen
    low, high = _quartiles(samples)
    entry = evidence.entries.get(candidate)
    vendors = entry is not None and evidence.is_vendors(entry)
    return RaceRunner(
        name=candidate.removeprefix(BASELINE) if entry is None else variant_name(entry),
        whose="baseline" if entry is None else "vendor" if vendors else "kernel",
        ns=round(statistics.median(samples), 2),
        low=low,
        high=high,
        samples=len(samples),
        raced=bool(measured.final),
    )


def _quartiles(samples: Sequence[float]) -> tuple[float, float]:
    if len(samples) < 4:
        return round(min(samples), 2), round(max(samples), 2)
    low, _, high = statistics.quantiles(samples, n=4)
    return round(low, 2), round(high, 2)
