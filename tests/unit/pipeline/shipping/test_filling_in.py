"""What fills in is kept beside what was chosen, without measurements, unless it failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from bundled import OPERATORS

from aot_tune.compile import target_by_name
from aot_tune.pipeline.evidence import Chosen, Evidence
from aot_tune.pipeline.shipping.filling_in import fills_in, with_filling_in, without_wrong
from aot_tune.render import Renderer
from aot_tune.select import Selection
from aot_tune.select.selection_records import Node
from aot_tune.spec.load_operators import bundled_templates

GEMM = OPERATORS["gemm"]
TARGET = target_by_name("cuda-sm_90a")


@pytest.fixture
def session() -> Any:
    renderer = Renderer([bundled_templates()])
    return SimpleNamespace(kernels_for=lambda op, _: op.kernels, renderer=renderer)


def chosen(*kept: str) -> Selection:
    return Selection(kept=kept, nodes=(Node(ranked=kept),) if kept else (), regret={}, held_out={})


def test_its_first_config_is_kept_in_all_dtypes(session: Any) -> None:
    evidence = Evidence(GEMM, TARGET, {})
    first = with_filling_in(session, evidence, chosen("other"))
    assert first.nodes == chosen("other").nodes
    assert first.kept[0] == "other"
    entries = [evidence.entries[c] for c in first.kept[1:]]
    assert {e.candidate.dtypes["T"] for e in entries} == {"f32", "bf16", "f16"}
    assert all(fills_in(evidence, e) and e.candidate.config["PACK"] == 128 for e in entries)
    assert with_filling_in(session, evidence, first) == first


def test_where_nothing_was_chosen_it_is_not_either(session: Any) -> None:
    assert with_filling_in(session, Evidence(GEMM, TARGET, {}), chosen()) == chosen()


def test_what_failed_is_left_out(session: Any) -> None:
    evidence = Evidence(GEMM, TARGET, {})
    one, other, third = with_filling_in(session, evidence, chosen("it")).kept[1:]
    evidence.measurements["M=1"] = {one: cast(Any, SimpleNamespace(status="wrong"))}
    evidence.entries[other].has_become(cast(Any, SimpleNamespace(status="compile-failed")))
    assert with_filling_in(session, evidence, chosen("it")).kept == ("it", third)


def test_what_is_wrong_is_taken_back() -> None:
    found = Chosen(Evidence(GEMM, TARGET, {}), chosen("it", "fills in", "too"), {})
    ((left,), others) = without_wrong({"gemm": [found], "none": []}, {"fills in"}).values()
    assert left.selection.kept == ("it", "too")
    assert others == []
