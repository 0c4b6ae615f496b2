"""Matrix product with a 4-bit weight in GPTQ's format."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import Attribute, Call, IntegerSums, Operator, Tensor, alignment, integers, stride

from ..common.weight_only import products as shared
from ..common.weight_only.products import G, K, N


def weight(xp: Any, call: Call) -> Any:
    """The weight [K, N]: of each word eight elements along K, the first in the lowest bits."""
    nibbles = range(0, 32, 4)
    codes = xp.reshape(xp.stack([(call.qweight >> s) & 15 for s in nibbles], axis=1), (-1, call.scales.shape[1]))
    zeros = xp.reshape(xp.stack([(call.qzeros >> s) & 15 for s in nibbles], axis=2), call.scales.shape)
    if call.checkpoint == "gptq":
        zeros = (zeros + 1) & 15
    return shared.scaled(codes, call.scales, zeros)


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """Unpack, dequantise, multiply."""
    return shared.product(xp, call, weight(xp, call))


operator = Operator(
    name="gptq_mm",
    documentation=(
        "out = a @ w + bias, w of 4 bits as AutoGPTQ and GPTQModel store it (qlinear's pack and dequantize_weight).\n"
        "A word of qweight holds 8 elements of a column, the first one in its lowest bits; a word of qzeros holds the "
        "zeros of 8 columns. w = (code - zero) * scale, of group k // (K / G).\n"
        "checkpoint: `gptq` files store each zero less 1, modulo 16; `gptq_v2` files, and a layer that GPTQModel has "
        "loaded, store it as it is. Scales have a's dtype.\n"
        "Groups must be in order (desc_act=False: g_idx rises evenly). Otherwise sort the columns of a, and the "
        "elements of w along K, by g_idx first." + shared.ROUNDED
    ),
    tensors=(
        shared.A,
        Tensor("qweight", (K // 8, N), "i32", values=integers(-(2**31), 2**31), cold=True),
        shared.SCALES,
        Tensor("qzeros", (G, N // 8), "i32", values=integers(-(2**31), 2**31)),
        shared.BIAS,
        shared.OUT,
    ),
    attributes=(Attribute("checkpoint", ("gptq", "gptq_v2")),),
    legal=(K % 8 == 0, N % 8 == 0, *shared.GROUPS),
    reference=reference,
    exact=IntegerSums(15 * K, thinned="a"),  # codes less zeros are up to 15
    values=shared.VALUES,
    expected=shared.EXPECTED,
    workload=shared.workload(128),
    checks=shared.checks("qweight", (200, 1)),
    baselines=shared.baselines(weight),
    kernels=shared.kernels(
        "qweight",
        "gptq",
        zeros="qzeros",
        step=128,
        thin_requires=(
            stride("qweight", 1) == 1,
            stride("qweight", 0) % 4 == 0,
            alignment("qweight") >= 16,
            stride("scales", 1) == 1,
            stride("scales", 0) % 4 == 0,
            alignment("scales") >= 8,
            stride("qzeros", 1) == 1,
        ),
    ),
    **shared.OF_PRODUCTS,
)
