"""Norms, softmax and gates by operators that work on rows."""

from __future__ import annotations

from typing import Any

import torch

from aot_tune.torch.drop_in.call_gates import fits, whole
from aot_tune.torch.drop_in.patch_library import DTYPES, PatchLibrary, blank
from aot_tune.torch.drop_in.served_rows import RowRanges, hold

__all__ = ["GatedRows", "NormRows", "SoftmaxRows"]


class NormRows:
    """`rms_norm` or `layer_norm` over the last axis. The call gets the norm that has the parameters.

    Attributes:
        rows: the row counts for which the library serves it.
    """

    def __init__(
        self, library: PatchLibrary, operator: str, module: torch.nn.Module, eps: float, *, residual: bool = False
    ) -> None:
        weight: torch.Tensor = module.weight  # type: ignore[assignment]
        self._dtype, self._device, self._eps = weight.dtype, weight.device, eps
        self._biased = operator == "layer_norm"
        width = weight.shape[0]
        bias: torch.Tensor | None = module.bias if self._biased else None  # type: ignore[assignment]
        vectors = [weight.detach()] if bias is None else [weight.detach(), bias.detach()]

        def arguments(rows: int) -> tuple[torch.Tensor, ...]:
            added = (blank(rows, width, weight),) if residual else ()
            return (blank(rows, width, weight), *vectors, *added)

        key = (width, tuple(v.data_ptr() % 64 for v in vectors), weight.dtype, weight.device, residual)
        self.rows: RowRanges = library.served(operator, key, arguments)
        there = bool(self.rows.ranges)
        self._norm = library.call(operator, "all_outputs" if residual else "default") if there else None
        self._folds = library.folds(operator)

    def _takes(self, module: Any, x: torch.Tensor, *more: torch.Tensor | None) -> bool:
        weight = module.weight
        if weight.dtype != self._dtype or weight.device != self._device or not fits(module, weight, x, *more):
            return False
        width = weight.shape[0]
        return x.dim() > 0 and x.shape[-1] == width and hold(self.rows.steps, x.numel() // width)

    def __call__(self, module: Any, x: torch.Tensor) -> torch.Tensor | None:
        """The norm of x, [..., D]; None if torch must make the call."""
        bias = module.bias if self._biased else None
        if self._norm is None or not self._takes(module, x, bias):
            return None
        given = (module.weight, bias) if self._biased else (module.weight,)
        if self._folds and whole(x):
            out: torch.Tensor = self._norm(x, *given, eps=self._eps)
            return out
        return self._norm(x.reshape(-1, x.shape[-1]), *given, eps=self._eps).view(x.shape)  # type: ignore[no-any-return]

    def added(self, module: Any, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The norm of x + residual, and that sum. Needs an object made with `residual=True`."""
        if self._norm is None or residual.shape != x.shape or not self._takes(module, x, residual):
            return None
        if self._folds and whole(x, residual):
            both: tuple[torch.Tensor, torch.Tensor] = self._norm(x, module.weight, residual, eps=self._eps)
            return both
        width = x.shape[-1]
        out, total = self._norm(x.reshape(-1, width), module.weight, residual.reshape(-1, width), eps=self._eps)
        return out.view(x.shape), total.view(x.shape)


class SoftmaxRows:
    """`softmax` over the last axis. It has no parameters, so the library is asked at the first call of a kind."""

    def __init__(self, library: PatchLibrary) -> None:
        self._library, self._softmax, self._folds = library, library.call("softmax"), library.folds("softmax")

    def ask(self, x: torch.Tensor) -> RowRanges:
        """For how many rows the library serves tensors like x."""
        width = x.shape[-1]
        return self._library.served("softmax", (width, x.dtype, x.device), lambda rows: (blank(rows, width, x),))

    def __call__(self, module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor | None:
        """The softmax of x, [..., D]; None if torch must make the call."""
        if x.dim() == 0 or x.shape[-1] == 0 or not fits(module, x, x):
            return None
        if torch.compiler.is_compiling():  # the library cannot be asked here
            if self._library.tuned or x.numel() == 0 or x.dtype not in DTYPES:
                return None
        elif not hold(self.ask(x).steps, x.numel() // x.shape[-1]):
            return None
        if self._folds and whole(x):
            out: torch.Tensor = self._softmax(x)
            return out
        return self._softmax(x.reshape(-1, x.shape[-1])).view(x.shape)  # type: ignore[no-any-return]


class GatedRows:
    """silu(gate) * up by `silu_mul`, for two tensors that are alike.

    Attributes:
        rows: the row counts for which the library serves it.
    """

    def __init__(self, library: PatchLibrary, width: int, like: torch.Tensor) -> None:
        self._width, self._dtype, self._device = width, like.dtype, like.device
        self.rows: RowRanges = library.served(
            "silu_mul",
            (width, like.dtype, like.device),
            lambda rows: (blank(rows, width, like), blank(rows, width, like)),
        )
        self._gated = library.call("silu_mul") if self.rows.ranges else None
        self._folds = library.folds("silu_mul")

    def __call__(self, module: torch.nn.Module, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor | None:
        """The product; None if torch must make the call. Both tensors are [..., D]."""
        if gate.dtype != self._dtype or gate.device != self._device or not fits(module, gate, gate, up):
            return None
        if self._gated is None or gate.dim() == 0 or gate.shape != up.shape or gate.shape[-1] != self._width:
            return None
        if not hold(self.rows.steps, gate.numel() // self._width):
            return None
        if self._folds and whole(gate, up):
            out: torch.Tensor = self._gated(gate, up)
            return out
        return self._gated(gate.reshape(-1, self._width), up.reshape(-1, self._width)).view(gate.shape)  # type: ignore[no-any-return]
