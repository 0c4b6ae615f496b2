"""What a report says of candidates one by one: what their code takes, and how near to the roofline they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from aot_tune.bench.devices.roofline import Roofline, roofline_of
from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.naming import variant_name
from aot_tune.report import CandidateRow, code_resources

__all__ = ["BestShare", "Rooflines", "candidate_rows", "resources_of"]

_MOST = 40
"""Candidates of an operator that a report lists."""
_DIGITS, _PERCENTS = 4, 2
"""Of a share on a problem, and of the best one: a record's times, which are rounded, say the same of the latter."""


class BestShare(NamedTuple):
    """The best share of the roofline that a candidate comes to, in whole percents, the problem, and the peaks."""

    share: float
    problem: str
    of: str


class Rooflines:
    """The rooflines of an operator's problems on the devices that they were measured on, `known` ones by digest."""

    def __init__(self, evidence: Evidence, known: Mapping[str, Device]) -> None:
        self._evidence, self._known = evidence, known
        self._times = evidence.times()
        self._problems = {p.id: p for p in evidence.workload}
        self._found: dict[tuple[str, str], Roofline | None] = {}

    def on(self, problem: str, candidate: str) -> tuple[float, Roofline] | None:
        """The share of the roofline that a candidate comes to on a problem; None where one is not known."""
        ns = self._times.get(problem, {}).get(candidate)
        measured = self._evidence.measurements.get(problem, {}).get(candidate)
        if not ns or measured is None or problem not in self._problems:
            return None
        key = problem, measured.device
        if key not in self._found:
            device = self._known.get(measured.device)
            one = self._problems[problem]
            self._found[key] = roofline_of(device, self._evidence.operator, one) if device is not None else None
        line = self._found[key]
        return (round(line.ns / ns, _DIGITS), line) if line is not None else None

    def best_of(self, candidate: str) -> BestShare | None:
        """Where a candidate comes nearest to the roofline."""
        shares = [(found, p) for p in self._problems if (found := self.on(p, candidate)) is not None]
        if not shares:
            return None
        (share, line), problem = max(shares, key=lambda s: (round(s[0][0], _PERCENTS), s[1]))
        return BestShare(round(share, _PERCENTS), problem, line.of)

    @property
    def of(self) -> str:
        """The peaks; empty where there is no roofline. Those of several devices stand side by side."""
        for problem, row in self._times.items():
            for candidate in row:
                self.on(problem, candidate)
        return "; ".join(sorted({line.of for line in self._found.values() if line is not None}))

    def timed(self, candidate: str) -> int:
        """On how many problems a candidate was timed."""
        return sum(candidate in row for row in self._times.values())


def resources_of(entry: Entry) -> dict[str, int]:
    """What the code of a candidate takes; empty where it was not compiled."""
    return code_resources(entry.object.resources) if entry.object is not None and entry.compiled else {}


def candidate_rows(evidence: Evidence, rooflines: Rooflines) -> tuple[CandidateRow, ...]:
    """The candidates that were timed, the nearest to the roofline first."""
    rows = []
    for name, entry in evidence.entries.items():
        count, best = rooflines.timed(name), rooflines.best_of(name)
        if count:
            rows.append(
                CandidateRow(
                    name=variant_name(entry),
                    label=entry.candidate.label,
                    problems=count,
                    resources=resources_of(entry),
                    roofline=None if best is None else best.share,
                    where="" if best is None else best.problem,
                )
            )
    return tuple(sorted(rows, key=lambda r: (-(r.roofline or 0.0), r.name))[:_MOST])
