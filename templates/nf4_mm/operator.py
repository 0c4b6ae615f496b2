"""Matrix product with a weight in bitsandbytes' nf4."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import Call, Operator, Tensor, alignment, integers, maximum, stride, uniform

from ..common.weight_only import products as shared
from ..common.weight_only.products import G, K, N

VALUES = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


def weight(xp: Any, call: Call) -> Any:
    """The weight [K, N]: of each byte two elements along K, the first in the higher bits."""
    codes = xp.reshape(xp.stack([call.w >> 4, call.w & 15], axis=2), (call.w.shape[0], -1))
    values = xp.zeros_like(codes, dtype=call.absmax.dtype)
    for code, value in enumerate(VALUES):
        values = xp.where(codes == code, value, values)
    return shared.scaled(values.T, call.absmax.T)


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """Unpack, dequantise, multiply."""
    return shared.product(xp, call, weight(xp, call))


operator = Operator(
    name="nf4_mm",
    documentation=(
        "out = a @ w.T + bias, w [N, K] in bitsandbytes' nf4 (quantize_4bit, quant_type nf4), where a byte holds two "
        "neighbours along K, the first one in its higher bits, and absmax has a value for each K / G elements.\n"
        "bitsandbytes keeps both flat: pass weight.view(N, K // 2) and absmax.view(N, K // 64). K must be whole "
        "blocks, of 64 in bitsandbytes. Dequantise a nested absmax (compress_statistics) first." + shared.ROUNDED
    ),
    tensors=(
        shared.A,
        Tensor("w", (N, K // 2), "u8", values=integers(0, 256), cold=True),
        Tensor("absmax", (N, G), "f32", values=uniform(0.25, 1.0)),
        shared.BIAS,
        shared.OUT,
    ),
    legal=(*shared.GROUPS, K // maximum(G, 1) % 2 == 0),
    reference=reference,
    values={"G": (maximum(K // 64, 1),)},
    expected=(K % 64 == 0,),
    workload=shared.workload(64),
    checks=shared.checks("w", (264, 1)),
    baselines=shared.baselines(weight),
    kernels=shared.kernels(
        "w",
        "nf4",
        scales="absmax",
        step=64,
        thin_requires=(K % 128 == 0, stride("w", 1) == 1, stride("w", 0) % 8 == 0, alignment("w") >= 8),
    ),
    **shared.OF_PRODUCTS,
)
