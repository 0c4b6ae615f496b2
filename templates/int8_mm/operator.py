"""Matrix product with an 8-bit weight."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import (
    Call,
    IntegerSums,
    Kernel,
    Operator,
    Tensor,
    alignment,
    integers,
    maximum,
    stride,
)

from ..common.weight_only import products as shared
from ..common.weight_only.products import K, N


def weight(xp: Any, call: Call) -> Any:
    """The weight [K, N]."""
    del xp
    return shared.scaled(call.w, call.scales)


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """Dequantise, multiply."""
    return shared.product(xp, call, weight(xp, call))


operator = Operator(
    name="int8_mm",
    documentation=(
        "out = a @ w + bias, w [K, N] of 8 bits, symmetric: an element is w * scale, of group k // (K / G). With G = 1 "
        "each column has one scale. Scales have a's dtype.\n"
        "w may have any strides. Linear layers keep it as [N, K], as torch._weight_int8pack_mm takes it: pass w.t(), "
        "and for scales of shape [N] scales.view(1, N)." + shared.ROUNDED
    ),
    tensors=(
        shared.A,
        Tensor("w", (K, N), "i8", values=integers(-128, 128), cold=True),
        shared.SCALES,
        shared.BIAS,
        shared.OUT,
    ),
    legal=shared.GROUPS,
    reference=reference,
    exact=IntegerSums(128 * K, thinned="a"),
    values={"G": (1, maximum(K // 128, 1))},
    expected=shared.EXPECTED,
    workload=shared.workload(order={"w": (1, 0)}),
    checks=shared.checks("w", (1, 528)),
    baselines=shared.baselines(weight),
    kernels=(
        *shared.kernels(
            "w",
            "int8",
            step=64,
            thin_requires=(stride("w", 0) == 1, stride("w", 1) % 16 == 0, alignment("w") >= 16),
        ),
        Kernel("rows", "int8_mm/rows.cpp.j2", requires=(stride("a", 1) == 1, stride("w", 0) == 1)),
    ),
    **shared.OF_PRODUCTS,
)
