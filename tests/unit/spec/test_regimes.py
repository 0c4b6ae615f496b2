"""Regimes of calls: those that are declared, those that guards of kernels imply, and the extents that each may have."""

import dataclasses
from typing import Any

from bundled import OPERATORS
from hypothesis import given
from hypothesis import strategies as st

from aot_tune.spec import Expr, Kernel, Operator, Tensor, dims, problem
from aot_tune.spec.regimes import OTHER, extents_of_regime, range_of, regime_of, regimes_of

M, N = dims("M N")


def operator(*guards: tuple[Expr, ...], **fields: Any) -> Operator:
    kernels = tuple(Kernel(f"k{i}", "k.j2", requires=g) for i, g in enumerate(guards))
    return Operator(
        name="scale",
        dims=("M", "N"),
        tensors=(Tensor("x", (M, N)), Tensor("out", (M, N), output=True)),
        reference=lambda _, call: {"out": call.x},
        flops=M * N,
        workload=(problem(M=3, N=50), problem(M=3000, N=50)),
        kernels=(Kernel("generic", "g.j2", generic=True), *kernels),
        **fields,
    )


def names(op: Operator) -> list[str]:
    return [name for name, _ in regimes_of(op)]


def test_a_call_is_of_the_first_regime_that_holds_or_of_none() -> None:
    op = operator(regimes={"one": (M == 1,), "few": (M <= 8, N <= 64), "tall": (M > 8,)})
    calls = [(1, 100), (8, 64), (8, 65), (9, 1)]
    assert [regime_of(op, {"M": m, "N": n}) for m, n in calls] == ["one", "few", OTHER, "tall"]


def test_thresholds_of_dims_in_guards_imply_regimes_and_those_of_most_kernels_count() -> None:
    assert names(operator((M == 1,))) == ["M = 1", "M >= 2"]
    assert names(operator((N % 8 == 0, M * N > 5))) == []
    assert names(operator((M < 2**31, N > 0))) == []  # no caller has more, or fewer
    near = [(M <= 64,), (M > 64,), (M >= 80,), ((M > 1000) & (N >= 64),)]
    assert names(operator(*near)) == ["M <= 64", "M <= 1000", "M >= 1001"]
    assert names(operator((M <= 64,), (N <= 64,))) == [
        "M <= 64, N <= 64", "M <= 64, N >= 65", "M >= 65, N <= 64", "M >= 65, N >= 65"
    ]  # fmt: skip
    assert len(names(operator(*[(n <= 2**i,) for i in range(12) for n in (M, N)]))) == 4


@given(
    st.sampled_from([*OPERATORS.values(), *(dataclasses.replace(o, regimes={}) for o in OPERATORS.values())]), st.data()
)
def test_every_call_of_a_regime_has_extents_that_it_may_have(op: Operator, data: st.DataObject) -> None:
    given_problem = data.draw(st.sampled_from(op.workload_for("cuda")))
    between = {d: range_of(op, d, op.workload_for("cuda")) for d in op.dims}
    extents = {d: data.draw(st.integers(*between[d])) for d in op.dims}
    regime = regime_of(op, {**op.facts(given_problem), **extents})
    for d, n in extents.items():
        least, most = extents_of_regime(op, regime, d, between[d])
        assert least <= n <= most
