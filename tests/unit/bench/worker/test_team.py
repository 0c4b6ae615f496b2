"""How many threads a candidate's calls are timed with."""

from typing import Any

import pytest

from aot_tune.bench.protocol.measurement_records import Policy
from aot_tune.bench.worker import cpu_engine


class Scripted:
    """A timer whose calls take so many ns."""

    def __init__(self, *ns: float) -> None:
        self.ns = list(ns)

    def sample(self, most_ns: float) -> float:
        assert most_ns >= 50_000
        return self.ns.pop(0) if len(self.ns) > 1 else self.ns[0]


@pytest.mark.parametrize(
    ("team", "one", "alone"),
    [
        ([9e5, 10_000], [14_000], True),
        ([9e5, 10_000], [16_000], False),  # a first call takes longer
        ([10_000, 10_000, 8_000, 4e6], [4e6, 11_000, 4e6], True),  # other programs
        ([48_000], [49_000], True),
        ([48_000], [51_000], False),
        ([5e6], [1_000], False),  # a neighbour, or a long call: all threads, as if nobody had looked
    ],
)
def test_one_thread_unless_more_pay(
    monkeypatch: pytest.MonkeyPatch, team: list[float], one: list[float], alone: bool
) -> None:
    """FAULTS.md, row 95: a call of microseconds that waits for a core takes milliseconds."""
    monkeypatch.setattr(cpu_engine, "has_team", lambda: True)
    engine: Any = cpu_engine.CpuEngine(Policy(), 1 << 20)
    made = ("caller", Scripted(*one))
    assert engine.alone(Scripted(*team), lambda: made) == (made if alone else None)
