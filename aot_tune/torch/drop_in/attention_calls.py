"""Attention by `flash_attention`: torch's function with the calls that the operator takes, and all others torch's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from aot_tune.torch.drop_in.call_gates import fits
from aot_tune.torch.drop_in.patch_library import PatchLibrary
from aot_tune.torch.drop_in.replaced_modules import Replaced, own_forward

__all__ = ["AttentionCalls", "attending_forward", "calls_attention"]

_NAME = "scaled_dot_product_attention"
_torchs: Callable[..., Any] = torch.nn.functional.scaled_dot_product_attention


class AttentionCalls:
    """`flash_attention` for calls as those of torch's function."""

    def __init__(self, library: PatchLibrary) -> None:
        self._library = library
        self._attend = None if "flash_attention" in library.without else library.call("flash_attention")
        self._known: dict[tuple[Any, ...], bool] = {}
        self._traced: dict[tuple[Any, ...], tuple[bool, bool]] = {}

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None = None,
        *,
        causal: bool = False,
        shared: bool = False,
    ) -> torch.Tensor | None:
        """The attention of query, [B, H, M, D], to key and value, [B, HK, N, D], or None where the call is for torch.

        Args:
            module: whose call it is; one that trains is served by torch.
            query: [B, H, M, D].
            key: [B, HK, N, D].
            value: [B, HK, N, D].
            scale: None stands for 1 / sqrt(D).
            causal: whether query i sees keys 0 to i.
            shared: whether several query heads may share one of the keys.
        """
        if self._attend is None or query.dim() != 4 or key.dim() != 4 or key.shape != value.shape:
            return None
        if not fits(module, query, query, key, value):
            return None
        if scale is not None and (not isinstance(scale, float) or scale <= 0):
            return None
        batch, heads, width = query.shape[0], query.shape[1], query.shape[3]
        groups, length = key.shape[1], key.shape[2]
        if key.shape[0] != batch or key.shape[3] != width or min(groups, length, width) < 1 or heads % groups != 0:
            return None
        if (heads != groups and not shared) or not self._served(query, key, causal=causal):
            return None
        given = 0.0 if scale is None else scale
        out: torch.Tensor = self._attend(query, key, value, scale=given, causal=_kind(causal=causal))
        return out

    def prepare(self, heads: int, groups: int, width: int, like: torch.Tensor) -> tuple[str, str]:
        """Ask the library about calls of traced graphs, whose sizes are not known: with one query, and with 512.

        Returns:
            The kernels that serve them, and why neither counts, or ''.
        """
        kernels, whys = [], []
        for rows in (1, 512):
            query, key = (
                torch.empty(1, length, count, width, dtype=like.dtype, device=like.device).transpose(1, 2)
                for length, count in ((rows, heads), (512, groups))
            )
            kernel, why = self._library.serves("flash_attention", query, key, key, causal=_kind(causal=rows > 1))
            kernels.append(kernel)
            whys.append(why)
        self._traced[heads, groups, width, like.dtype, like.device] = not whys[0], not whys[1]
        return ", ".join(dict.fromkeys(k for k, why in zip(kernels, whys, strict=True) if not why)), min(whys)

    def _served(self, query: torch.Tensor, key: torch.Tensor, *, causal: bool) -> bool:
        if torch.compiler.is_compiling():
            known = (query.shape[1], key.shape[1], query.shape[3], query.dtype, query.device)
            one, more = self._traced.get(known, (not self._library.tuned, not self._library.tuned))
            if one == more:
                return one
            return one if query.shape[2] == 1 else more
        # One question for all sizes between two powers of two: a cache grows by one key in each step.
        sizes = (*query.shape[:2], key.shape[1], query.shape[3], query.shape[2].bit_length(), key.shape[2].bit_length())
        layouts = (query.stride(3), key.stride(3), query.stride(1) < query.stride(2), key.stride(1) < key.stride(2))
        call = (sizes, layouts, query.shape[2] == 1, query.dtype, query.device, causal)
        if call not in self._known:
            tensors = (query.detach(), key.detach(), key.detach())
            self._known[call] = not self._library.serves("flash_attention", *tensors, causal=_kind(causal=causal))[1]
        return self._known[call]


def _kind(*, causal: bool) -> str:
    return "upper_left" if causal else "none"


_now = threading.local()
_lock = threading.Lock()
_inside = [0]
"""How many forwards of patched modules run, in all threads."""


def attending_forward(made: Replaced, calls: AttentionCalls) -> Callable[..., Any]:
    """A module's own forward, during which this thread's calls of torch's function come by `calls`.

    The function is another one while such a forward runs in any thread; those that run none get torch's all the same.
    """

    def forward(self: torch.nn.Module, *arguments: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling() or self.training or torch._C._get_tracing_state() is not None:
            return own_forward(self)(self, *arguments, **named)
        before = getattr(_now, "serving", None)
        _now.serving = (self, made, calls)
        with _lock:
            _inside[0] += 1
            if _inside[0] == 1:
                setattr(torch.nn.functional, _NAME, _serve)
        try:
            return own_forward(self)(self, *arguments, **named)
        finally:
            _now.serving = before
            with _lock:
                _inside[0] -= 1
                if _inside[0] == 0:
                    setattr(torch.nn.functional, _NAME, _torchs)

    return forward


def _serve(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    serving = getattr(_now, "serving", None)
    out = None
    if serving is not None:
        module, made, calls = serving
        if attn_mask is None and dropout_p == 0:
            out = calls(module, query, key, value, scale, causal=is_causal, shared=enable_gqa)
        made.count(served=out is not None)
    if out is not None:
        return out
    given = {"scale": scale, "enable_gqa": enable_gqa}
    return _torchs(query, key, value, attn_mask, dropout_p, is_causal, **given)


def calls_attention(module: torch.nn.Module) -> bool:
    """Whether a method of the module's class names torch's function."""
    methods = (getattr(m, "__wrapped__", m) for m in vars(type(module)).values())
    codes = (getattr(m, "__code__", None) for m in methods)
    return any(isinstance(c, CodeType) and _NAME in c.co_names for c in codes)
