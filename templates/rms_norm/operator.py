"""Root-mean-square norm with an optional residual that is added first and written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aot_tune.spec import (
    Baseline,
    Call,
    Kernel,
    Operator,
    Parameter,
    Problem,
    Scalar,
    Tensor,
    dims,
    parameter,
    present,
    problem,
    stride,
    target,
)

R, D = dims("R D")

# The kernels read and write whole vectors along the rows.
UNIT_STRIDES = (
    stride("x", 1) == 1,
    stride("weight", 0) == 1,
    stride("residual", 1) == 1,
    stride("out", 1) == 1,
    stride("residual_out", 1) == 1,
)
# Elements: streaming stores have nothing to offer where the output stays in a cache.
BEYOND_L2 = (R * D >= 262144,)


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition (Zhang and Sennrich, arXiv:1910.07467)."""
    total = call.x if call.residual is None else call.x + call.residual
    scale = xp.sqrt(xp.mean(total * total, axis=-1, keepdims=True) + call.eps)
    return {"out": total / scale * call.weight, "residual_out": total}


def torch_rms_norm(torch: Any, call: Call) -> Callable[[], object]:
    """torch's norm, then a copy into the output: it has no `.out` form."""
    norm, width = torch.nn.functional.rms_norm, call.x.shape[-1:]
    return lambda: call.out.copy_(norm(call.x, width, call.weight, call.eps))


def workload() -> tuple[Problem, ...]:
    """Llama-3-8B's norm, plain and with the residual that its blocks add."""
    plain = [problem(R=r, D=4096) for r in (1, 16, 256, 1024, 4096)]
    fused = [problem(R=r, D=4096, present=["residual", "residual_out"]) for r in (1, 16, 64, 256, 1024, 2048)]
    return (*plain, *fused)


operator = Operator(
    name="rms_norm",
    documentation="s = x + residual; residual_out = s; out = s / sqrt(mean(s^2) + eps) * weight, over the last dim.",
    dims=("R", "D"),
    tensors=(
        Tensor("x", (R, D)),
        Tensor("weight", (D,)),
        Tensor("residual", (R, D), optional=True),
        Tensor("out", (R, D), output=True),
        Tensor("residual_out", (R, D), output=True, optional=True),
    ),
    scalars=(Scalar("eps", "f32", 1e-5),),
    reference=reference,
    flops=4 * R * D + present("residual") * R * D,
    workload=workload(),
    baselines=(Baseline("torch.rms_norm", "torch", torch_rms_norm, supports=lambda p: "residual" not in p.present),),
    kernels=(
        Kernel("generic", "rms_norm/generic.cpp.j2", generic=True),
        Kernel(
            "rows",
            "rms_norm/rows.cpp.j2",
            parameters=(
                Parameter("W", (4, 8, 16)),
                Parameter("UNROLL", (2, 4, 8)),
                Parameter("SERIAL_BELOW", (8192, 65536)),
            ),
            constraints=(parameter("W") * 4 == target("vector_bytes"),),
            requires=UNIT_STRIDES,
            order=({"UNROLL": 4, "SERIAL_BELOW": 8192},),
        ),
        Kernel(
            "streaming",
            "rms_norm/streaming.cpp.j2",
            parameters=(
                Parameter("W", (4, 8, 16)),
                Parameter("UNROLL", (4, 8)),
                Parameter("PREFETCH", (0, 2048)),
            ),
            constraints=(parameter("W") * 4 == target("vector_bytes"),),
            requires=UNIT_STRIDES,
            worthwhile=BEYOND_L2,
            order=({"UNROLL": 4, "PREFETCH": 2048},),
        ),
    ),
)
