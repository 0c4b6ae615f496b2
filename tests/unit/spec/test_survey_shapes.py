"""Shapes of a survey: within their ranges, no tuned ones, always the same, for each kind of calls."""

from __future__ import annotations

import dataclasses

import pytest
from bundled import OPERATORS

from aot_tune.spec import Operator
from aot_tune.spec.workload import kind_of, survey_shapes


@pytest.fixture(scope="module")
def gemm() -> Operator:
    return OPERATORS["gemm"]


def test_each_kind_has_as_many_as_asked_for(gemm: Operator) -> None:
    drawn = survey_shapes(gemm, "cuda", 60)
    assert len(drawn) == 4  # f32, TF32, bf16, f16
    for kind, problems in drawn.items():
        assert len({p.id for p in problems}) == 60
        assert {kind_of(gemm, gemm.facts(p)) for p in problems} == {kind}
        assert not {p.id for p in problems} & {p.id for p in gemm.workload_for("cuda")}


def test_they_are_always_the_same_and_more_of_them_begin_alike(gemm: Operator) -> None:
    few, many = survey_shapes(gemm, "cuda", 20), survey_shapes(gemm, "cuda", 50)
    assert few == survey_shapes(gemm, "cuda", 20)
    assert all(many[kind][:20] == problems for kind, problems in few.items())


def test_extents_are_within_declared_ranges(gemm: Operator) -> None:
    ranged = dataclasses.replace(gemm, ranges={"M": (1, 16), "N": (512, 600)})
    for problems in survey_shapes(ranged, "cuda", 40).values():
        drawn = [p for p in problems if p.dims["N"] not in {q.dims["N"] for q in gemm.workload_for("cuda")}]
        assert drawn
        assert all(512 <= p.dims["N"] <= 600 for p in drawn)


def test_shapes_are_as_calls_are_expected_to_be() -> None:
    attention = OPERATORS["flash_attention"]
    drawn = [p for problems in survey_shapes(attention, "cuda", 60).values() for p in problems]
    assert all(p.dims["H"] % p.dims["HK"] == 0 for p in drawn)
    assert len({p.dims["H"] // p.dims["HK"] for p in drawn}) > 2
