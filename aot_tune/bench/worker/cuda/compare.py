"""Compares outputs with true values on the device. Only one number comes back, unless something is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from aot_tune.bench.worker.comparison import FAR_OFF, compare
from aot_tune.bench.worker.cuda.truth import BLOCK, Limits, torch_dtype
from aot_tune.spec import Tensor

__all__ = ["Expected"]


class Expected:
    """True values of one output, in float32 for narrower outputs, and the reciprocals of the allowed errors.

    Integers of 64 bits are compared as bits.
    """

    def __init__(self, tensor: Tensor, values: Any, limits: Limits) -> None:
        self.tensor, self.bounds, self.undefined = tensor, limits.bounds, limits.undefined
        if not values.dtype.is_floating_point:
            self.values = values.view(torch.int64)
            return
        dtype = torch_dtype(tensor)
        allowed = (values.abs() * self.bounds.relative).add_(self.bounds.absolute + 5e-324)
        narrow = dtype.is_floating_point and dtype.itemsize < 4
        self.values = values.to(torch.float32) if narrow else values
        self._scale = allowed.reciprocal_().to(self.values.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of the values and the reciprocals."""
        return int(self.values.numel() * self.values.element_size() * 2)

    def worst(self, got: Any) -> Any:
        """The largest error in tolerances, as a tensor. It is NaN if NaN or infinities need a closer look."""
        if not got.numel() or self.undefined:
            return torch.zeros((), dtype=torch.float64, device=got.device)
        if self.values.dtype == torch.int64 or self.bounds.share < 1:  # `judge` tells which elements are right
            return (_comparable(got) != self.values).any() * FAR_OFF
        got = _comparable(got)
        error = torch.sub(got, self.values) if got.dtype.is_floating_point else got.to(self.values.dtype) - self.values
        return torch.linalg.vector_norm(error.mul_(self._scale), float("inf")).to(torch.float64)

    def judge(self, got: Any) -> tuple[str, float]:
        """What is wrong with the worst element, or empty, and the largest error in tolerances."""
        dtype = torch_dtype(self.tensor)
        highest = float(torch.finfo(dtype).max) if dtype.is_floating_point else float("inf")
        if dtype == torch.uint64:  # torch cannot compare these
            host, true = got.cpu().numpy(), self.values.cpu().numpy().view(np.uint64)
            return compare(np, self.tensor.name, host, true, self.bounds, highest, BLOCK)
        return compare(torch, self.tensor.name, _comparable(got), self.values, self.bounds, highest, BLOCK)


def _comparable(got: Any) -> Any:
    """In a dtype that torch computes with. torch takes many bytes for true in a boolean, but only one is right."""
    if got.dtype == torch.bool:
        return got.view(torch.uint8)
    if got.dtype == torch.uint64:
        return got.view(torch.int64)
    if got.dtype.is_floating_point:
        return got.to(torch.float32) if got.dtype.itemsize == 1 else got
    return got.to(torch.int64) if got.dtype in (torch.uint16, torch.uint32) else got
