"""Computes extents and layouts of tensors from the dims of a call and from other tensors. All may be symbolic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from aot_tune.signatures.extent_values import extent_value

__all__ = ["axes_in_memory", "extent_of"]


def extent_of(expression: Any, facts: Mapping[str, Any]) -> Any:
    """The value of an expression in the form of `signatures()`, for dims that are integers or torch.SymInt.

    Choices (`where`, comparisons) and powers of two are decided when a graph is traced. The graph holds for calls like
    it.


    Raises:
        ZeroDivisionError: when the expression divides by zero.
    """
    return extent_value(expression, facts, torch.sym_min, torch.sym_max)


def axes_in_memory(tensor: torch.Tensor) -> list[int]:
    """The axes of a tensor from the slowest to the fastest; in their own order if some are broadcast.

    An axis of extent 1 counts as in a row-major tensor. The module's functions lay out new tensors by the same rule.
    """
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    rank, sizes = tensor.dim(), tensor.shape
    steps: list[Any] = list(tensor.stride())
    for axis in reversed(range(rank)):
        if guard_or_false(sizes[axis] == 1):
            steps[axis] = 1 if axis == rank - 1 else sizes[axis + 1] * steps[axis + 1]
        elif guard_or_false(steps[axis] == 0):
            return list(range(rank))
    order: list[int] = []
    for axis in range(rank):
        place = axis
        while place > 0 and guard_or_false(steps[order[place - 1]] < steps[axis]):
            place -= 1
        order.insert(place, axis)
    return order
