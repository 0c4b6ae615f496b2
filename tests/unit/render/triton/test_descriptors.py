"""What calls must meet to have a descriptor, and whether all legal ones do, which a generic kernel needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from triton_rows import ARGUMENTS, SM90, operator, parameter

from aot_tune.render import candidate_for, requirements, resolved
from aot_tune.spec import Declarations, Descriptor, Expr, Operator, Tensor, alignment, dim, problem, stride
from aot_tune.support.errors import SpecError

D = dim("D")
OF_ROWS = (stride("y", 1) == 1, stride("y", 0) % 8 == 0, stride("y", 0) > 0)
WHOLE = r"\(\(D % 8\) == 0\)"


def storing(*legal: Expr) -> Operator:
    """With a generic kernel that stores by a descriptor."""
    declared = Declarations(parameters=(parameter("x"), parameter("y")), digest="4" * 64)
    op = operator({"x": "x", "y": Descriptor("y", (1, 64))}, declared)
    return replace(op, workload=(problem(R=4, D=1024),), legal=legal)


@pytest.mark.parametrize(
    ("legal", "needed"),
    [
        ((alignment("y") >= 16, *OF_ROWS, D % 2 == 0), WHOLE),
        ((alignment("y") >= 16, *OF_ROWS, D % 4 == 0), WHOLE),
        ((alignment("y") >= 16, *OF_ROWS, stride("y", 0) >= D), WHOLE),
        ((alignment("y") >= 8, *OF_ROWS, D % 8 == 0), r"alignment\.y >= 16"),
        ((alignment("y") >= 16, *OF_ROWS[:2], D % 8 == 0), r"stride\.y\.0 > 0"),
        ((alignment("y") >= 16, OF_ROWS[0], OF_ROWS[2], D % 8 == 0, stride("y", 0) % 4 == 0), r"stride\.y\.0 \* 2"),
        ((alignment("y") >= 16, OF_ROWS[0], OF_ROWS[2], stride("y", 0) == D), r"stride\.y\.0 \* 2|D % 8"),
    ],
)
def test_calls_that_are_legal_only_in_larger_steps_are_thought_of(legal: tuple[Expr, ...], needed: str) -> None:
    """One element more is not legal there, but others than the workload's are."""
    op = storing(*legal)
    with pytest.raises(SpecError, match=f"is a descriptor, which needs .*{needed}"):
        candidate_for(op, op.kernel("rows"), {}, SM90)


@pytest.mark.parametrize("whole", [8, 16, 128])
def test_where_every_legal_call_has_whole_rows_a_generic_kernel_may_store_by_a_descriptor(whole: int) -> None:
    op = storing(alignment("y") >= 16, *OF_ROWS, D % whole == 0, stride("y", 0) >= D)
    assert candidate_for(op, op.kernel("rows"), {}, SM90).pins == {}


@pytest.mark.parametrize(("element", "whole"), [("bf16", 8), ("f32", 4)])
def test_a_kernel_that_stores_by_a_descriptor_gets_rows_of_whole_16_bytes(element: str, whole: int) -> None:
    """It would write behind other rows: stores by a tensor map end at whole 16 bytes, loads where the tensor does."""

    def guards(tensor: str, *required: Expr) -> list[str]:
        op = operator({**ARGUMENTS, f"{tensor}_ptr": Descriptor(tensor, (1, 64))})
        x, bias, y = op.tensors
        op = replace(op, tensors=(Tensor("x", x.shape, element), bias, Tensor("y", y.shape, element, output=True)))
        kernel = replace(resolved(op.kernel("rows"), SM90.name), requires=required)
        op = replace(op, kernels=(op.kernels[0], kernel))
        candidate = candidate_for(op, kernel, {"num_warps": 4}, SM90, problem(R=4, D=1024))
        return [g.key() for g in requirements(op, candidate) if g.key() in (f"((D % {n}) == 0)" for n in (4, 8, 16))]

    assert guards("y") == [f"((D % {whole}) == 0)"]
    assert guards("x") == []
    for n in (8, 16):  # said once
        assert guards("y", D % n == 0) == [f"((D % {n}) == 0)"]
