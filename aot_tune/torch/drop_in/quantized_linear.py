"""Linear layers with weights of 8 bits and scales, as quantizing libraries make them, known by what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aot_tune.torch.drop_in.operator_calls import fits
from aot_tune.torch.drop_in.patch_library import PatchLibrary, RowRanges, blank, hold
from aot_tune.torch.drop_in.replaced_modules import evaluated, own_forward

_BLOCK = 128
_SCALES = ("weight_scale", "weight_scale_inv", "scale")
_APART = 0.006
"""How far results of 16 bits may be apart, of their norm. Without rounding rows to f8, they are 0.02 off."""

Parts = tuple[torch.Tensor, torch.Tensor]


def quantized_parts(module: Any) -> Parts | None:
    """A module's weight of 8 bits, [N, K], and its scales; None if it has no such weight.

    The scales are those of the weight (`weight.qdata`, `weight.scale`, as torchao has them) or of the module.
    """
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor):
        return None
    values = getattr(weight, "qdata", weight)
    owner, names = (module, _SCALES) if values is weight else (weight, ("scale",))
    scale = next((s for s in (getattr(owner, n, None) for n in names) if isinstance(s, torch.Tensor)), None)
    if scale is None or values.dim() != 2 or values.dtype not in (torch.int8, torch.float8_e4m3fn):
        return None
    return values, scale


def _scale_of_columns(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor | None:
    """The scales as [groups of K, groups of N]: of blocks, of the N lines, or of the whole weight; else None."""
    outer, inner = values.shape
    if scale.shape == (-(-outer // _BLOCK), -(-inner // _BLOCK)):
        return scale.t()
    return scale.reshape(1, -1) if scale.numel() in (1, outer) else None


class QuantizedProduct:
    """x @ (values * scale).T + bias. If the values are f8, rows of x are made f8 as well.

    Attributes:
        operators: those that it calls.
        rows: the row counts for which the library serves it.
        refused: why it does not stand for the module, or ''.
    """

    def __init__(self, library: PatchLibrary, module: Any, parts: Parts) -> None:
        values, scale = parts
        outer, inner = values.shape
        self._eight = values.dtype == torch.float8_e4m3fn
        self.operators = ("quantize_rows", "scaled_mm") if self._eight else ("int8_mm",)
        self.rows, self.refused = RowRanges(()), ""
        columns = _scale_of_columns(values, scale)
        if columns is None or (columns.shape[0] > 1 and not self._eight):
            self.refused = f"its scales are {list(scale.shape)}, for a weight of {[outer, inner]}"
            return
        self._form = values.dtype, columns.shape
        self._group = _BLOCK if columns.shape[0] > 1 else inner
        bias = getattr(module, "bias", None)
        stated = (t.dtype for t in (bias, module.weight) if t is not None and t.dtype.itemsize == 2)
        self._like = torch.empty(0, dtype=next(stated, torch.bfloat16), device=values.device)

        def arguments(rows: int) -> tuple[torch.Tensor | None, ...]:
            x = blank(rows, inner, self._like)
            if not self._eight:
                return x, values.t(), self._scales(columns, outer), bias
            scales = torch.empty(x.shape[0], -(-inner // self._group), device=x.device)
            return x.to(values.dtype), values.t(), scales, self._scales(columns, outer), bias

        key = (outer, inner, values.dtype, self._like.dtype, values.device, columns.shape, bias is None)
        out = (lambda rows: blank(rows, outer, self._like)) if self._eight else None
        self.rows = library.served(self.operators[-1], key, arguments, out)
        missing = next((library.without[o] for o in self.operators if o in library.without), "")
        self.refused = missing or self.rows.refused if missing or not self.rows.ranges else ""
        if self.refused:
            return
        self._product: Callable[..., Any] = library.call(self.operators[-1])
        self._quantize = library.call("quantize_rows") if self._eight else None
        self.refused = self._differs(module, values, columns)

    def __call__(self, module: Any, x: torch.Tensor) -> torch.Tensor | None:
        """The result, or None if torch must make the call. x is [..., K]."""
        parts, bias = quantized_parts(module), getattr(module, "bias", None)
        if parts is None or parts[0].device != x.device or not fits(module, self._like, x, bias):
            return None
        columns = _scale_of_columns(*parts)
        if columns is None or (parts[0].dtype, columns.shape) != self._form:  # changed since the module was patched
            return None
        outer, inner = parts[0].shape
        if x.dim() == 0 or x.shape[-1] != inner or inner == 0 or not hold(self.rows.steps, x.numel() // inner):
            return None
        return self._multiply(x.reshape(-1, inner), parts[0], columns, bias).view(*x.shape[:-1], outer)

    def _scales(self, columns: torch.Tensor, outer: int) -> torch.Tensor:
        """The scales of columns as the product takes them."""
        return columns.float() if self._eight else columns.to(self._like.dtype).expand(1, outer)

    def _multiply(
        self, x: torch.Tensor, values: torch.Tensor, columns: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        columns = self._scales(columns, values.shape[0])
        if self._quantize is None:
            product: torch.Tensor = self._product(x, values.t(), columns, bias)
            return product
        rows, inner = x.shape
        narrow = torch.empty(rows, inner, dtype=values.dtype, device=x.device)
        scales = self._quantize(x, group=self._group, out=narrow)
        out = torch.empty(rows, values.shape[0], dtype=x.dtype, device=x.device)
        self._product(narrow, values.t(), scales, columns, bias, out=out)
        return out

    def _differs(self, module: Any, values: torch.Tensor, columns: torch.Tensor) -> str:
        """How the module's results differ for rows of several sizes, one of them zeros. Empty if they do not."""
        x = torch.randn(6, values.shape[1], generator=torch.Generator().manual_seed(0))
        x = (x * torch.tensor([1.0, 1e-3, 30.0, 0.0, 1.0, 0.1])[:, None]).to(self._like)
        with evaluated(module):
            try:
                want = own_forward(module)(module, x)
            except (RuntimeError, TypeError, ValueError) as error:  # it may want other inputs
                return f"its forward fails on {list(x.shape)} in {str(x.dtype).removeprefix('torch.')}: {error}"
            got = self._multiply(x, values, columns, getattr(module, "bias", None))
        differs = f"its result is not that of {' and '.join(self.operators)}"
        if not isinstance(want, torch.Tensor) or want.shape != got.shape or want.dtype != got.dtype:
            return differs
        apart, size = (want.double() - got.double()).norm(dim=1), want.double().norm(dim=1)
        return "" if bool((apart <= _APART * size + 1e-6).all()) else differs
