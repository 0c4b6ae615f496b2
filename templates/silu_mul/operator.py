"""The gate of a SwiGLU layer: out = silu(gate) * up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aot_tune.spec import (
    Baseline,
    Call,
    Kernel,
    Operator,
    Parameter,
    Tensor,
    dims,
    parameter,
    problem,
    stride,
    target,
)
from aot_tune.spec.reference import activation

R, D = dims("R D")

# The kernels read and write whole vectors along the rows.
UNIT_STRIDES = (stride("gate", 1) == 1, stride("up", 1) == 1, stride("out", 1) == 1)
# Elements: streaming stores have nothing to offer where the output stays in a cache.
BEYOND_L2 = (R * D >= 262144,)


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition (Shazeer, arXiv:2002.05202)."""
    return {"out": activation(xp, "silu", call.gate) * call.up}


def torch_silu_mul(torch: Any, call: Call) -> Callable[[], object]:
    """torch's two calls, both through their `.out` forms."""
    silu, mul = torch.ops.aten.silu.out, torch.mul

    def run() -> None:
        silu(call.gate, out=call.out)
        mul(call.out, call.up, out=call.out)

    return run


operator = Operator(
    name="silu_mul",
    documentation="out = silu(gate) * up, element by element.",
    dims=("R", "D"),
    tensors=(Tensor("gate", (R, D)), Tensor("up", (R, D)), Tensor("out", (R, D), output=True)),
    reference=reference,
    flops=5 * R * D,
    workload=tuple(problem(R=r, D=d) for r, d in ((1, 14336), (16, 14336), (64, 14336), (256, 14336), (1024, 14336))),
    baselines=(Baseline("torch.silu_mul", "torch", torch_silu_mul),),
    kernels=(
        Kernel("generic", "silu_mul/generic.cpp.j2", generic=True),
        Kernel(
            "rows",
            "silu_mul/rows.cpp.j2",
            parameters=(
                Parameter("W", (4, 8, 16)),
                Parameter("UNROLL", (1, 2, 4)),
                Parameter("SERIAL_BELOW", (8192, 65536)),
            ),
            constraints=(parameter("W") * 4 == target("vector_bytes"),),
            requires=UNIT_STRIDES,
            order=({"UNROLL": 4, "SERIAL_BELOW": 8192},),
        ),
        Kernel(
            "streaming",
            "silu_mul/streaming.cpp.j2",
            parameters=(
                Parameter("W", (4, 8, 16)),
                Parameter("UNROLL", (2, 4)),
                Parameter("PREFETCH", (0, 2048)),
            ),
            constraints=(
                parameter("W") * 4 <= target("vector_bytes"),
                parameter("W") * 8 >= target("vector_bytes"),
                (parameter("W") * 4 == target("vector_bytes"))
                | ((parameter("UNROLL") == 4) & (parameter("PREFETCH") == 0)),
            ),
            requires=UNIT_STRIDES,
            worthwhile=BEYOND_L2,
            order=({"UNROLL": 4, "PREFETCH": 0},),
        ),
    ),
)
