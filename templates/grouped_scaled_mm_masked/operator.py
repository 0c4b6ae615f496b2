"""The products of `grouped_gemm_masked` in f8, scaled as those of `grouped_scaled_mm`."""

from __future__ import annotations

from ..grouped_gemm.family import grouped

operator = grouped(
    "grouped_scaled_mm_masked",
    """out[e, : counts[e]] = dequantised(a[e, : counts[e]]) @ dequantised(b[e]) for each expert e.

`counts` is as in `grouped_gemm_masked`. An element of `a` is multiplied by scale_a[e, row, k // 128], one of b[e] by
scale_b[e, k // 128, n // 128].""",
    masked=True,
    scaled=True,
)
