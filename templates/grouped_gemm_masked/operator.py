"""Products of the first rows of each expert's room: out[e, :counts[e]] = a[e, :counts[e]] @ b[e]."""

from __future__ import annotations

from ..grouped_gemm.family import grouped

operator = grouped(
    "grouped_gemm_masked",
    """out[e, : counts[e]] = a[e, : counts[e]] @ b[e] for each expert e.

`counts` stays on the device. Other rows of `out` keep what they hold. A count below 0 counts as 0, and one beyond the
room as the room.""",
    masked=True,
)
