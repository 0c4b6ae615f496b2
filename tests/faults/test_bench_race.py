"""Races: paired rounds, baselines in their own process, entries that go wrong on the way."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.alone
def test_a_race_pairs_entries_and_baselines(bed: Any) -> None:
    prepared = bed.prepare()
    found = bed.bench.race(prepared, [bed.entry(n) for n in ("unsteady", "good", "spins")])
    assert [m.candidate for m in found] == ["unsteady", "good", "spins", "baseline:numpy"]
    assert {m.status for m in found} == {"ok"}
    assert len({m.race for m in found}) == 1
    assert len({len(m.final) for m in found}) == 1
    assert len(found[0].final) >= 5
    times = {m.candidate: statistics.median(m.final) for m in found}
    assert times["spins"] > 2 * times["good"]


def test_a_crash_drops_only_the_entry_that_did_it(bed: Any) -> None:
    found = bed.bench.race(bed.prepare(), [bed.entry(n) for n in ("good", "segfault", "loader", "spins")])
    status = {m.candidate: m.status for m in found}
    assert status == {
        "good": "ok", "segfault": "crashed", "loader": "crashed", "spins": "ok", "baseline:numpy": "ok",
    }  # fmt: skip
    finals = [m.final for m in found if m.status == "ok"]
    assert len({len(f) for f in finals}) == 1
    assert all(m.final is None and m.race is None for m in found if m.status != "ok")


def test_an_entry_that_goes_wrong_during_the_race_is_dropped(bed: Any) -> None:
    found = {m.candidate: m for m in bed.bench.race(bed.prepare(), [bed.entry("later"), bed.entry("good")])}
    assert found["later"].status == "wrong-result"
    assert re.search(r"after (a|the) race", found["later"].reason), found["later"].reason
    assert found["later"].final is None
    assert found["good"].status == "ok"


def test_a_baseline_that_dies_does_not_end_the_race(bed: Any) -> None:
    found = {m.candidate: m for m in bed.bench.race(bed.prepare(R=17, D=64), [bed.entry("good")])}
    assert found["baseline:crash"].status == "no-result"
    assert "status 3" in found["baseline:crash"].reason
    assert found["good"].status == "ok"
    again = {m.candidate: m.status for m in bed.bench.race(bed.prepare(), [bed.entry("good")])}
    assert again == {"good": "ok", "baseline:numpy": "ok"}


def test_a_baseline_that_raises_is_told_once_and_the_race_is_worth_keeping(make_bench: Any, make_bed: Any) -> None:
    lines: list[str] = []
    with make_bench(log=lines.append) as bench:
        bed = make_bed(bench)
        for _ in range(2):
            found = {m.candidate: m for m in bench.race(bed.prepare(R=18, D=64), [bed.entry("good")])}
    baseline = found["baseline:raises"]
    assert (baseline.status, baseline.reason) == ("failed", "TypeError: no such backend (operator.py:20)")
    assert baseline.lasting  # else all would race again in every build
    assert found["good"].final
    assert [line for line in lines if "raises" in line] == [
        "axpb: baseline:raises fails: TypeError: no such backend (operator.py:20)"
    ]


def test_a_time_that_the_device_cannot_reach_does_not_count(bed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen's was possible, or there would be no race: the clock slipped."""
    prepared = bed.prepare()
    monkeypatch.setattr(bed.bench.context, "floor_ns", lambda _prepared: 1e12)
    found = {m.candidate: m for m in bed.bench.race(prepared, [bed.entry("good")])}
    assert (found["good"].status, found["good"].final, found["good"].race) == ("skipped", None, None)
    assert re.search(r"^\d+\.\d ns per call is below the device's floor$", found["good"].reason)
    assert found["baseline:numpy"].status == "ok"


def test_baselines_never_share_a_process_with_candidates(bed: Any) -> None:
    bed.bench.race(bed.prepare(), [bed.entry("good")])
    workers = {w.role: w for w in bed.bench.pool.workers()}
    assert workers["framework"].pid != workers["candidate"].pid
    process = Path(f"/proc/{workers['framework'].pid}")
    assert b"OMP_NUM_THREADS=2" in (process / "environ").read_bytes().split(b"\0")
    assert "good.so" not in (process / "maps").read_text()


def test_a_baseline_without_its_module_is_left_out_and_named(make_bench: Any, make_bed: Any) -> None:
    lines: list[str] = []
    with make_bench(log=lines.append) as bench:
        bed = make_bed(bench)
        found = bench.race(bed.prepare(), [bed.entry("good")])
    assert "baseline:absent" not in {m.candidate for m in found}
    assert any("absent is not run" in line and "no_such_module_anywhere" in line for line in lines)


def test_a_baseline_that_computes_less_says_so(bed: Any) -> None:
    problem = bed.prepare().problem
    prepared = bed.bench.prepare(bed.folder, bed.operator, type(problem)(dims=problem.dims, present=("bias",)))
    baseline = bed.bench.race(prepared, [bed.entry("good")])[-1]
    assert baseline.candidate == "baseline:numpy"
    assert baseline.status == "ok"
    assert baseline.error > 1
    assert "elements are wrong" in baseline.reason
