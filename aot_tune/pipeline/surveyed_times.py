"""What a survey says of an operator on a target: shapes, and candidates' times on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.select import Costs
from aot_tune.spec import Problem

__all__ = ["SurveyedTimes", "processors_of"]


def processors_of(device: Device) -> int:
    """Multiprocessors of a GPU, or threads of CPU candidates; 0 if a device does not tell."""
    return int(device.identity.get("sm_count", device.identity.get("threads", 0)))


@dataclass
class SurveyedTimes:
    """Shapes by problem id, and times in ns by candidate on each. They are from a device with so many `processors`."""

    problems: dict[str, Problem] = field(default_factory=dict)
    times: dict[str, dict[str, float]] = field(default_factory=dict)
    processors: int = 0

    def on(self, device: Device) -> None:
        """Set the device that the times are from."""
        self.processors = processors_of(device) or 1

    def add(self, problem: Problem, times: Mapping[str, float], known: Collection[str]) -> None:
        """Add the times of known candidates on a shape."""
        self.problems[problem.id] = problem
        self.times.setdefault(problem.id, {}).update({c: t for c, t in times.items() if c in known})

    def keep(self, problems: Collection[str], candidates: Collection[str]) -> None:
        """On these problems, keep only the times of these candidates."""
        for name in problems:
            if name in self.times:
                self.times[name] = {c: t for c, t in self.times[name].items() if c in candidates}

    def costs(self, failed: Callable[[str], bool]) -> Costs:
        """Times by problem and candidate. Candidates that ever failed are left out."""
        good = {c for row in self.times.values() for c in row if not failed(c)}
        rows = {name: {c: t for c, t in row.items() if c in good} for name, row in self.times.items()}
        return {name: row for name, row in rows.items() if row}
