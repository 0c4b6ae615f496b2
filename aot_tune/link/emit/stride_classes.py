"""The normal form of strides and their classes, as the runtime computes them at a call."""

from __future__ import annotations

from collections.abc import Sequence

from aot_tune.link.check.check_tables import MAX_RANK
from aot_tune.spec.strides import canonical_strides

__all__ = ["canonical_strides", "stride_class"]


def stride_class(strides: Sequence[int]) -> int:
    """Equal numbers mean the same order of axes, and a fastest stride of 1 in both tensors or in neither."""
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    code = int(bool(order) and strides[order[-1]] == 1)
    for axis in order:
        code = code * MAX_RANK + axis
    return code
