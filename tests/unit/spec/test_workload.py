"""Problems by their ids; shapes of a survey: within ranges, no tuned ones, always the same, for each kind of calls."""

from __future__ import annotations

import dataclasses

import pytest
from bundled import OPERATORS

from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.spec import Operator
from aot_tune.spec.survey_shapes import kind_of, survey_shapes
from aot_tune.spec.workload import problem_named
from aot_tune.support.errors import OptionError


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


def test_every_problem_is_found_by_its_id() -> None:
    for operator in OPERATORS.values():
        problems = [*operator.workload_for("cpu"), *operator.workload_for("cuda")]
        problems += [check.problem for check in derived_checks(operator)]
        assert any(p.strides for p in problems)
        for one in problems:
            found = problem_named(operator, one.id)
            assert found.id == one.id
            assert operator.facts(found) == operator.facts(one)


def test_what_is_no_problem_is_refused() -> None:
    gemm = OPERATORS["gemm"]
    for text in ("M=1 N=2", "?", *(f"M=1 N=2 K={more}" for more in ("3 Q=4", "x", "3 +nothing", "3 c:(1,2)", "3 a@b"))):
        with pytest.raises(OptionError, match=r"not a (problem|part of a problem) of operator 'gemm'"):
            problem_named(gemm, text)
