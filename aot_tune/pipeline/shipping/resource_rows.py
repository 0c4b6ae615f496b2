"""What a report says of single candidates: the resources of their code, and how near they are to the roofline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from aot_tune.bench.devices.roofline import Roofline, roofline_of
from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.naming import variant_name
from aot_tune.report.report_records import CandidateRow

__all__ = ["BestShare", "Rooflines", "candidate_rows", "resources_of"]

_MOST = 40
"""How many candidates of an operator a report lists."""
_DIGITS, _PERCENTS = 4, 2
"""Digits of a share on a problem, and of the best share. A record's rounded times give the same best share."""


class BestShare(NamedTuple):
    """A candidate's best share of the roofline, rounded to whole percents, its problem, and the peaks."""

    share: float
    problem: str
    of: str


class Rooflines:
    """The rooflines of an operator's problems on the devices that measured them. `known` has devices by digest."""

    def __init__(self, evidence: Evidence, known: Mapping[str, Device]) -> None:
        self._evidence, self._known = evidence, known
        self._times = evidence.times()
        self._problems = {p.id: p for p in evidence.workload}
        self._found: dict[tuple[str, str], Roofline | None] = {}

    def on(self, problem: str, candidate: str) -> tuple[float, Roofline] | None:
        """A candidate's share of the roofline on a problem; None if one of them is unknown."""
        ns = self._times.get(problem, {}).get(candidate)
        measured = self._evidence.on(problem).get(candidate)
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
        """The problem on which a candidate comes nearest to the roofline."""
        shares = [(found, p) for p in self._problems if (found := self.on(p, candidate)) is not None]
        if not shares:
            return None
        (share, line), problem = max(shares, key=lambda s: (round(s[0][0], _PERCENTS), s[1]))
        return BestShare(round(share, _PERCENTS), problem, line.of)

    @property
    def of(self) -> str:
        """The peaks; empty if there is no roofline. The peaks of several devices are listed together."""
        for problem, row in self._times.items():
            for candidate in row:
                self.on(problem, candidate)
        return "; ".join(sorted({line.of for line in self._found.values() if line is not None}))

    def timed(self, candidate: str) -> int:
        """On how many problems a candidate was timed."""
        return sum(candidate in row for row in self._times.values())


def resources_of(entry: Variant) -> dict[str, int]:
    """The resources of a candidate's code; empty if it was not compiled."""
    return entry.object.code_resources if entry.object is not None else {}


def candidate_rows(evidence: Evidence, rooflines: Rooflines) -> tuple[CandidateRow, ...]:
    """The timed candidates, those nearest to the roofline first."""
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
