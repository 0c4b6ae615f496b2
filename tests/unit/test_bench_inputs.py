"""Values of test tensors."""

from __future__ import annotations

import numpy as np
import pytest

from aot_tune.bench.inputs import draw
from aot_tune.bench.records import Check
from aot_tune.spec import Kernel, Operator, Tensor, dims, problem, uniform

N = dims("N")[0]


@pytest.mark.parametrize(
    ("dtype", "values", "low", "high"),
    [("i64", uniform(0, 5), 0, 4), ("i32", uniform(-3, 3), -3, 2), ("i64", None, -8, 8), ("u8", None, 0, 8)],
)
def test_integers_are_in_their_range_and_reach_both_ends(dtype: str, values: object, low: int, high: int) -> None:
    """Labels, for one, are below the number of classes."""
    op = Operator(
        name="pick",
        dims=("N",),
        tensors=(Tensor("x", (N,), dtype, values=values), Tensor("out", (N,), output=True)),  # type: ignore[arg-type]
        reference=lambda _xp, call: {"out": call.x},
        flops=N,
        workload=(problem(N=4),),
        kernels=(Kernel("generic", "pick/generic.cpp.j2", generic=True),),
    )
    drawn = draw(op, Check(problem=problem(N=4)), op.tensor("x"), 2000, seed=1)
    assert (drawn.min(), drawn.max()) == (low, high)
    assert len(np.unique(drawn)) == high - low + 1
