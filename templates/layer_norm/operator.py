"""Layer norm over the last dim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aot_tune.spec import (
    Baseline,
    Call,
    Kernel,
    Operator,
    Parameter,
    Scalar,
    Tensor,
    dims,
    parameter,
    problem,
    stride,
    target,
)

R, D = dims("R D")

# The kernels read and write whole vectors along the rows.
UNIT_STRIDES = (stride("x", 1) == 1, stride("weight", 0) == 1, stride("bias", 0) == 1, stride("out", 1) == 1)
# Elements: streaming stores have nothing to offer where the output stays in a cache.
BEYOND_L2 = (R * D >= 262144,)


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition (Ba, Kiros and Hinton, arXiv:1607.06450), with the variance of the centred values."""
    centred = call.x - xp.mean(call.x, axis=-1, keepdims=True)
    variance = xp.mean(centred * centred, axis=-1, keepdims=True)
    return {"out": centred / xp.sqrt(variance + call.eps) * call.weight + call.bias}


def torch_layer_norm(torch: Any, call: Call) -> Callable[[], object]:
    """torch's norm through its `.out` form."""
    rows, width = call.x.shape[0], list(call.x.shape[-1:])
    mean, rstd = torch.empty(rows, 1), torch.empty(rows, 1)
    norm = torch.ops.aten.native_layer_norm.out
    return lambda: norm(call.x, width, call.weight, call.bias, call.eps, out0=call.out, out1=mean, out2=rstd)


operator = Operator(
    name="layer_norm",
    documentation="out = (x - mean) / sqrt(variance + eps) * weight + bias, over the last dim.",
    dims=("R", "D"),
    tensors=(
        Tensor("x", (R, D)),
        Tensor("weight", (D,)),
        Tensor("bias", (D,)),
        Tensor("out", (R, D), output=True),
    ),
    scalars=(Scalar("eps", "f32", 1e-5),),
    reference=reference,
    flops=7 * R * D,
    workload=tuple(
        problem(R=r, D=d)
        for r, d in ((1, 768), (16, 768), (64, 768), (256, 768), (1024, 768), (256, 4096), (1024, 4096), (16384, 768))
    ),
    baselines=(Baseline("torch.layer_norm", "torch", torch_layer_norm),),
    kernels=(
        Kernel("generic", "layer_norm/generic.cpp.j2", generic=True),
        Kernel(
            "rows",
            "layer_norm/rows.cpp.j2",
            parameters=(
                Parameter("W", (4, 8, 16)),
                Parameter("ROWS", (1, 2)),
                Parameter("UNROLL", (2, 4)),
                Parameter("SERIAL_BELOW", (8192, 65536)),
            ),
            constraints=(
                parameter("W") * 4 == target("vector_bytes"),
                parameter("ROWS") * parameter("UNROLL") == 4,
            ),
            requires=UNIT_STRIDES,
            order=({"ROWS": 1, "UNROLL": 4, "SERIAL_BELOW": 8192},),
        ),
        Kernel(
            "streaming",
            "layer_norm/streaming.cpp.j2",
            parameters=(
                Parameter("W", (4, 8, 16)),
                Parameter("ROWS", (1, 2)),
                Parameter("UNROLL", (2, 4)),
                Parameter("PREFETCH", (0, 2048)),
            ),
            constraints=(
                parameter("W") * 4 == target("vector_bytes"),
                parameter("ROWS") * parameter("UNROLL") == 4,
            ),
            requires=UNIT_STRIDES,
            worthwhile=BEYOND_L2,
            order=({"ROWS": 1, "UNROLL": 4, "PREFETCH": 2048},),
        ),
    ),
)
