"""Races of the CUDA family's bench, with worker processes, on the host's tensors: rounds, clocks, other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from compiled import Bed

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import DeviceState

pytest.importorskip("torch")

from cuda_bench import make_bed, objects_in


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return objects_in(tmp_path_factory.mktemp("objects"))


@pytest.fixture(scope="module")
def kept_bed(tmp_path_factory: pytest.TempPathFactory, objects: Callable[[str], Path]) -> Iterator[Bed]:
    """For tests in which no worker dies."""
    with make_bed(tmp_path_factory.mktemp("bed"), objects) as found:
        yield found


def test_a_race_pairs_candidates_and_baselines_that_compute_on_the_device(kept_bed: Bed) -> None:
    raced = {
        m.candidate: m
        for m in kept_bed.bench.race(kept_bed.prepare(), [kept_bed.entry("good"), kept_bed.entry("one_wrong")])
    }
    assert set(raced) == {"good", "one_wrong", "baseline:torch"}
    assert raced["one_wrong"].status == "wrong-result"
    good, torch = raced["good"], raced["baseline:torch"]
    assert good.status == torch.status == "ok", (good.reason, torch.reason)
    assert good.final is not None
    assert torch.final is not None
    assert len(good.final) == len(torch.final) >= 7
    assert good.race == torch.race


class Monitor:
    """A device that is too slow for the first so many batches."""

    def __init__(self, slow: int) -> None:
        self.slow, self.waits, self.reads = slow, 0, 0

    def begin(self) -> None: ...

    def read(self, workers: Any) -> DeviceState:
        assert len(workers) == 3
        self.reads += 1
        return DeviceState(sm_mhz=self.reads)

    def spoiled(self, state: Any) -> str:
        self.slow -= 1
        return "slow" if self.slow >= 0 else ""

    def capped(self, state: DeviceState) -> bool:
        return False

    def recover(self, why: str) -> None:
        assert why == "slow"
        self.waits += 1


def test_spoiled_samples_are_taken_again_but_not_for_ever(kept_bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed, monitor = kept_bed, Monitor(slow=1)
    monkeypatch.setattr(bed.bench.context, "monitor", monitor)
    measured = bed.screen("good")
    assert measured.status == "ok", measured.reason
    assert measured.screen
    assert monitor.waits == 1
    assert [s.sm_mhz for s in measured.conditions] == [3, 4]
    monitor = Monitor(slow=1000)
    monkeypatch.setattr(bed.bench.context, "monitor", monitor)
    measured = bed.screen("good")
    assert measured.screen
    assert monitor.waits == 2
    monitor = Monitor(slow=1000)
    monkeypatch.setattr(bed.bench.context, "monitor", monitor)
    raced = bed.bench.race(bed.prepare(), [bed.entry("good")])
    assert all(m.status == "ok" and m.final for m in raced)
    assert monitor.waits == 3
    assert len(raced[0].conditions) == 2


class Clocks:
    """Answers to turns that ask for the clock get one MHz after the other; 1980 after the last."""

    def __init__(self, bed: Bed, clocks: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds, self._clocks, self._request = 0, iter(clocks), bed.bench.pool.request
        self.last: dict[str, float] = {}
        self.samples: list[float] = []
        monkeypatch.setattr(bed.bench.pool, "request", self.request)

    def request(self, worker: Any, request: Any, seconds: float) -> Any:
        reply = self._request(worker, request, seconds)
        if isinstance(request, messages.Turn) and request.handle == "race-0" and reply.samples:
            self.samples.append(reply.samples[0])
        if isinstance(request, messages.Turn) and request.clock:
            self.rounds += 1
            return msgspec.structs.replace(reply, mhz=next(self._clocks, 1980.0))
        return reply


def test_rounds_under_a_changed_clock_are_taken_again(kept_bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed, lines = kept_bed, list[str]()
    monkeypatch.setattr(bed.bench.context, "log", lines.append)
    clocks = Clocks(bed, [1980.0, 1500.0, 1980.0, 1200.0], monkeypatch)
    raced = bed.bench.race(bed.prepare(), [bed.entry("good")])
    assert [m.status for m in raced] == ["ok", "ok"]
    assert all(set(m.clocks) == {1980} and m.final and len(m.clocks) == len(m.final) for m in raced)
    assert len(raced[0].clocks) == clocks.rounds - 2
    kept = [s for i, s in enumerate(clocks.samples[1:]) if i not in (1, 3)]  # after the one that sizes them
    assert list(raced[0].final or ()) == kept
    assert lines == ["axpb R=16 D=256: 2 rounds of its race were under a changed clock"]
