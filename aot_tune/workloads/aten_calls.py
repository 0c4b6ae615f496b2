"""Calls of ATen operators as they were recorded: tensors' shapes, strides and dtypes, and other arguments."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import msgspec

__all__ = ["UNKNOWN", "AtenCall", "AtenTensor", "flat_rows"]

UNKNOWN = "unknown"
"""The value of an argument that was passed but not recorded."""


class AtenTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that was passed. Strides are in elements. `dtype` is one of ours, or torch's name of another."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


class AtenCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the operator `name`, such as "mm", and how often it was made."""

    name: str
    arguments: Sequence[object]
    keywords: Mapping[str, object] = {}
    count: float = 1.0

    def tensor(self, place: int) -> AtenTensor | None:
        """The tensor that was passed in a place; None if none was."""
        found = self.arguments[place] if place < len(self.arguments) else None
        return found if isinstance(found, AtenTensor) else None

    def value(self, place: int, name: str, default: object = None) -> object:
        """The value that was passed in a place or by name."""
        found = self.arguments[place] if place < len(self.arguments) else self.keywords.get(name)
        return default if found is None else found


def flat_rows(tensor: AtenTensor) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shape and strides of a tensor as a matrix: all axes but the last become one, if necessary in a copy."""
    *outer, last = tensor.shape
    rows = math.prod(outer)
    steps = [(extent, stride) for extent, stride in zip(outer, tensor.strides, strict=False) if extent != 1]
    if any(stride != extent * step for (_, stride), (extent, step) in itertools.pairwise(steps)):
        return (rows, last), (last, 1)
    return (rows, last), (steps[-1][1] if steps else last, tensor.strides[-1])
