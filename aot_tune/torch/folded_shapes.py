"""Shapes of tensors whose leading dims an operator takes as one axis; all may be symbolic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from aot_tune.torch.operator_signature import OperatorSignature

__all__ = ["FoldError", "fold_shapes"]


class FoldError(Exception):
    """The leading dims of a call cannot be taken as one axis; says why."""


def fold_shapes(
    op: OperatorSignature, tensors: Mapping[str, torch.Tensor]
) -> tuple[dict[str, list[Any]], list[Any] | None]:
    """The tensors' shapes with one axis for leading dims, and these dims; None where they are the one axis already.

    Raises:
        FoldError: when tensors have other leading dims than each other, or such as no stride leads through.
    """
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    rest = {t.name: len(t.shape) - 1 for t in op.tensors if t.folds and t.name in tensors}
    if all(len(shapes[name]) == count + 1 for name, count in rest.items()):
        return shapes, None
    first = next(iter(rest))
    lead = shapes[first][: len(shapes[first]) - rest[first]]
    for name, count in rest.items():
        mine = shapes[name][: len(shapes[name]) - count]
        if len(shapes[name]) < count or len(mine) != len(lead) or not all(map(_same, mine, lead)):
            raise FoldError(
                f"'{name}' has the leading dims {tuple(mine)}, '{first}' has {tuple(lead)}; wanted the same of both"
            )
        if not _is_one(mine, tensors[name].stride()[: len(mine)]):
            raise FoldError(
                f"the leading dims of '{name}' cannot be taken as one without a copy: shape {tuple(shapes[name])}, "
                f"strides {tensors[name].stride()} in elements; pass a contiguous tensor"
            )
        extent: Any = 1
        for size in mine:
            extent = extent * size
        shapes[name] = [extent, *shapes[name][len(mine) :]]
    return shapes, lead


def _same(one: Any, other: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import guard_or_true

    return bool(guard_or_true(one == other))


def _is_one(sizes: list[Any], strides: tuple[Any, ...]) -> bool:
    """Whether one stride leads through all elements of these axes."""
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    if any(guard_or_false(size == 0) for size in sizes):
        return True
    step: Any = None
    elements: Any = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if guard_or_false(size == 1):
            continue
        if step is not None and not _same(stride, step * elements):
            return False
        step = stride if step is None else step
        elements = elements * size
    return True
