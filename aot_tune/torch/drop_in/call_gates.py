"""Which calls of a replaced module go to an operator: those on which it and the module can only agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["fits", "hooked", "on_plain_tensors", "whole"]

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_interpreter: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack


def fits(module: torch.nn.Module, like: torch.Tensor, *tensors: torch.Tensor | None) -> bool:
    """Whether a call on these tensors may go to an operator.

    Not while the module trains, a gradient is recorded, or autocast chooses dtypes; and only where all tensors have
    the dtype and the device of `like`, the parameter that the library was asked about.
    """
    if module.training or torch.is_autocast_enabled(like.device.type):
        return False
    records = torch.is_grad_enabled()
    if records and like.requires_grad:
        return False
    for tensor in tensors:
        if tensor is None:
            continue
        if (records and tensor.requires_grad) or tensor.dtype != like.dtype or tensor.device != like.device:
            return False
    return torch.compiler.is_compiling() or on_plain_tensors(like, *tensors)


def on_plain_tensors(*tensors: torch.Tensor | None) -> bool:
    """Whether all are dense tensors of torch's own class, and nobody traces or transforms the call."""
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in _PLAIN or tensor.is_nested or tensor.layout != torch.strided:
            return False
    return (
        _interpreter() is None
        and torch._C._get_tracing_state() is None
        and torch.autograd.forward_ad._current_level < 0
    )


def whole(*tensors: torch.Tensor) -> bool:
    """Whether an eager call can pass tensors as they are to an operator that takes leading dims.

    Those of a traced graph are made matrices: a graph does that once.
    """
    return not torch.compiler.is_compiling() and all(tensor.is_contiguous() for tensor in tensors)


def hooked(*modules: Any) -> bool:
    """Whether somebody listens to the calls of one of the modules, so that none may be left out."""
    for module in modules:
        if isinstance(module, torch.nn.Module):
            for name in _HOOKS:
                if len(getattr(module, name)) > 0:
                    return True
    return False
