"""Products of rows that lie expert after expert, as in a mixture of experts: a's rows of expert e by b[e]."""

from __future__ import annotations

from .family import grouped

operator = grouped(
    "grouped_gemm",
    """out[ends[e - 1] : ends[e]] = a[ends[e - 1] : ends[e]] @ b[e] for each expert e, with ends[-1] = 0.

`ends` stays on the device, as the `offs` of torch._grouped_mm. Experts may have no rows. Rows of `out` from the last
end on are 0. An end below an earlier one counts as the largest earlier one, one beyond the rows as their number.""",
)
