"""What a GPU shows of itself: its clock by a spin, and rotations that are read too fast, on made-up devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from aot_tune.bench.devices.family import policy_for
from aot_tune.bench.protocol.measurement_records import GpuTiming, Policy

torch = pytest.importorskip("torch")

from aot_tune.bench.worker.cuda.engine import FaultError, GpuEngine  # noqa: E402
from aot_tune.bench.worker.cuda.host_engine import HostEngine  # noqa: E402
from aot_tune.bench.worker.cuda.probes import Probes  # noqa: E402

POLICY = policy_for("cuda", Policy())
L2 = 1 << 16


class Timeline:
    """A stream with a clock of `mhz`: a launch takes `gap` us beside its spin, and `host` us pass between launches."""

    def __init__(self, mhz: float, gap: float, host: float) -> None:
        self.mhz, self.gap, self.host = mhz, gap, host
        self.queued, self.done = 0.0, 0.0

    def spin(self, cycles: int) -> None:
        self.queued += self.host
        self.done = max(self.done, self.queued) + self.gap + cycles / self.mhz

    def now(self) -> float:
        self.queued += self.host
        self.done = max(self.done, self.queued)
        return self.done


class Event:
    def __init__(self, line: Timeline) -> None:
        self.line, self.at = line, 0.0

    def record(self, stream: Any) -> None:
        self.at = self.line.now()

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) / 1e3


@pytest.mark.parametrize("mhz", [345.0, 1410.0, 1980.0])
@pytest.mark.parametrize("gap", [0.5, 4.0])
@pytest.mark.parametrize("host", [1.0, 6.0])
def test_a_spin_tells_the_clock_whatever_a_launch_takes(
    mhz: float, gap: float, host: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Timeline(mhz, gap, host)
    engine: Any = GpuEngine.__new__(GpuEngine)
    engine._events, engine._stream = [Event(line) for _ in range(3)], None
    engine.check = lambda: None
    monkeypatch.setattr(torch.cuda, "_sleep", line.spin)
    cycles = GpuTiming().probe_cycles
    assert engine.clock_mhz(cycles) == pytest.approx(mhz, rel=1e-6)
    assert line.done < 100 or mhz < 1980


class Reader(HostEngine):
    """Reads rotations at one rate and memory at others, in turn; or raises."""

    def __init__(self, rotation: float, *memory: float, error: Exception | None = None) -> None:
        super().__init__()
        self.rotation, self.memory, self.error, self.asked = rotation, list(memory), error, 0

    def read_rate(self, storages: Sequence[Any]) -> float:
        self.asked += 1
        if self.error is not None:
            raise self.error
        if sum(s.numel() for s in storages) < 1 << 20:
            return self.rotation
        return self.memory.pop(0)

    def clock_mhz(self, cycles: int) -> float:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return float(cycles)


def copies(count: int, size: int) -> list[Any]:
    return [torch.zeros(size, dtype=torch.uint8) for _ in range(count)]


@pytest.mark.parametrize(
    ("rotation", "memory", "asked", "cold"),
    [
        (4000.0, [4100.0], 2, True),
        (4900.0, [4000.0], 2, True),
        (5200.0, [2000.0, 4300.0], 3, True),  # memory was busy the first time
        (5200.0, [4000.0, 4100.0], 3, False),
    ],
)
def test_a_rotation_that_is_read_faster_than_memory_is_not_cold(
    rotation: float, memory: list[float], asked: int, cold: bool
) -> None:
    engine = Reader(rotation, *memory)
    probes = Probes(engine, POLICY)
    remark = probes.rotation(copies(4, L2), L2)
    assert engine.asked == asked
    if cold:
        assert remark == ""
    else:
        assert remark.startswith(
            "not cold: a read probe of the copies of cold tensors ran at 5200 GB/s, memory at 4100"
        )
    assert probes.said == ""
    engine.rotation = 1.0
    assert probes.rotation(copies(4, L2), L2) == ""
    assert engine.asked == asked + 1  # of one memory there is no need to know twice


def test_a_fault_of_the_device_is_not_hidden() -> None:
    probes = Probes(Reader(1.0, error=FaultError(700, "")), POLICY)
    with pytest.raises(FaultError):
        probes.clock_mhz()
    with pytest.raises(FaultError):
        probes.rotation(copies(4, L2), L2)
