"""An operator of rows with a Triton function, and what it declares."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import (
    Declarations,
    Kernel,
    KernelParameter,
    Operator,
    Target,
    Tensor,
    TritonFunction,
    dims,
    next_power_of_2,
    problem,
    stride,
)

R, D = dims("R D")
SM90 = Target(name="cuda-sm_90a", family="cuda", level=90, last=90)
MI300 = Target(name="hip-gfx942", family="hip", level=942)


def parameter(name: str, **given: Any) -> KernelParameter:
    return KernelParameter(name=name, **given)


INSPECTION = Declarations(
    parameters=(
        parameter("x_ptr"),
        parameter("bias_ptr"),
        parameter("y_ptr"),
        parameter("x_row"),
        parameter("rows", special=False),
        parameter("n_cols"),
        parameter("BLOCK", constexpr=True),
        parameter("SPLIT", constexpr=True, has_default=True, default=2),
    ),
    configs=({"num_warps": 4, "maxnreg": None}, {"num_warps": 8, "maxnreg": None}),
    digest="0" * 64,
)
ARGUMENTS = {
    "x_ptr": "x",
    "bias_ptr": "bias",
    "y_ptr": "y",
    "x_row": stride("x", 0),
    "rows": R,
    "n_cols": D,
    "BLOCK": next_power_of_2(D),
}


def operator(arguments: dict[str, Any] | None = None, inspection: Declarations = INSPECTION, **given: Any) -> Operator:
    function = TritonFunction("rows.py:rows", arguments or ARGUMENTS, grid=(R,))
    function = function.inspected({SM90.name: inspection, MI300.name: inspection})
    kernels = (
        Kernel("generic", "rows/generic.cpp.j2", generic=True),
        Kernel("rows", backend="triton", triton=function, requires=(stride("x", 1) == 1,), **given),
    )
    return Operator(
        name="rows",
        dims=("R", "D"),
        tensors=(
            Tensor("x", (R, D), "bf16"),
            Tensor("bias", (D,), "bf16", optional=True),
            Tensor("y", (R, D), "bf16", output=True),
        ),
        reference=lambda xp, call: {"y": call.x},
        flops=R * D,
        workload=(problem(R=4, D=1000), problem(R=1, D=1024), problem(R=4, D=1024, present=("bias",))),
        kernels=kernels,
    )
