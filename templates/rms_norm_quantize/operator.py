"""Root-mean-square norm in 8 bits, with or without a weight, and a residual that is added first and written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aot_tune.spec import Baseline, Call, Operator, Scalar, Tensor, present, problem

from ..common.quantized_rows import (
    CHECKS,
    DOCUMENTATION,
    OF_QUANTIZED_ROWS,
    OUT,
    SCALARS,
    SCALE,
    WHOLE,
    cpu_workload,
    cuda_workload,
    quantized,
    quantized_kernels,
    torch_quantized,
)
from ..common.row_kernels import D, R

AXES = {"x": 1, "weight": 0, "residual": 1, "out": 1, "residual_out": 1}


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition. What is quantized is not rounded before."""
    total = call.x if call.residual is None else call.x + call.residual
    normal = total / xp.sqrt(xp.mean(total * total, axis=-1, keepdims=True) + call.eps)
    return {**quantized(xp, normal if call.weight is None else normal * call.weight, call), "residual_out": total}


def torch_rms_norm_quantize(torch: Any, call: Call) -> Callable[[], object]:
    """In eager mode, in f32 as the operator."""
    norm, width, quantize = torch.nn.functional.rms_norm, call.x.shape[-1:], torch_quantized(torch, call)
    weight = None if call.weight is None else call.weight.float()

    def run() -> None:
        total = call.x.float() if call.residual is None else call.x.float() + call.residual
        if call.residual_out is not None:
            call.residual_out.copy_(total)
        quantize(norm(total, width, weight, call.eps))

    return run


FUSED = ("weight", "residual", "residual_out")

operator = Operator(
    name="rms_norm_quantize",
    documentation="s = x + residual; residual_out = s; y = s / sqrt(mean(s^2) + eps) * weight, over the last dim. "
    "A weight or a residual that is not passed is left out. " + DOCUMENTATION.format(y="y"),
    tensors=(
        Tensor("x", (R, D), "T"),
        Tensor("weight", (D,), "T", optional=True),
        Tensor("residual", (R, D), "T", optional=True),
        OUT,
        SCALE,
        Tensor("residual_out", (R, D), "T", output=True, optional=True, may_alias=("residual",)),
    ),
    scalars=(Scalar("eps", default=1e-5, other=0.25), *SCALARS),
    reference=reference,
    flops=7 * R * D + present("residual") * R * D,
    workload={
        "cpu": cpu_workload(present=FUSED),
        "cuda": (
            *cuda_workload(4096, 7168, present=["weight"], forms=False),
            *cuda_workload(4096, 8192, present=FUSED),
        ),
    },
    baselines=(Baseline("torch.rms_norm_quantize", "torch", torch_rms_norm_quantize),),
    kernels=quantized_kernels("rms_norm_quantize", AXES, whole=True),
    **{**OF_QUANTIZED_ROWS, "checks": (*CHECKS, problem(R=3, D=40008, GROUP=WHOLE, present=FUSED))},
)
