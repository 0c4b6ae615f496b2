"""Problems by their ids; shapes of a survey: within ranges, no tuned ones, always the same, for each kind of calls."""

import dataclasses
from collections import Counter

import pytest
from bundled import OPERATORS
from hypothesis import given, settings
from hypothesis import strategies as st

from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.compile import target_by_name
from aot_tune.database.checks import tuned_kernels
from aot_tune.expr.integer_expressions import as_expr
from aot_tune.spec import Operator, Problem, all_of, dim
from aot_tune.spec.calls import is_taken
from aot_tune.spec.regimes import OTHER, regime_of
from aot_tune.spec.survey_shapes import Kind, kind_of, survey_shapes, without_shapes
from aot_tune.spec.workload import problem_named
from aot_tune.support.errors import OptionError


@pytest.fixture(scope="module")
def gemm() -> Operator:
    return OPERATORS["gemm"]


def drawn_of(operator: Operator, count: int, target: str = "cuda-sm_90a") -> dict[Kind, tuple[Problem, ...]]:
    kernels = tuned_kernels(operator, target_by_name(target))
    return survey_shapes(operator, target_by_name(target).family, count, kernels)


def test_each_kind_has_as_many_as_asked_for(gemm: Operator) -> None:
    drawn = drawn_of(gemm, 60)
    assert len(drawn) == 4  # f32, TF32, bf16, f16
    for kind, problems in drawn.items():
        assert len({p.id for p in problems}) == 60
        assert {kind_of(gemm, gemm.facts(p)) for p in problems} == {kind}
        assert not {p.id for p in problems} & {p.id for p in gemm.workload_for("cuda")}


def test_they_are_always_the_same_and_more_of_them_begin_alike(gemm: Operator) -> None:
    few, many = drawn_of(gemm, 20), drawn_of(gemm, 48)
    assert few == drawn_of(gemm, 20)
    assert all(many[kind][:20] == problems for kind, problems in few.items())


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from([*OPERATORS.values()]),
    st.sampled_from(["cuda-sm_90a", "cpu-x86-64-v4"]),
    st.integers(1, 40),
    st.sets(st.integers(1, 200), min_size=1, max_size=3),
)
def test_regimes_take_turns_and_shapes_are_what_callers_have_and_tuned_kernels_take(
    operator: Operator, target: str, count: int, cuts: set[int]
) -> None:
    cut = next(d for d in operator.dims if d not in operator.values and d != "B")
    regimes = {f"up to {n}": (dim(cut) <= n,) for n in sorted(cuts)}
    changed = dataclasses.replace(operator, regimes=regimes)
    kernels = tuned_kernels(changed, target_by_name(target))
    workload = changed.workload_for(target_by_name(target).family)
    drawn = drawn_of(changed, count, target)
    if all(k.generic or k.fills_in for k in kernels):  # nothing to choose between
        assert not any(drawn.values())
        return
    for problems in drawn.values():
        turns = [regime_of(changed, changed.facts(p)) for p in problems]
        numbers = Counter(turns)
        assert turns[: len(numbers)] == [name for name in (*regimes, OTHER) if name in numbers]
        assert max(numbers.values()) == -(-count // (len(regimes) + 1)) or len(problems) < count  # there are no more
        for shape in problems:
            assert is_taken(changed, shape, kernels, worthwhile=True)
            assert all_of((*changed.legal, *changed.expected), changed.facts(shape))
            for name, extents in changed.values.items():
                stated = {as_expr(extent).evaluate(shape.dims) for extent in extents}
                assert shape.dims[name] in {*stated, *(p.dims[name] for p in workload)}
            for name, (least, most) in changed.ranges.items():
                assert least <= shape.dims[name] <= most


def test_what_only_a_generic_kernel_takes_is_not_drawn() -> None:
    softmax = OPERATORS["softmax"]
    assert not any(survey_shapes(softmax, "cuda", 5, softmax.generics).values())
    changed = dataclasses.replace(softmax, regimes={"none": (dim("R") == 0,), "some": (dim("R") > 0,)})
    assert without_shapes(changed, drawn_of(changed, 5)) == ["none"]
    attention, width = OPERATORS["flash_attention"], dim("D")
    changed = dataclasses.replace(attention, regimes={"no width": (width > 64, width < 80), "some": (width >= 80,)})
    assert without_shapes(changed, drawn_of(changed, 5)) == ["no width"]


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
