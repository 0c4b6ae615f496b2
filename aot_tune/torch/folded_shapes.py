"""Whether the leading dims of tensors are already one axis, as operators take them. All may be symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["is_one", "known_same"]


def known_same(one: Any, other: Any) -> bool:
    """Whether two sizes are equal. If only a run can tell, they are assumed to be equal."""
    from torch.fx.experimental.symbolic_shapes import guard_or_true

    return bool(guard_or_true(one == other))


def is_one(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether one stride leads through all elements of these axes."""
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    if any(guard_or_false(size == 0) for size in sizes):
        return True
    step: Any = None
    elements: Any = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if guard_or_false(size == 1):
            continue
        if step is not None and not known_same(stride, step * elements):
            return False
        step = stride if step is None else step
        elements = elements * size
    return True
