"""In a dtype that follows another a candidate is tried only on problems on whose like it was not far from the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from overlapping import OPERATOR, TARGET, entry
from test_pipeline_deadline import Bench, measurer

from aot_tune.bench import Measurement
from aot_tune.database import Code
from aot_tune.pipeline.backlog import Backlog, places_of
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.follow import pass_over, resembles
from aot_tune.pipeline.outlook import task_of
from aot_tune.pipeline.recorded import Known
from aot_tune.pipeline.session import LoadedOperator
from aot_tune.spec import Problem, problem

SMALL, LARGE = problem(N=8), problem(N=64)
SMALL_F16, LARGE_F16 = (problem(N=n, dtypes={"T": "f16"}) for n in (8, 64))
KERNELS = tuple(
    dataclasses.replace(k, dtypes={"T": ("bf16", "f16")}, follows={"f16": "bf16"}) if k.name == "vendor" else k
    for k in OPERATOR.kernels
)
RESEMBLING = dataclasses.replace(OPERATOR, workload={"cuda": (SMALL_F16, LARGE_F16, SMALL, LARGE)}, kernels=KERNELS)
LOADED = cast(LoadedOperator, SimpleNamespace(operator=RESEMBLING, folder=Path()))


def everyone() -> dict[str, Entry]:
    """By symbol; all compiled but for those of f16 that are no library's calls."""
    found = [entry(k, d, w) for k in ("slow", "vendor") for d in ("bf16", "f16") for w in (1, 2, 3)]
    for one in found:
        if one.candidate.dtypes["T"] == "bf16":
            one.recorded = Code(one.rendered.symbol, "device")
    return {e.rendered.symbol: e for e in (*found, entry("generic", "f16"))}


def times(evidence: Evidence, where: Problem, told: Mapping[str, float], entries: Mapping[str, Entry]) -> None:
    for symbol, ns in told.items():
        one = entries[symbol].candidate.id
        evidence.add(
            Measurement(
                candidate=one, object=symbol, problem=where, device="d", policy="p", status="ok", screen=(ns,) * 4
            )
        )


TOLD = {
    "slow_bf16_1": 100.0,
    "slow_bf16_2": 114.0,
    "slow_bf16_3": 116.0,
    "vendor_bf16_1": 300.0,
    "vendor_bf16_2": 350.0,
}
"""On one problem; of the library's third call nothing is known there."""


@pytest.fixture
def entries() -> dict[str, Entry]:
    return everyone()


@pytest.fixture
def evidence(entries: dict[str, Entry]) -> Evidence:
    found = Evidence(RESEMBLING, TARGET, {e.candidate.id: e for e in entries.values()})
    times(found, SMALL, TOLD, entries)
    return found


def passed(evidence: Evidence, where: Problem, entries: Mapping[str, Entry], symbols: list[str]) -> set[str]:
    gone = pass_over(evidence, where, [entries[s] for s in symbols])
    return {s for s, e in entries.items() if e.candidate.id in gone}


F16 = [f"{kernel}_f16_{w}" for kernel in ("slow", "vendor") for w in (1, 2, 3)]


def test_what_was_far_from_the_best_of_its_kind_is_passed_over(evidence: Evidence, entries: dict[str, Entry]) -> None:
    for symbol in F16[:3]:
        entries[symbol].due = True
    assert passed(evidence, SMALL_F16, entries, F16) == {"slow_f16_3", "vendor_f16_2"}
    assert not evidence.meant_for(entries["slow_f16_3"], SMALL_F16)
    assert evidence.meant_for(entries["slow_f16_3"], LARGE_F16)


def test_it_is_held_against_what_is_tried_here(evidence: Evidence, entries: dict[str, Entry]) -> None:
    entries["slow_f16_3"].due = True
    assert passed(evidence, SMALL_F16, entries, ["slow_f16_3"]) == set()
    entries["slow_f16_1"].only = {LARGE_F16.id}
    entries["slow_f16_1"].due = True
    assert passed(evidence, SMALL_F16, entries, ["slow_f16_3"]) == set()
    entries["slow_f16_1"].only = None
    assert passed(evidence, SMALL_F16, entries, ["slow_f16_3"]) == {"slow_f16_3"}


def test_nothing_is_passed_over_of_which_nothing_is_known(evidence: Evidence, entries: dict[str, Entry]) -> None:
    assert passed(evidence, LARGE_F16, entries, F16) == set()
    assert passed(evidence, SMALL, entries, ["slow_bf16_3", "vendor_bf16_2"]) == set()
    assert passed(evidence, SMALL_F16, entries, ["generic_f16_0"]) == set()
    assert evidence.passed_over == set()


def test_what_is_passed_over_is_not_screened_nor_expected(
    monkeypatch: pytest.MonkeyPatch, evidence: Evidence, entries: dict[str, Entry]
) -> None:
    bench = Bench()
    one, outlook = measurer(monkeypatch, bench, seconds=None)
    for symbol in F16[:3]:
        entries[symbol].due = True
    outlook.expect([evidence], list(entries.values()), devices=1, overlap=True)
    task = task_of(RESEMBLING, SMALL_F16)
    left = outlook._screens[task]
    one.screen(LOADED, evidence, SMALL_F16, [entries[s] for s in F16])
    assert bench.calls == 4
    assert left - outlook._screens[task] == 6


def test_a_record_says_what_was_passed_over(evidence: Evidence, entries: dict[str, Entry]) -> None:
    """So a build upon it neither compiles nor measures what the one that was recorded did without."""
    for one in entries.values():
        one.recorded = Code(one.rendered.symbol, "device")
    times(evidence, SMALL_F16, {"slow_f16_1": 90.0}, entries)
    times(evidence, LARGE_F16, {"slow_f16_1": 90.0, "slow_f16_3": 95.0}, entries)
    known = Known(tuple(m for row in evidence.measurements.values() for m in row.values()))
    again = Evidence(RESEMBLING, TARGET, evidence.entries)
    assert known.give(again) == len(TOLD) + 3
    assert again.passed_over == {(entries["slow_f16_3"].candidate.id, SMALL_F16.id)}
    assert not again.lacks(entries["slow_f16_3"])
    assert again.lacks(entries["slow_f16_2"])  # which the record does not know at all
    assert again.lacks(entries["slow_bf16_3"])  # on LARGE, which is not of a dtype that follows


def test_problems_of_the_other_dtype_are_screened_first(evidence: Evidence, entries: dict[str, Entry]) -> None:
    assert [resembles(RESEMBLING, p) for p in (SMALL_F16, SMALL)] == [True, False]
    assert [p.follows for p in places_of([(LOADED, evidence)])] == [True, True, False, False]
    backlog, asked = Backlog([(LOADED, evidence)]), list[str]()
    for one in entries.values():
        one.recorded = Code(one.rendered.symbol, "device")
    backlog.add(entries.values())
    member = SimpleNamespace(screen=lambda _loaded, _evidence, where, _entries: asked.append(where.id))
    crew = SimpleNamespace(each=lambda jobs: [job(member) for _, job in jobs])
    backlog.screen(crew, lambda _: False)  # type: ignore[arg-type]
    assert asked == [SMALL.id, LARGE.id, SMALL_F16.id, LARGE_F16.id]
