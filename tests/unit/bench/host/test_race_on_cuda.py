"""Races of the CUDA family's bench, with worker processes, on the host's tensors: rounds, clocks, other processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from compiled import Bed

from aot_tune.bench.host.remarks import Remarks
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import DeviceState

pytest.importorskip("torch")

from cuda_bench import make_bed, objects_in


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return objects_in(tmp_path_factory.mktemp("objects"))


@pytest.fixture
def bed(tmp_path: Path, objects: Callable[[str], Path]) -> Iterator[Bed]:
    with make_bed(tmp_path, objects) as found:
        yield found


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


def test_spoiled_samples_are_taken_again_but_not_for_ever(bed: Bed) -> None:
    bed.bench.context.monitor = monitor = Monitor(slow=1)
    measured = bed.screen("good")
    assert measured.status == "ok", measured.reason
    assert measured.screen
    assert monitor.waits == 1
    assert [s.sm_mhz for s in measured.conditions] == [3, 4]
    bed.bench.context.monitor = monitor = Monitor(slow=1000)
    measured = bed.screen("good")
    assert measured.screen
    assert monitor.waits == 2
    bed.bench.context.monitor = monitor = Monitor(slow=1000)
    raced = bed.bench.race(bed.prepare(), [bed.entry("good")])
    assert all(m.status == "ok" and m.final for m in raced)
    assert monitor.waits == 3
    assert len(raced[0].conditions) == 2


def test_what_the_device_is_like_is_not_asked_again_at_once(bed: Bed) -> None:
    bed.bench.context.monitor = Monitor(slow=0)
    states = [bed.screen("good").conditions for _ in range(2)]
    assert [[s.sm_mhz for s in found] for found in states] == [[1, 2], [2, 3]]
    assert bed.bench.context.conditions() == DeviceState(sm_mhz=4)


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


@pytest.mark.parametrize("strangers", [0, 1])
def test_a_worker_is_told_when_another_had_its_turn(
    kept_bed: Bed, monkeypatch: pytest.MonkeyPatch, strangers: int
) -> None:
    """A process that is not of the build may use the device at any time."""
    bed, turns, monitor = kept_bed, list[messages.Turn](), Monitor(slow=0)
    monkeypatch.setattr(bed.bench.context, "monitor", monitor)
    monkeypatch.setattr(monitor, "read", lambda _workers: DeviceState(others=strangers))
    ask = bed.bench.pool.request

    def request(worker: Any, message: Any, seconds: float) -> Any:
        turns.extend([message] if isinstance(message, messages.Turn) else [])
        return ask(worker, message, seconds)

    monkeypatch.setattr(bed.bench.pool, "request", request)
    bed.bench.race(bed.prepare(), [bed.entry("good"), bed.entry("good")])
    sizing = len({t.handle for t in turns})  # before the device is looked at
    of_entries = [t.handle.startswith("race") for t in turns]
    wanted = [True] + [a != b for a, b in pairwise(of_entries)]
    assert [t.resumed for t in turns] == [w or (strangers > 0 and i >= sizing) for i, w in enumerate(wanted)]
    assert set(wanted[sizing:]) == {True, False}


def test_a_clock_that_never_holds_still_does_not_take_all_rounds(
    kept_bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, policy = kept_bed, kept_bed.bench.policy
    clocks = Clocks(bed, [1000.0 + 100 * (i * 7 % 20) for i in range(100)], monkeypatch)
    raced = bed.bench.race(bed.prepare(), [bed.entry("good")])
    assert clocks.rounds <= policy.race_rounds + math.ceil(policy.on_gpu.repeats * policy.race_rounds)
    assert all(m.status == "ok" and len(m.final or ()) == len(m.clocks) >= policy.race_least for m in raced)


@pytest.mark.parametrize(("number", "kept"), [(5, True), (1, False)])  # the first tells of what ran before the race
def test_a_clock_that_the_power_cap_holds_down_is_kept(
    kept_bed: Bed, monkeypatch: pytest.MonkeyPatch, number: int, kept: bool
) -> None:
    bed, monitor = kept_bed, Monitor(slow=0)
    monkeypatch.setattr(bed.bench.context, "monitor", monitor)
    monkeypatch.setattr(monitor, "capped", lambda state: state.sm_mhz == number)  # seen once
    clocks = Clocks(bed, [1980.0, 1500.0, 1700.0], monkeypatch)
    raced = bed.bench.race(bed.prepare(), [bed.entry("good")])
    assert raced[0].conditions[0].sm_mhz == 1
    if kept:
        assert raced[0].clocks[:4] == (1980, 1500, 1700, 1980)
        assert len(raced[0].clocks) == clocks.rounds
    else:
        assert set(raced[0].clocks) == {1980}


def test_without_a_probe_the_race_goes_on_and_that_is_said_once(kept_bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed, lines = kept_bed, list[str]()
    monkeypatch.setattr(bed.bench.context, "remarks", Remarks(lines.append))
    for _ in range(2):
        raced = bed.bench.race(bed.prepare(), [bed.entry("good")])
        assert all(m.status == "ok" and m.clocks and not any(m.clocks) for m in raced)
    assert lines == ["the clock of multiprocessors cannot be probed, so NVML tells the clock"]


class Crowded(Monitor):
    """Another process comes and goes while a race is on."""

    def read(self, workers: Any) -> DeviceState:
        self.reads += 1
        return DeviceState(others=int(self.reads == 3))


def test_a_process_beside_a_race_is_noted_in_its_measurements(kept_bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = kept_bed
    for monitor, others in ((Crowded(slow=0), 1), (Monitor(slow=0), 0)):
        monkeypatch.setattr(bed.bench.context, "monitor", monitor)
        raced = bed.bench.race(bed.prepare(), [bed.entry("good")])
        assert len(raced) > 1  # the baseline, too
        assert {m.others for m in raced} == {others}
