"""Rows to 8 bits: each group of columns divided by a scale that its largest magnitude gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aot_tune.spec import Baseline, Call, Operator, Tensor

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

AXES = {"x": 1, "out": 1}


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition."""
    return quantized(xp, call.x, call)


def torch_quantize(torch: Any, call: Call) -> Callable[[], object]:
    """In eager mode."""
    quantize = torch_quantized(torch, call)
    return lambda: quantize(call.x.float())


operator = Operator(
    name="quantize_rows",
    documentation=DOCUMENTATION.format(y="x"),
    tensors=(Tensor("x", (R, D), "T"), OUT, SCALE),
    scalars=SCALARS,
    reference=reference,
    flops=3 * R * D,
    workload={"cpu": cpu_workload(), "cuda": cuda_workload(4096, 7168, 14336)},
    baselines=(Baseline("torch.quantize_rows", "torch", torch_quantize),),
    kernels=quantized_kernels("quantize_rows", AXES),
    **OF_QUANTIZED_ROWS,
)
