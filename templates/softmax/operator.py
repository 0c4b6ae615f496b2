"""Softmax over the last dim."""

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
    normal,
    parameter,
    problem,
    stride,
)
from aot_tune.spec.expr import target

R, D = dims("R D")


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition, shifted by the row's maximum."""
    shifted = xp.exp(call.x - xp.max(call.x, axis=-1, keepdims=True))
    return {"out": shifted / xp.sum(shifted, axis=-1, keepdims=True)}


def torch_softmax(torch: Any, call: Call) -> Callable[[], object]:
    """torch's softmax into the output."""
    return lambda: torch.softmax(call.x, -1, out=call.out)


operator = Operator(
    name="softmax",
    documentation="out[r, :] = exp(x[r, :] - max) / sum: softmax over the last dim.",
    dims=("R", "D"),
    tensors=(Tensor("x", (R, D), values=normal(4.0)), Tensor("out", (R, D), output=True)),
    reference=reference,
    flops=5 * R * D,
    workload=tuple(
        problem(R=r, D=d)
        for r, d in (
            (1, 1024), (1, 32000), (1, 128256), (16, 32000), (64, 128), (256, 1024), (192, 512), (1024, 1024), (1024, 4096),
        )
    ),
    baselines=(Baseline("torch.softmax", "torch", torch_softmax),),
    kernels=(
        Kernel("generic", "softmax/generic.cpp.j2", generic=True),
        Kernel(
            "rows",
            "softmax/rows.cpp.j2",
            parameters=(
                Parameter("W", (4, 8, 16)),
                Parameter("UNROLL", (2, 4)),
                Parameter("METHOD", ("online", "recompute", "stored")),
                Parameter("STREAM", (False, True)),
                Parameter("PREFETCH", (0, 2048)),
                Parameter("SERIAL_BELOW", (16384,)),
            ),
            constraints=(parameter("W") * 4 == target("vector_bytes"), (parameter("METHOD") != 2) | (parameter("STREAM") == 0)),
            requires=(stride("x", 1) == 1, stride("out", 1) == 1),
        ),
    ),
)
