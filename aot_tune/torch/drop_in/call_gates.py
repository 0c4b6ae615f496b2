"""Decides which calls of a replaced module go to an operator: those on which both must give the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["fits", "hooked", "whole"]

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_interpreter: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack


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


def whole(*tensors: torch.Tensor) -> bool:
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
