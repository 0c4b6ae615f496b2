"""Races and surveys: paired rounds, baselines in their own process, entries that go wrong on the way."""

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from compiled import Bed

from aot_tune.bench.devices.family import Unwatched
from aot_tune.bench.protocol.measurement_records import DeviceState

pytestmark = pytest.mark.slow


@pytest.mark.alone
def test_a_race_pairs_entries_and_baselines_in_a_process_of_their_own(bed: Bed) -> None:
    found = bed.race("uses_openmp", "good", "spins")
    assert [*found] == ["uses_openmp", "good", "spins", "baseline:numpy"]
    assert {m.status for m in found.values()} == {"ok"}
    assert len({m.race for m in found.values()}) == 1
    finals = {n: m.final or () for n, m in found.items()}
    assert len({len(f) for f in finals.values()}) == 1
    assert len(finals["good"]) >= 5
    assert statistics.median(finals["spins"]) > 2 * statistics.median(finals["good"])
    assert any("absent is not run" in line and "no_such_module_anywhere" in line for line in bed.lines)
    workers = {w.role: w for w in bed.bench.pool.workers()}
    assert workers["framework"].pid != workers["candidate"].pid
    process = Path(f"/proc/{workers['framework'].pid}")
    assert b"OMP_NUM_THREADS=2" in (process / "environ").read_bytes().split(b"\0")
    assert "good.so" not in (process / "maps").read_text()


def test_a_crash_drops_only_the_entry_that_did_it(bed: Bed) -> None:
    found = bed.race("good", "segfault", "loader", "spins")
    right = dict.fromkeys(("good", "spins", "baseline:numpy"), "ok")
    assert {n: m.status for n, m in found.items()} == {"segfault": "crashed", "loader": "crashed", **right}
    assert len({len(found[n].final or ()) for n in right}) == 1
    assert all(m.final is None and m.race is None for n, m in found.items() if n not in right)


class Watched(Unwatched):
    """A monitor of a device whose clock rises."""

    def __init__(self) -> None:
        self.mhz: list[int] = []

    def read(self, workers: Sequence[int]) -> DeviceState:
        self.mhz.append(1000 + len(self.mhz))
        return DeviceState(sm_mhz=self.mhz[-1], memory_mhz=2619, reasons=4 * (len(self.mhz) == 3))


def test_times_of_a_race_have_the_units_name_and_the_clocks_of_its_rounds(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, monitor = msgspec.structs.replace(bed.bench.device, unit="GPU-7", driver="580.65.06"), Watched()
    monkeypatch.setattr(bed.bench, "device", device)
    monkeypatch.setattr(bed.bench, "monitor", monitor)
    found = bed.race("good", "spins")
    seen = found["good"].seen
    assert {m.seen for m in found.values()} == {seen}
    assert seen is not None
    assert (seen.unit, seen.driver, seen.reasons, seen.memory_mhz) == ("GPU-7", "580.65.06", 4, (2619, 2619))
    assert seen.clock_mhz is not None
    assert seen.clock_mhz[1] == monitor.mhz[-1]
    assert seen.clock_mhz[1] - seen.clock_mhz[0] >= len(found["good"].final or ())  # each round, and before the first


def test_an_entry_that_goes_wrong_during_the_race_is_dropped(bed: Bed) -> None:
    found = bed.race("later", "good", R=1, D=16)  # so short a call that there are more than a hundred
    assert found["later"].status == "wrong-result"
    assert re.search(r"after (a|the) race", found["later"].reason), found["later"].reason
    assert found["later"].final is None
    assert found["good"].status == "ok"


def test_a_baseline_that_dies_does_not_end_the_race(bed: Bed) -> None:
    found = bed.race("good", R=17, D=64)
    assert found["baseline:crash"].status == "no-result"
    assert "status 3" in found["baseline:crash"].reason
    assert found["good"].status == "ok"
    assert {n: m.status for n, m in bed.race("good").items()} == {"good": "ok", "baseline:numpy": "ok"}


def test_a_baseline_that_raises_is_told_once_and_the_race_is_worth_keeping(bed: Bed) -> None:
    for _ in range(2):
        found = bed.race("good", R=18, D=64)
    baseline = found["baseline:raises"]
    assert (baseline.status, baseline.reason) == ("failed", "TypeError: no such backend (operator.py:20)")
    assert baseline.lasting  # else all would race again in every build
    assert found["good"].final
    assert bed.lines.count("axpb: baseline:raises fails: TypeError: no such backend (operator.py:20)") == 1


def test_a_baseline_that_is_far_behind_is_timed_once(bed: Bed) -> None:
    found = bed.race("good", R=19, D=64)
    far = found["baseline:sleeps"]
    assert (far.status, len(far.final or ())) == ("ok", 1)
    assert far.ns is not None
    assert far.ns >= 5e7
    assert len(found["good"].final or ()) == len(found["baseline:numpy"].final or ()) >= 5


def test_a_time_that_the_device_cannot_reach_does_not_count(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen's was possible, or there would be no race: the clock slipped."""
    monkeypatch.setattr(bed.bench, "floor_ns", lambda _prepared: 1e12)
    found = bed.race("good")
    assert (found["good"].status, found["good"].final, found["good"].race) == ("skipped", None, None)
    assert re.search(r"^\d+\.\d ns per call is below the device's floor$", found["good"].reason)
    assert found["baseline:numpy"].status == "ok"


def test_a_baseline_that_computes_less_says_so_and_one_that_is_wrong_does_not_count(bed: Bed) -> None:
    problem = bed.prepare().problem
    prepared = bed.bench.prepare(bed.operator, type(problem)(dims=problem.dims, present=("bias",)))
    baseline = bed.bench.race(prepared, [bed.entry("good")])[-1]
    assert (baseline.candidate, baseline.status) == ("baseline:numpy", "ok")
    assert baseline.error is not None
    assert baseline.error > 1
    assert "elements are wrong" in baseline.reason
    prepared = bed.bench.prepare(bed.operator, type(problem)(dims={"R": 15, "D": 64}, present=("bias",)))
    good, baseline = bed.bench.race(prepared, [bed.entry("good")])
    assert (good.status, baseline.status, baseline.final) == ("ok", "wrong-result", None)
    assert "elements are wrong" in baseline.reason
    assert bed.lines.count("axpb: baseline:numpy is wrong and does not count") == 1


def test_a_survey_times_candidates_and_what_goes_wrong_costs_itself_alone(bed: Bed) -> None:
    names = ("good", "half", "aborts", "refuses", "uses_openmp")
    found = bed.survey(*names, R=40, D=40)
    assert [m.status for m in found] == ["ok", "wrong-result", "crashed", "failed", "ok"], [m.reason for m in found]
    assert "is off by nan" in found[1].reason
    assert found[0].problem.dims == {"R": 40, "D": 40}
    assert all(m.ns is not None and m.ns > 0 for m in (found[0], found[4]))
    assert [m.status for m in bed.survey("good", R=41, D=40)] == ["ok"]


def test_what_is_far_behind_in_a_survey_is_timed_again_and_has_its_least_time(bed: Bed) -> None:
    """As when another program had the cores: one such time would be learned from."""
    good, disturbed = bed.survey("good", "disturbed_at_first", R=35, D=129)
    assert good.ns is not None
    assert disturbed.ns is not None
    assert disturbed.ns < 8 * good.ns, (disturbed.screen, good.screen)
