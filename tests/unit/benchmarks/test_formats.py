"""The benchmarks of drawn and named calls on a GPU, as far as they need no device."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from aot_tune.compile import target_by_name
from aot_tune.database.checks import tuned_kernels
from aot_tune.expr.integer_expressions import all_of
from aot_tune.spec.calls import extents_exist
from aot_tune.spec.survey_shapes import survey_shapes

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def formats(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("formats")


@pytest.fixture
def operator(formats: Any) -> Any:
    return importlib.import_module("tasks").installed_operator


def test_drawn_calls_are_other_ones_than_a_survey_draws(formats: Any, operator: Any) -> None:
    target = target_by_name("cuda-sm_90a")
    for name in formats.OPERATORS:
        own = operator(name)
        surveyed = survey_shapes(own, "cuda", 4, tuned_kernels(own, target))
        known = {p.id for problems in surveyed.values() for p in problems}
        drawn = [item.problem.id for item in formats.items([name], 4, 1, 1) if not item.name]
        assert len({*drawn}) == len(drawn) >= 4
        assert len(known & {*drawn}) < len(drawn) / 2
        assert drawn == [item.problem.id for item in formats.items([name], 4, 1, 1) if not item.name]


def test_named_and_drawn_calls_take_turns_and_so_do_operators(formats: Any) -> None:
    found = formats.items(["scaled_mm", "quantize_rows"], 2, 1, 1)[:4]
    assert [(item.operator, bool(item.name)) for item in found] == [
        ("scaled_mm", True),
        ("scaled_mm", False),
        ("quantize_rows", True),
        ("quantize_rows", False),
    ]
    assert [item.compiled for item in found] == [False, False, True, True]
    assert all(item.name for item in formats.items(formats.OPERATORS, 0, 1, 1))


def test_named_calls_are_legal_and_their_numbers_fit_the_tensors(formats: Any, operator: Any) -> None:
    named = formats.named()
    assert {item.operator for item in named} == {*formats.OPERATORS}
    for item in named:
        own, given = operator(item.operator), item.problem
        assert all_of((*own.legal, *extents_exist(own)), own.facts(given)), item
        assert bool(item.values) == bool(item.flops) == bool(item.bytes)
        for name, values in item.values.items():
            assert own.dtype(given, own.tensor(name)).name == "i32"
            assert own.shape(given, own.tensor(name)) == (len(values),)
            rows = given.dims.get("M") or given.dims["C"]
            assert max(values) == (given.dims["W"] * given.dims["PAGE"] if name == "seq_lens" else rows)
            assert list(values) == sorted(values)


def test_stated_flops_and_bytes_are_the_operators_where_those_are_of_equal_groups(formats: Any, operator: Any) -> None:
    item = next(i for i in formats.named() if i.problem.dims.get("E") == 4 and "M" in i.problem.dims)
    own = operator(item.operator)
    assert item.flops == own.flops.evaluate(own.facts(item.problem))
    assert item.bytes == pytest.approx(own.compulsory_bytes(item.problem), rel=1e-3)


ROW = {"operator": "gemm", "dtypes": "bf16", "name": "", "wanted": "", "shape": "M=1", "bytes": 10**9, "flops": 10**12}


def test_tables_say_speeds_and_what_failed(formats: Any) -> None:
    rows = [
        {**ROW, "us": {"ours": [10.0] * 3, "torch": [20.0] * 3, formats.COMPILED: [30.0] * 3}, "copy": [9.0] * 3},
        {**ROW, "shape": "M=2", "us": {"ours": [10.0] * 3, "torch": [5.0] * 3}, "notes": ["flash: no such call"]},
        {**ROW, "shape": "M=3", "us": {"ours": [10.0] * 3}, "notes": ["flash: no such call"]},
        {**ROW, "shape": "M=4", "error": "it is wrong"},
        {**ROW, "name": "large", "wanted": "2 x torch", "us": {"ours": [1000.0], "torch": [2000.0]}},
        {**ROW, "name": "lost", "wanted": "all", "error": "it died"},
    ]
    text = formats.tables(rows)
    assert "| gemm | bf16 | 3 | 1 | 1.00 | 50% | 0.50 M=2 | 0.90 | 3.00 |" in text
    assert "| gemm | large | M=1 | 1000.0 | 1000 | 1000 | torch 2.00 |  | 2 x torch |" in text
    assert "| gemm | lost | M=1 | failed |  |  |  |  | all |" in text
    assert "* gemm M=4: it is wrong" in text
    assert "* gemm: flash: no such call (2 x, as M=2)" in text
    assert len(formats.tables([]).splitlines()) == 5


def test_a_process_that_dies_or_hangs_is_replaced(formats: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    gpu_race = importlib.import_module("gpu_race")
    monkeypatch.setattr(gpu_race, "PATIENCE", 2.0)
    begun = os.getpid()

    def measure(number: int) -> dict[str, Any]:
        if number == 1:
            os._exit(7)
        if number == 3:
            time.sleep(60)
        if number == 4:
            raise ValueError("no such call")
        return {"us": 10 * number, "here": os.getpid() == begun}

    def about(number: int) -> dict[str, Any]:
        return {"shape": number}

    found = list(gpu_race.measured(range(6), about, measure, time.monotonic() + 60))
    assert [item for item, _ in found] == [row["shape"] for _, row in found] == list(range(6))
    assert [row.get("us") for _, row in found] == [0, None, 20, None, None, 50]
    assert not any(row.get("here") for _, row in found)
    assert [found[i][1]["error"] for i in (1, 3)] == [f"the process hung or died: {status}" for status in (7, None)]
    assert found[4][1]["error"] == "ValueError: no such call"
    assert not list(gpu_race.measured(range(6), about, measure, time.monotonic() - 1))
