"""The normal form of strides, as the runtime computes it at a call."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["canonical_strides", "row_major"]


def canonical_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides with replacements for axes of extent 1, because no element's address depends on these.

    If this makes some axis contiguous, the last such axis gets stride 1. All others get the stride of a row-major
    tensor. So guards and decision trees see one form of each layout.
    """
    if 1 not in shape:
        return tuple(strides)
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


def row_major(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Strides in elements of a dense tensor. `order` lists its axes from slowest to fastest."""
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(order if order is not None else range(len(shape))):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)
