"""The products of `grouped_gemm` in f8, with a scale for 128 elements of each row and for each block of 128 x 128."""

from __future__ import annotations

from ..grouped_gemm.family import grouped

operator = grouped(
    "grouped_scaled_mm",
    """out[rows of e] = dequantised(a[rows of e]) @ dequantised(b[e]) for each expert e: `ends` is as in `grouped_gemm`.

An element of `a` is multiplied by scale_a[row, k // 128], one of b[e] by scale_b[e, k // 128, n // 128].""",
    scaled=True,
)
