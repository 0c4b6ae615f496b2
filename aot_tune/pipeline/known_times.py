"""Times from measurements: an immutable table of these, and functions over it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from aot_tune.bench.protocol.measurement_records import Device, Measurement, is_baseline
from aot_tune.bench.times import median_error, without_drift
from aot_tune.select import Costs
from aot_tune.spec import Problem

_LEFT_OUT = 1.03
"""A candidate that a race left out counts as slower than the race's best by at least this factor. It exceeds the regret
at which a variant may replace others. The candidate has only a short screen, in which power limits show less than in a
race."""
_STALLED = 100.0
"""A surveyed time of over so many times the best of its shape is none: a thread waited for a core, again and again."""
_TRIFLE = 1e-6
"""What does not beat a vendor's variant costs this much more. It ranks behind that variant, without a real regret."""


class Row(dict[str, Measurement]):
    """The measurements on a problem, by candidate. It is never changed."""

    @cached_property
    def level(self) -> Mapping[str, Measurement]:
        """The same. In races, the drift that a round had in common is taken out."""
        raced = [m for m in self.values() if m.final]
        return {**self, **{m.candidate: m for m in _without_drift(raced)}}


Measurements = Mapping[str, Row]
"""Measurements by problem id and candidate. A table is never changed."""


def adding(table: Measurements, measurements: Iterable[Measurement]) -> Measurements:
    """A table with more measurements. A race's replaces the screen of the same candidate, unless it left it out."""
    rows = dict(table)
    for m in measurements:
        row = rows.get(m.problem.id, Row())
        if m.status != "skipped" or m.candidate not in row:
            rows[m.problem.id] = Row({**row, m.candidate: m})
    return rows


def fails(measurement: Measurement) -> bool:
    """Whether it says that a candidate does not work."""
    return measurement.status not in ("ok", "skipped")


def tie_band(best: Measurement) -> float:
    """Relative gain below which a difference is noise: 1 %, or twice the standard error of the best's median."""
    return max(0.01, 2 * median_error(best.final or best.screen))


def times_of(table: Measurements, failed: Collection[str]) -> Costs:
    """Medians in ns of verified candidates, by problem and candidate, without those that `failed` somewhere.

    A race says more than the few samples of a screen. So what a race left out counts as slower than the race's
    best: by more than the noise, and by so much that it cannot take the best's place.
    """
    costs: Costs = {}
    for problem, row in table.items():
        timed = {c: m for c, m in row.level.items() if m.status == "ok" and c not in failed and not is_baseline(c)}
        times = {c: m.ns for c, m in timed.items() if m.ns is not None}
        raced = [c for c in times if timed[c].final]
        if raced:
            least = max(_tie_limit(times, timed, raced), min(times[c] for c in raced) * _LEFT_OUT)
            times = {c: t if timed[c].final else max(t, math.nextafter(least, math.inf)) for c, t in times.items()}
        if times:
            costs[problem] = times
    return costs


def costs_of(table: Measurements, times: Costs) -> Costs:
    """The table's times. Those of a race within the noise of the best count as the best time."""
    costs: Costs = {}
    for problem, medians in times.items():
        row, best = table[problem].level, min(medians.values())
        limit = _tie_limit(medians, row, medians)
        costs[problem] = {c: best if row[c].final and t <= limit else t for c, t in medians.items()}
    return costs


def mean_logs(table: Measurements, among: Collection[str]) -> dict[str, float]:
    """How far candidates were from the best of these: mean logarithms over problems; races count as screens."""
    logs: dict[str, list[float]] = {}
    for row in table.values():
        times = {c: m.ns for c, m in row.items() if m.ns is not None and c in among}
        for candidate, time in times.items():
            logs.setdefault(candidate, []).append(math.log(time / min(times.values())))
    return {c: statistics.fmean(values) for c, values in logs.items()}


def choice_costs_of(table: Measurements, times: Costs, vendors: Collection[str]) -> Costs:
    """The costs that a choice uses: a vendor's variant costs least, unless it is beaten by more than the noise.

    What does not beat the vendor's fastest raced variant by more than the noise costs slightly more than it.
    """
    by_problem = costs_of(table, times)
    for problem, costs in by_problem.items():
        row, medians = table[problem].level, times[problem]
        raced = [c for c in costs if c in vendors and row[c].final]
        if not raced:
            continue
        first = min(raced, key=lambda c: (medians[c], c))
        noise = _tie_limit(medians, row, medians) / min(medians.values())
        for c in costs:
            if medians[c] * noise >= medians[first] and c not in vendors:
                costs[c] = max(costs[c], costs[first] * (1 + _TRIFLE))
    return by_problem


def _without_drift(raced: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """The measurements of races in their order. Of each race, the drift that rounds have in common is taken out."""
    together: dict[tuple[str | None, int], list[int]] = {}
    for i, m in enumerate(raced):
        if m.status == "ok" and m.final and all(m.final):
            together.setdefault((m.race, len(m.final)), []).append(i)
    measurements = list(raced)
    for indices in together.values():
        for i, final in zip(indices, without_drift([raced[i].final or () for i in indices]), strict=True):
            measurements[i] = msgspec.structs.replace(raced[i], final=final) if len(indices) > 1 else raced[i]
    return tuple(measurements)


def _tie_limit(times: Mapping[str, float], row: Mapping[str, Measurement], among: Iterable[str]) -> float:
    """Time in ns up to which the best of some candidates is not beaten: the difference is noise."""
    best = min(among, key=lambda c: (times[c], c))
    return times[best] * (1 + tie_band(row[best]))


def processors_of(device: Device) -> int:
    """Multiprocessors of a GPU, or threads of CPU candidates; 0 if a device does not tell."""
    return int(device.identity.get("sm_count", device.identity.get("threads", 0)))


@dataclass(frozen=True)
class SurveyedTimes:
    """A survey: shapes by problem id, times in ns by candidate on each, of a device with so many `processors`."""

    problems: Mapping[str, Problem] = field(default_factory=dict)
    times: Costs = field(default_factory=dict)
    processors: int = 0

    def adding(self, shapes: Iterable[tuple[Problem, Mapping[str, float]]]) -> SurveyedTimes:
        """It with more times on shapes."""
        problems, rows = dict(self.problems), dict(self.times)
        for problem, times in shapes:
            problems[problem.id] = problem
            rows[problem.id] = {**rows.get(problem.id, {}), **times}
        return SurveyedTimes(problems, rows, self.processors)

    def keeping(self, problems: Collection[str], candidates: Collection[str]) -> SurveyedTimes:
        """It with only the times of these candidates on these problems."""
        times = {
            name: {c: t for c, t in row.items() if c in candidates} if name in problems else row
            for name, row in self.times.items()
        }
        return SurveyedTimes(self.problems, times, self.processors)

    def costs(self, failed: Callable[[str], bool]) -> Costs:
        """Times by problem and candidate, without what failed and without times of threads that waited."""
        good = {c for row in self.times.values() for c in row if not failed(c)}
        rows = {name: {c: t for c, t in row.items() if c in good} for name, row in self.times.items()}
        most = {name: _STALLED * min(row.values()) for name, row in rows.items() if row}
        return {name: {c: t for c, t in rows[name].items() if t <= most[name]} for name in most}
