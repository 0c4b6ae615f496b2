"""Compares outputs with true values where they are: one number comes back unless something is wrong."""

from __future__ import annotations

from typing import Any

import torch

from aot_tune.bench.worker.cuda.truth import Limits, torch_dtype
from aot_tune.bench.worker.reference_results import Bounds
from aot_tune.spec import Tensor

__all__ = ["FAR_OFF", "Expected"]

FAR_OFF = 1e30
"""The error, in tolerances, of a value that is not comparable; finite, since JSON has no infinity."""


_BLOCK = 1 << 24
"""Elements that are compared at a time: float64 and what is computed of it take some 80 bytes for each."""


class Expected:
    """True values of one output, in float32 for narrower outputs, and the reciprocal of what each may be off by.

    Integers of 64 bits are compared as they are.
    """

    def __init__(self, tensor: Tensor, values: Any, limits: Limits) -> None:
        self.tensor, self.bounds, self.undefined = tensor, limits.bounds, limits.undefined
        if values.dtype == torch.int64:
            self.values = values
            return
        dtype = torch_dtype(tensor)
        allowed = (values.abs() * self.bounds.relative).add_(self.bounds.absolute + 5e-324)
        narrow = dtype.is_floating_point and dtype.itemsize < 4
        self.values = values.to(torch.float32) if narrow else values
        self._scale = allowed.reciprocal_().to(self.values.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of both."""
        return int(self.values.numel() * self.values.element_size() * 2)

    def worst(self, got: Any) -> Any:
        """The largest error in tolerances, as a tensor; NaN when there are NaN or infinities to look at."""
        if not got.numel() or self.undefined:
            return torch.zeros((), dtype=torch.float64, device=got.device)
        if self.values.dtype == torch.int64:
            return (got != self.values).any() * FAR_OFF
        got = _bytes_of_bools(got)
        error = torch.sub(got, self.values) if got.dtype.is_floating_point else got.to(self.values.dtype) - self.values
        return torch.linalg.vector_norm(error.mul_(self._scale), float("inf")).to(torch.float64)

    def judge(self, got: Any) -> tuple[str, float]:
        """What is wrong with the worst element, empty when nothing is, and the largest error in tolerances."""
        return compare(self.tensor.name, got, self.values, self.bounds, _highest(self.tensor))


def _bytes_of_bools(got: Any) -> Any:
    """Of the bytes that are true to torch, one is right."""
    return got.view(torch.uint8) if got.dtype == torch.bool else got


def _highest(tensor: Tensor) -> float:
    dtype = torch_dtype(tensor)
    return float(torch.finfo(dtype).max) if dtype.is_floating_point else float("inf")


def compare(name: str, got: Any, exact: Any, bounds: Bounds, highest: float) -> tuple[str, float]:
    """Compare element by element; NaN and infinities must be where the truth has them.

    Overflow to infinity is right where the truth is beyond `highest`. Returns as `Expected.judge` does.
    """
    got = _bytes_of_bools(got)
    values, wanted = got.reshape(-1), exact.reshape(-1)
    worst, place, wrong = 0.0, 0, 0
    for start in range(0, values.numel(), _BLOCK):
        block = slice(start, start + _BLOCK)
        if wanted.dtype == torch.int64:
            ratio = torch.where(values[block] == wanted[block], 0.0, FAR_OFF)
        else:
            ratio = _ratios(values[block].to(torch.float64), wanted[block].to(torch.float64), bounds, highest)
        most, where = (x.item() for x in ratio.max(dim=0))
        wrong += int((ratio > 1).sum())
        if most > worst:
            worst, place = float(most), start + int(where)
    if not wrong:
        return "", worst
    index: list[int] = []
    rest = place
    for extent in reversed(got.shape):
        index.insert(0, rest % extent)
        rest //= extent
    want, found = exact[tuple(index)].item(), got[tuple(index)].item()
    found = float(found) if isinstance(want, float) else found
    allowed = bounds.absolute + bounds.relative * abs(want)
    return (
        f"{name}[{', '.join(map(str, index))}]: got {found!r}, want {want!r}, "
        f"tolerance {allowed:.3g}; {wrong} of {values.numel()} elements are wrong"
    ), worst


def _ratios(value: Any, exact: Any, bounds: Bounds, highest: float) -> Any:
    """Errors in tolerances of values in float64; `FAR_OFF` where there is nothing to compare."""
    ratio = (value - exact).abs() / (exact.abs() * bounds.relative + (bounds.absolute + 5e-324))
    overflow = (exact.abs() > highest) & torch.isinf(value) & (torch.sign(exact) == torch.sign(value))
    fine = (torch.isnan(value) & torch.isnan(exact)) | (value == exact) | overflow
    return torch.where(torch.isfinite(ratio), ratio, torch.where(fine, 0.0, FAR_OFF))
