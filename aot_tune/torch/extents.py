"""Extents and layouts of tensors, worked out from the dims of a call and from other tensors; all may be symbolic."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["EXTENT", "axes_in_memory", "extent_of"]

EXTENT = ".extent"
"""The fact that stands for an axis' extent in what a dim is solved to."""

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
    "min": torch.sym_min,
    "max": torch.sym_max,
}


def extent_of(expression: Any, facts: Mapping[str, Any]) -> Any:
    """The value of an expression, as `signatures()` writes it, on dims that are integers or torch.SymInt.

    Choices (`where`, comparisons) and powers of two are decided when a graph is traced; it holds for calls alike.

    Raises:
        ZeroDivisionError: when it divides by zero.
    """
    kind, *rest = expression
    if kind == "fact":
        return facts[rest[0]]
    if kind == "const":
        return rest[0]
    if kind == "where":
        condition, yes, no = rest
        return extent_of(yes if bool(extent_of(condition, facts)) else no, facts)
    if kind == "next_power_of_2":
        return 1 << max(int(extent_of(rest[0], facts)) - 1, 0).bit_length()
    left, right = (extent_of(one, facts) for one in rest)
    return _BINARY[kind](left, right)


def axes_in_memory(tensor: torch.Tensor) -> list[int]:
    """The axes of a tensor from the slowest to the fastest; as they stand where some are broadcast.

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
