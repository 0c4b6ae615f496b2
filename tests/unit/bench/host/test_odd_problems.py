"""Odd problems: legal, varied, and fitted to what kernels require."""

import pytest
from bundled import OPERATORS
from hypothesis import given, settings
from hypothesis import strategies as st
from small_operators import make_operator

from aot_tune.bench.host.odd_problems import checks_for, derived_checks
from aot_tune.bench.protocol.measurement_records import Policy, check_in
from aot_tune.bench.worker.inputs import storage_extent
from aot_tune.spec import Expr, Kernel, Operator, Tensor, all_of, dim, dims, dtype_index, next_power_of_2
from aot_tune.spec.calls import check_problem, following_dims
from aot_tune.spec.generators import ROWWISE, Drawn


@pytest.fixture(scope="module")
def gemm() -> Operator:
    return OPERATORS["gemm"]


def assert_legal(operator: Operator, requires: tuple[Expr, ...] = ()) -> None:
    checks = derived_checks(operator, requires)
    assert checks
    for check in checks:
        check_problem(operator, check.problem)
        assert all_of(requires, operator.facts(check.problem))
        for tensor in operator.outputs:
            if operator.is_present(check.problem, tensor):
                shape, strides = operator.shape(check.problem, tensor), operator.strides(check.problem, tensor)
                axes = sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1)
                reached = 1
                for step, extent in axes:  # no two elements share a place
                    assert step >= reached
                    reached = step * (extent - 1) + reached
                assert storage_extent(shape, strides)[0] >= 1


def kernels(operator: Operator) -> list[Kernel]:
    """The generic one, and that which requires the most of all configs."""
    alike = [k for k in operator.kernels if not any("parameter." in fact for e in k.requires for fact in e.facts())]
    return [operator.kernels[0], max(alike, key=lambda k: len(k.requires))]


@pytest.mark.parametrize("name", OPERATORS)
def test_checks_of_bundled_operators_are_legal_and_vary_all_that_a_call_may_vary(name: str) -> None:
    operator = OPERATORS[name]
    for kernel in kernels(operator):
        assert_legal(operator, kernel.requires)
    for check in derived_checks(operator):
        assert check_in(f"y[3]: got 4 ({check.place}, with 1 thread)") == check.place[8:].replace("'", "").strip()
    problems = [c.problem for c in derived_checks(operator)]
    facts = [operator.facts(p) for p in problems]
    for extent in operator.dims:
        extents = {p.dims[extent] for p in problems}
        assert 1 in extents or operator.legal
        if extent in following_dims(operator):
            continue
        assert max(extents) >= 259
        assert any(e % 2 for e in extents if e > 64) or operator.legal
    for tensor in operator.tensors:
        least = max(operator.dtype(p, tensor).itemsize for p in problems)  # of an element
        assert {f[f"alignment.{tensor.name}"] for f in facts} >= {least, 64}
        if tensor.optional:
            assert {f[f"present.{tensor.name}"] for f in facts} == {0, 1}
        if tensor.shape[-1].facts() & set(following_dims(operator)) or tensor.shape[-1].op != "fact":
            continue
        last = {f[f"stride.{tensor.name}.{tensor.rank - 1}"] for f in facts if f[f"present.{tensor.name}"]}
        assert 2 in last
        if not tensor.output:
            own = tensor.inout or isinstance(tensor.values, (*ROWWISE, Drawn))  # elements are distinct places
            assert ({-1} if own else {0, -1}) <= last
    for declared in operator.attributes:
        assert {f[f"attribute.{declared.name}"] for f in facts} == set(range(len(declared.choices)))
    assert sum(bool(c.special) for c in derived_checks(operator)) == 1
    assert {c.odd for c in derived_checks(operator)} >= {"zeros", "denormal numbers"}
    assert not any(c.special or c.odd for c in derived_checks(operator, special=False))


