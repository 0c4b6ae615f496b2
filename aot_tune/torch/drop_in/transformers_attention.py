"""Attention of models of the package transformers: one model's config names our function instead of theirs."""

from __future__ import annotations

import importlib
import inspect
import itertools
from typing import Any

import torch

from aot_tune.torch.drop_in.attention_calls import AttentionCalls
from aot_tune.torch.drop_in.replaced_modules import Replaced, count_call
from aot_tune.torch.drop_in.served_rows import ALL_ROWS, RowRanges

__all__ = ["ReplacedAttention", "replace_attention"]

_THEIRS = "sdpa"
_REGISTRY = "ALL_ATTENTION_FUNCTIONS"
_CHOICE = "_attn_implementation"
_UNKNOWN = ("position_bias", "softcap", "output_attentions")
"""Arguments that `flash_attention` lacks and that transformers' function uses. Calls with them go there."""

_numbers = itertools.count(1)
"""Numbers for a name for each model, because one model's may be removed while another's stays."""


class ReplacedAttention:
    """Configs with our attention until `remove`."""

    def __init__(self, made: Replaced, configs: list[Any], name: str) -> None:
        self.made, self._configs, self._name = made, configs, name

    def remove(self) -> bool:
        """Let the configs name transformers' function again. Returns False if one names another function by now."""
        kept = [c for c in self._configs if c._attn_implementation != self._name]
        for config in self._configs:
            if config._attn_implementation == self._name:
                config._attn_implementation = _THEIRS
        return not kept


def replace_attention(model: torch.nn.Module, calls: AttentionCalls) -> ReplacedAttention | str | None:
    """Make the model's attention layers call `calls`. Returns why not; None if it has no such layers."""
    layers: list[Any] = [m for m in model.modules() if _is_attention(m)]
    if not layers:
        return None
    other = sorted({str(m.config._attn_implementation) for m in layers} - {_THEIRS})
    if other:
        return f"the model's attention is {', '.join(other)}, only {_THEIRS} is replaced"
    kernels, whys = "", []
    for heads, groups, width, like in {_shape(m)[:3]: _shape(m) for m in layers}.values():
        found, why = calls.prepare(heads, groups, width, like)
        kernels = kernels or found
        whys.append(why)
    if all(whys):
        return whys[0]
    name = f"aot_tune_{next(_numbers)}"
    kinds = ", ".join(sorted({type(m).__name__ for m in layers}))
    rows = RowRanges(ALL_ROWS.ranges, (kernels,))
    made = Replaced("attention", kinds, ("flash_attention",), rows, modules=len(layers))
    _register(name, made, calls)
    configs: list[Any] = list({id(c): c for c in map(_config, model.modules()) if hasattr(c, _CHOICE)}.values())
    configs = [c for c in configs if c._attn_implementation == _THEIRS]
    for config in configs:
        config._attn_implementation = name
    return ReplacedAttention(made, configs, name)


def _config(module: torch.nn.Module) -> Any:
    return getattr(module, "config", None)


def _is_attention(module: torch.nn.Module) -> bool:
    """Whether the module calls the function in transformers' registry that its config names."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and _REGISTRY in code.co_names and hasattr(_config(module), _CHOICE)


def _shape(module: Any) -> tuple[int, int, int, torch.Tensor]:
    """Heads, key heads, the width of a head, and a parameter of an attention layer."""
    config = module.config
    heads = config.num_attention_heads
    width = getattr(module, "head_dim", None) or config.hidden_size // heads
    return heads, getattr(config, "num_key_value_heads", None) or heads, width, next(module.parameters())


def _register(name: str, made: Replaced, calls: AttentionCalls) -> None:
    """Register a function with the package under a name, with the masks that belong to it."""
    attention = importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    masks = importlib.import_module("transformers.masking_utils").ALL_MASK_ATTENTION_FUNCTIONS
    theirs = attention[_THEIRS]

    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **more: Any,
    ) -> Any:
        out = None
        if dropout == 0 and not any(more.get(k) is not None for k in _UNKNOWN):
            sees = getattr(module, "is_causal", True) if is_causal is None else is_causal
            causal = attention_mask is None and bool(sees) and query.shape[2] > 1
            out = calls(module, query, key, value, attention_mask, scaling, causal=causal, shared=True)
        count_call(made, served=out is not None)
        if out is None:
            given = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **more}
            return theirs(module, query, key, value, attention_mask, **given)
        return out.transpose(1, 2).contiguous(), None

    attention.register(name, attend)
    masks.register(name, masks[_THEIRS])
