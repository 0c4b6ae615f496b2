"""Calls of operators in place of modules: which calls may go there, products, norms, softmax and gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aot_tune.torch.drop_in.patch_library import DTYPES, PatchLibrary, RowRanges, blank, hold

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_interpreter: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack

_FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.nn.functional.relu,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


def fits(module: torch.nn.Module, like: torch.Tensor, *tensors: torch.Tensor | None) -> bool:
    """Whether a call on these tensors may go to an operator.

    It may not while the module trains, a gradient is recorded, or autocast chooses dtypes. All tensors must have the
    dtype and the device of `like`, the parameter that the library was asked about. In eager calls, they must also be
    dense tensors of torch's own class, and nobody may trace or transform the call.
    """
    if module.training:
        return False
    dtype, device = like.dtype, like.device
    records, traced = torch.is_grad_enabled(), torch.compiler.is_compiling()
    if torch.is_autocast_enabled(device.type) or (records and like.requires_grad):
        return False
    if not traced and (_transformed() or type(like) not in _PLAIN):
        return False
    for tensor in tensors:
        if tensor is None:
            continue
        if tensor.dtype != dtype or tensor.device != device or (records and tensor.requires_grad):
            return False
        if not traced and (type(tensor) not in _PLAIN or tensor.is_nested or tensor.layout != torch.strided):
            return False
    return True


def _transformed() -> bool:
    """Whether torch.func, forward-mode gradients or torch.jit intercept the calls of this thread."""
    forward: int = torch.autograd.forward_ad._current_level
    return forward >= 0 or _interpreter() is not None or torch._C._get_tracing_state() is not None


def _whole(*tensors: torch.Tensor) -> bool:
    """Whether an eager call can pass one or two tensors unchanged to an operator that takes leading dims.

    Tensors of a traced graph are made matrices, which a graph does only once.
    """
    if torch.compiler.is_compiling():
        return False
    return tensors[0].is_contiguous() and (len(tensors) == 1 or tensors[1].is_contiguous())


def hooked(*modules: Any) -> bool:
    """Whether one of the modules has hooks, so that its call must not be skipped."""
    for module in modules:
        if isinstance(module, torch.nn.Module):
            for name in _HOOKS:
                if len(getattr(module, name)) > 0:
                    return True
    return False


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
        if self._folds and (_whole(x) if residual is None else _whole(x, residual)):
            product: torch.Tensor = self._gemm(x, weight.t(), bias, residual, **self._named)
            return product
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
        if self._folds and _whole(x):
            out: torch.Tensor = self._norm(x, *given, eps=self._eps)
            return out
        return self._norm(x.reshape(-1, x.shape[-1]), *given, eps=self._eps).view(x.shape)  # type: ignore[no-any-return]

    def added(self, module: Any, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The norm of x + residual, and that sum. Needs an object made with `residual=True`."""
        if self._norm is None or residual.shape != x.shape or not self._takes(module, x, residual):
            return None
        if self._folds and _whole(x, residual):
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
        if self._folds and _whole(x):
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
        if self._folds and _whole(gate, up):
            out: torch.Tensor = self._gated(gate, up)
            return out
        return self._gated(gate.reshape(-1, self._width), up.reshape(-1, self._width)).view(gate.shape)  # type: ignore[no-any-return]
