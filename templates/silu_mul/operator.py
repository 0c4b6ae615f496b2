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
)
from aot_tune.spec.expr import target
from aot_tune.spec.reference import sigmoid

R, D = dims("R D")


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition (Shazeer, arXiv:2002.05202)."""
    return {"out": call.gate * sigmoid(xp, call.gate) * call.up}


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
                Parameter("UNROLL", (2, 4)),
                Parameter("STREAM", (False, True)),
                Parameter("PREFETCH", (0, 2048)),
                Parameter("SERIAL_BELOW", (16384,)),
            ),
            constraints=(parameter("W") * 4 == target("vector_bytes"),),
            requires=(stride("gate", 1) == 1, stride("up", 1) == 1, stride("out", 1) == 1),
        ),
    ),
)
