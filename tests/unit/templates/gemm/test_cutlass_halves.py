"""TF32 products by f16: where they are tried. Whether they are right a GPU says."""

from __future__ import annotations

import pytest
from gemm_on_host import HOPPER, OPERATORS, TARGET

from aot_tune.spec import all_of, problem

pytestmark = pytest.mark.slow

GEMM = OPERATORS["gemm"]
KERNEL = GEMM.kernel("cutlass_tf32_halves")


def test_it_is_taken_for_tf32_alone() -> None:
    for math, taken in (("ieee", False), ("tf32", True)):
        call = problem(M=512, N=512, K=512, dtypes={"T": "f32"}, order={"b": (1, 0)}, attributes={"math": math})
        assert all_of(KERNEL.requires, GEMM.facts(call)) == taken


def test_it_is_tried_where_products_are_large() -> None:
    """Of the workload's TF32 products those of 1024 rows and more: below, making halves costs more than f16 saves."""
    calls = [p for p in GEMM.workload_for("cuda") if p.attributes.get("math") == "tf32"]
    worth = {p.dims["M"] for p in calls if all_of(KERNEL.worthwhile, GEMM.facts(p))}
    assert worth == {1024, 4096}
    assert {p.dims["M"] for p in calls} == {1, 16, 64, 256} | worth


def test_elsewhere_there_is_none() -> None:
    assert len(list(KERNEL.configs(HOPPER.facts))) == len(KERNEL.order)
    assert not any(list(KERNEL.configs(t.facts)) for name, t in TARGET.items() if name != HOPPER.name)
