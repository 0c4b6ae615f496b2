"""Matrix product with a 4-bit weight in AWQ's format."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import Call, IntegerSums, Operator, Tensor, alignment, integers, parameter, stride, table

from ..common.weight_only import products as shared
from ..common.weight_only.products import G, K, N

BITS = (0, 16, 4, 20, 8, 24, 12, 28)
"""Where a word has the code of each of its eight columns."""


def weight(xp: Any, call: Call) -> Any:
    """The weight [K, N]."""
    width = call.scales.shape[1]
    codes, zeros = (
        xp.reshape(xp.stack([(words >> s) & 15 for s in BITS], axis=2), (-1, width))
        for words in (call.qweight, call.qzeros)
    )
    return shared.scaled(codes, call.scales, zeros)


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """Unpack, dequantise, multiply."""
    return shared.product(xp, call, weight(xp, call))


THIN = table(
    "TILES WARPS SPLIT WIDTH",
    (1, 8, 1, 64),
    (1, 8, 2, 64),
    (1, 8, 4, 64),
    (1, 4, 8, 64),
    (1, 4, 8, 128),
    (2, 8, 1, 64),
    (2, 4, 4, 64),
    (2, 4, 8, 64),
)

operator = Operator(
    name="awq_mm",
    documentation=(
        "out = a @ w + bias, w of 4 bits as AutoAWQ stores it for its `gemm` version (WQLinear_GEMM.from_linear).\n"
        "A word of qweight holds 8 columns of one row of w, a word of qzeros the zeros of 8 columns. From the lowest "
        "bits on, these are columns 0, 2, 4, 6, 1, 3, 5, 7. w = (code - zero) * scale, of group k // (K / G). Scales "
        "have a's dtype." + shared.ROUNDED
    ),
    tensors=(
        shared.A,
        Tensor("qweight", (K, N // 8), "i32", values=integers(-(2**31), 2**31), cold=True),
        Tensor("qzeros", (G, N // 8), "i32", values=integers(-(2**31), 2**31)),
        shared.SCALES,
        shared.BIAS,
        shared.OUT,
    ),
    legal=(N % 8 == 0, *shared.GROUPS),
    reference=reference,
    exact=IntegerSums(15 * K, thinned="a"),  # codes less zeros are up to 15
    values=shared.VALUES,
    expected=shared.EXPECTED,
    workload=shared.workload(128),
    checks=shared.checks("qweight", (40, 1)),
    baselines=shared.baselines(weight),
    kernels=shared.kernels(
        "qweight",
        "awq",
        zeros="qzeros",
        thin=THIN,
        step=64,
        thin_requires=(
            stride("qweight", 1) == 1,
            (parameter("WIDTH") == 64) | (stride("qweight", 0) % 2 == 0),
            (parameter("WIDTH") == 64) | (alignment("qweight") >= 8),
            stride("scales", 1) == 1,
            stride("scales", 0) % 8 == 0,
            alignment("scales") >= 16,
            stride("qzeros", 1) == 1,
        ),
    ),
    **shared.OF_PRODUCTS,
)
