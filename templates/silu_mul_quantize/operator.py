"""The gate of a SwiGLU layer in 8 bits: rows of silu(gate) * up, quantized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aot_tune.spec import Baseline, Call, Operator, Tensor
from aot_tune.spec.reference import activation

from ..common.quantized_rows import (
    DOCUMENTATION,
    OF_QUANTIZED_ROWS,
    OUT,
    SCALARS,
    SCALE,
    cpu_workload,
    cuda_workload,
    quantized,
    quantized_kernels,
    torch_quantized,
)
from ..common.row_kernels import D, R

AXES = {"gate": 1, "up": 1, "out": 1}


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition."""
    return quantized(xp, activation(xp, "silu", call.gate) * call.up, call)


def torch_silu_mul_quantize(torch: Any, call: Call) -> Callable[[], object]:
    """In eager mode, in f32 as the operator."""
    silu, quantize = torch.nn.functional.silu, torch_quantized(torch, call)
    return lambda: quantize(silu(call.gate.float()) * call.up)


operator = Operator(
    name="silu_mul_quantize",
    documentation="y = silu(gate) * up. " + DOCUMENTATION.format(y="y"),
    tensors=(Tensor("gate", (R, D), "T"), Tensor("up", (R, D), "T"), OUT, SCALE),
    scalars=SCALARS,
    reference=reference,
    flops=8 * R * D,
    workload={"cpu": cpu_workload(), "cuda": cuda_workload(14336, 2048, 18944)},
    baselines=(Baseline("torch.silu_mul_quantize", "torch", torch_silu_mul_quantize),),
    kernels=quantized_kernels("silu_mul_quantize", AXES),
    **OF_QUANTIZED_ROWS,
)
