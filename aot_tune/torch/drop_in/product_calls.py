"""A linear layer's product by `gemm`, together with what follows it: an activation, a residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aot_tune.torch.drop_in.call_gates import fits, whole
from aot_tune.torch.drop_in.patch_library import PatchLibrary, blank
from aot_tune.torch.drop_in.served_rows import RowRanges, hold

__all__ = ["LinearProduct", "activation_of", "same_activation"]

_FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.nn.functional.relu,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


class LinearProduct:
    """activation(x @ weight.T + bias) + residual. The call gets the linear layer that has the parameters.

    Attributes:
        rows: the row counts for which the library serves it.
    """

    def __init__(
        self, library: PatchLibrary, linear: torch.nn.Linear, activation: str = "none", *, residual: bool = False
    ) -> None:
        weight, bias = linear.weight, linear.bias
        self._dtype, self._device = weight.dtype, weight.device
        self._named: dict[str, Any] = {} if activation == "none" else {"activation": activation}
        if weight.is_cuda and weight.dtype == torch.float32 and _reduced():
            self._named["math"] = "tf32"

        def arguments(rows: int) -> tuple[torch.Tensor | None, ...]:
            added = blank(rows, weight.shape[0], weight) if residual else None
            return blank(rows, weight.shape[1], weight), weight.detach().t(), plain, added

        plain = None if bias is None else bias.detach()
        aligned = weight.data_ptr() % 64, 0 if bias is None else bias.data_ptr() % 64
        key = (*weight.shape, weight.stride(), aligned, weight.dtype, weight.device, bias is None, residual)
        self.rows: RowRanges = library.served("gemm", key, arguments, **self._named)
        self._gemm = library.call("gemm") if self.rows.ranges else None
        self._folds = library.folds("gemm")

    def __call__(
        self, linear: torch.nn.Linear, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """The result, or None if torch must make the call.

        Args:
            linear: the layer, with a weight of [N, K].
            x: [..., K].
            residual: [..., N].
        """
        weight, bias = linear.weight, linear.bias
        if weight.dtype != self._dtype or weight.device != self._device or not fits(linear, weight, x, bias, residual):
            return None
        outer, inner = weight.shape
        if x.dim() == 0 or x.shape[-1] != inner or inner == 0 or self._gemm is None:
            return None
        shape = (*x.shape[:-1], outer)
        if not hold(self.rows.steps, x.numel() // inner) or (residual is not None and residual.shape != shape):
            return None
        if self._folds and (whole(x) if residual is None else whole(x, residual)):
            made: torch.Tensor = self._gemm(x, weight.t(), bias, residual, **self._named)
            return made
        added = None if residual is None else residual.reshape(-1, outer)
        out: torch.Tensor = self._gemm(x.reshape(-1, inner), weight.t(), bias, added, **self._named)
        return out.view(shape)


def activation_of(module: Any) -> str | None:
    """The activation of `gemm` that a module without parameters computes, judged by its values; or None."""
    if not isinstance(module, torch.nn.Module):
        return next((name for name in ("relu", "silu", "gelu") if module is _FUNCTIONS[name]), None)
    if any(True for _ in module.parameters()) or any(True for _ in module.buffers()) or any(module.children()):
        return None
    x = torch.linspace(-9, 9, 181)
    try:
        with torch.no_grad():
            y = type(module).forward(module, x.clone())
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        return None
    if not isinstance(y, torch.Tensor) or y.shape != x.shape:
        return None
    return next((name for name, f in _FUNCTIONS.items() if (f(x) - y).abs().max().item() < 2e-6), None)


def same_activation(one: Any, other: Any) -> bool:
    """Whether two activations are of the same kind."""
    if not isinstance(one, torch.nn.Module):
        return one is other
    return type(one) is type(other) and getattr(one, "approximate", None) == getattr(other, "approximate", None)


def _reduced() -> bool:
    """Whether torch uses tf32 for products of f32."""
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return bool(precision == "tf32" if precision is not None else torch.backends.cuda.matmul.allow_tf32)