@pytest.mark.parametrize(("on_host", "most"), [(True, 40), (False, 28)])
def test_where_there_are_many_some_of_each_kind_are_left(on_host: bool, most: int) -> None:
    attention = OPERATORS["flash_attention"]
    every = derived_checks(attention)
    found = checks_for(attention, (), Policy(), on_host=on_host)
    assert len(every) > 80
    assert len(found) == most
    assert found[0] == every[0]
    for kept in (lambda c: c.special, lambda c: c.odd, lambda c: any(1 << 16 in s for s in c.problem.strides.values())):
        assert [c for c in found if kept(c)] == [c for c in every if kept(c)]
    for kind in ("strides", "order", "present", "attributes", "dims"):
        assert any(getattr(c.problem, kind) for c in found), kind


def test_what_is_required_of_dims_and_dtypes_holds_in_every_check(gemm: Operator) -> None:
    pinned = derived_checks(gemm, (dim("N") == 768, dim("K") == 64))
    assert {(c.problem.dims["N"], c.problem.dims["K"]) for c in pinned} == {(768, 64)}
    assert len({c.problem.dims["M"] for c in pinned}) > 3
    rounded = derived_checks(gemm, (dim("N") % 16 == 0, dim("K") % 4 == 0))
    assert len(rounded) > 5
    assert any(c.problem.dims["N"] % 32 for c in rounded)
    assert any(c.problem.dims["M"] % 2 for c in rounded)
    huge = derived_checks(gemm, (dim("N") == 8192, dim("K") == 8192))  # too large is left out, but never all
    assert [c.problem.dims["M"] for c in huge] == [3]
    choices = gemm.dtypes["T"]
    for index, name in enumerate(choices):
        checks = derived_checks(gemm, (dtype_index("T") == index,))
        assert len(checks) > 20
        assert {c.problem.dtypes.get("T", choices[0]) for c in checks} == {name}
        assert all(c.problem.dtypes == {} for c in checks) == (index == 0)
        least = min(a for c in checks for a in c.problem.alignment.values())
        assert least == (4 if name == "f32" else 2)


@settings(max_examples=12)
@given(st.sampled_from("MNK"), st.integers(1, 300), st.sampled_from([2, 3, 8, 48]))
def test_whatever_is_required_holds(name: str, least: int, multiple: int) -> None:
    requires = (dim(name) >= least, dim(name) % multiple == 0)
    checks = derived_checks(OPERATORS["gemm"], requires)
    assert checks
    for check in checks:
        assert all_of(requires, OPERATORS["gemm"].facts(check.problem))


@pytest.mark.parametrize(("first", "least"), [(0, 5), (1, 1)])
def test_a_row_that_is_padded_to_a_power_of_two_may_have_to_be_a_multiple_too(first: int, least: int) -> None:
    """As in code of Triton functions that assumes what the JIT does: else nothing odd would be verified of it."""
    width = dim("D")
    pair = (width % 16 == 0, next_power_of_2(width) == 1024)
    checks = derived_checks(OPERATORS["softmax"], (pair[first], pair[1 - first]))
    widths = {c.problem.dims["D"] for c in checks}
    assert len(widths) >= least
    assert 1024 in widths
    assert all(512 < w <= 1024 and w % 16 == 0 for w in widths)
    assert len({c.problem.dims["R"] for c in checks}) > 3
    assert sum(bool(c.special) for c in checks) == 1


def test_what_is_written_in_place_has_no_elements_that_are_one() -> None:
    rows, columns = dims("R D")
    tensors = (Tensor("x", (rows, columns), inout=True), Tensor("w", (columns,)))
    op = make_operator(extents="R D", tensors=tensors)
    strides = [c.problem.strides for c in derived_checks(op)]
    assert any(0 in s.get("w", ()) for s in strides)
    assert any(min(s.get("x", (1,))) < 0 for s in strides)
    assert not any(0 in s.get("x", ()) for s in strides)
