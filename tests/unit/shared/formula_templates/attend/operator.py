"""Attention with scores of an author's own: limited by tanh, sloped by distance, and of no later keys."""

from __future__ import annotations

import math
from typing import Any

from aot_tune.spec import (
    Call,
    Fragment,
    Kernel,
    Operator,
    Scalar,
    Tensor,
    TritonFunction,
    ceildiv,
    dim,
    dims,
    fragment,
    problem,
    stride,
)
from aot_tune.spec import elementwise as el

B, H, Q, K, D = dims("B H Q K D")
x, limit = el.value(), el.scalar("limit")
BEHIND = el.index("q") + (K - Q) - el.index("k")


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition."""
    scores = call.fragment("score", xp.matmul(call.query, xp.permute_dims(call.key, (0, 1, 3, 2))))
    weights = xp.exp(scores - xp.max(scores, axis=3, keepdims=True))
    return {"out": xp.matmul(weights / xp.sum(weights, axis=3, keepdims=True), call.value)}


operator = Operator(
    name="attend",
    dims=("B", "H", "Q", "K", "D"),
    tensors=(
        Tensor("query", (B, H, Q, D)),
        Tensor("key", (B, H, K, D)),
        Tensor("value", (B, H, K, D)),
        Tensor("slopes", (H,)),
        Tensor("out", (B, H, Q, D), output=True),
    ),
    scalars=(Scalar("limit", default=2.5),),
    legal=(dim("K") >= dim("Q"), *(stride(t, 3) == 1 for t in ("query", "key", "value", "out"))),
    fragments={
        "score": Fragment(
            {"b": B, "h": H, "q": Q, "k": K},
            el.where(BEHIND < 0, -math.inf, limit * el.tanh(x / limit) - el.element("slopes", "h") * BEHIND),
        )
    },
    reference=reference,
    flops=4 * B * H * Q * K * D,
    workload=(problem(B=2, H=3, Q=37, K=50, D=16),),
    kernels=(
        Kernel("generic", "attend/generic.cpp.j2", generic=True),
        Kernel(
            "blocks",
            backend="triton",
            triton=TritonFunction(
                "triton_functions/attend.py:attend",
                {
                    **{f"stride_{t}_{a}": stride(t, a) for t in ("query", "key", "value", "out") for a in range(3)},
                    "stride_slopes_0": stride("slopes", 0),
                    "score": fragment("score"),
                },
                grid=(ceildiv(Q, 16), B * H),
            ),
            listed=({"BM": 16, "BN": 16},),
        ),
    ),
)
