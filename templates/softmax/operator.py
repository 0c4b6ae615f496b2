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
    target,
)

R, D = dims("R D")

# The kernels read and write whole vectors along the rows.
UNIT_STRIDES = (stride("x", 1) == 1, stride("out", 1) == 1)
# Elements: ordinary stores read the output first, which streaming ones do not; it shows where no cache holds it.
WITHIN_REACH = (R * D < 4194304,)
# Elements: streaming stores have nothing to offer where the output stays in a cache.
BEYOND_L2 = (R * D >= 262144,)


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
            (1, 1024),
            (1, 32000),
            (1, 128256),
            (16, 32000),
            (64, 128),
            (256, 1024),
            (192, 512),
            (1024, 1024),
            (1024, 4096),
            (8192, 1024),
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
                Parameter("ROWS", (1, 2, 4)),
                Parameter("UNROLL", (1, 2, 4)),
                Parameter("METHOD", ("stored", "recompute", "online")),
                Parameter("SERIAL_BELOW", (8192, 65536)),
            ),
            constraints=(
                parameter("W") * 4 == target("vector_bytes"),
                parameter("ROWS") * parameter("UNROLL") == 4,
                (parameter("METHOD") == 0) | ((parameter("ROWS") == 1) & (parameter("SERIAL_BELOW") == 8192)),
            ),
            worthwhile=WITHIN_REACH,
            requires=UNIT_STRIDES,
            order=(
                {"ROWS": 4, "METHOD": "stored", "SERIAL_BELOW": 8192},
                {"ROWS": 1, "METHOD": "stored", "SERIAL_BELOW": 8192},
            ),
        ),
        Kernel(
            "streaming",
            "softmax/streaming.cpp.j2",
            parameters=(
                Parameter("W", (4, 8, 16)),
                Parameter("UNROLL", (2, 4)),
                Parameter("METHOD", ("buffered", "recompute", "online")),
                Parameter("PREFETCH", (0, 2048)),
            ),
            constraints=(
                parameter("W") * 4 == target("vector_bytes"),
                (parameter("METHOD") == 0) | ((parameter("UNROLL") == 4) & (parameter("PREFETCH") == 2048)),
            ),
            requires=UNIT_STRIDES,
            worthwhile=BEYOND_L2,
            order=(
                {"UNROLL": 4, "METHOD": "buffered", "PREFETCH": 2048},
                {"UNROLL": 4, "METHOD": "recompute", "PREFETCH": 2048},
            ),
        ),
    ),
)
