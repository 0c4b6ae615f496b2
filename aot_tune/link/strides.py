"""The normal form of strides and their classes, as the runtime computes them at a call."""

from __future__ import annotations

from collections.abc import Sequence

from aot_tune.link.checks import MAX_RANK

__all__ = ["canonical_strides", "stride_class"]


def canonical_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides with those of axes of extent 1 replaced, since no element's address depends on them.

    Such an axis gets stride 1 where that makes some axis contiguous (the last such axis), else the stride of a
    row-major tensor. Guards and decision trees then see one form of each layout.
    """
    result = list(strides)
    unit = any(s == 1 and extent != 1 for extent, s in zip(shape, strides, strict=True))
    for axis in reversed(range(len(result))):
        if shape[axis] != 1:
            continue
        if not unit or axis == len(result) - 1:
            result[axis] = 1
            unit = True
        else:
            result[axis] = shape[axis + 1] * result[axis + 1]
    return tuple(result)


def stride_class(strides: Sequence[int]) -> int:
    """A number that is equal for tensors whose axes run in one order and whose fastest axis is alike contiguous."""
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    code = int(bool(order) and strides[order[-1]] == 1)
    for axis in order:
        code = code * MAX_RANK + axis
    return code
