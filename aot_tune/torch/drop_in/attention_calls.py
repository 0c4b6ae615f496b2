"""Attention by `flash_attention`, in place of torch's function and of that of transformers."""

from __future__ import annotations

import importlib
import inspect
import itertools
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from aot_tune.torch.drop_in.operator_calls import fits
from aot_tune.torch.drop_in.patch_library import ALL_ROWS, DTYPES, PatchLibrary, RowRanges
from aot_tune.torch.drop_in.replaced_modules import Replaced, count_call, own_forward

_NAME = "scaled_dot_product_attention"
_NAMED = "flash_attention"
_torchs: Callable[..., Any] = torch.nn.functional.scaled_dot_product_attention


_now = threading.local()
_lock = threading.Lock()
_inside = [0]
"""How many forwards of patched modules run now, in all threads."""

_THEIRS = "sdpa"
_REGISTRY = "ALL_ATTENTION_FUNCTIONS"
_CHOICE = "_attn_implementation"
_UNKNOWN = ("position_bias", "softcap", "output_attentions")
"""Arguments that `flash_attention` lacks and that transformers' function uses. Calls with them go there."""

_numbers = itertools.count(1)
"""Numbers for a name for each model, because one model's may be removed while another's stays."""


class AttentionCalls:
    """`flash_attention` for calls with the arguments of torch's function."""

    def __init__(self, library: PatchLibrary) -> None:
        self._library = library
        self._attend = None if _NAMED in library.without else library.call(_NAMED)
        self._masked = library.optional(_NAMED, "mask") and library.optional(_NAMED, "bias")
        self._known: dict[tuple[Any, ...], bool] = {}
        self._traced: dict[tuple[Any, ...], tuple[bool, bool]] = {}

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None = None,
        scale: float | None = None,
        *,
        causal: bool = False,
        shared: bool = False,
    ) -> torch.Tensor | None:
        """The attention of query, [B, H, M, D], to key and value, [B, HK, N, D]; None if torch must make the call.

        Args:
            module: the module that makes the call. If it trains, torch serves the call.
            query: [B, H, M, D].
            key: [B, HK, N, D].
            value: [B, HK, N, D].
            mask: booleans, true where a key is seen; or what is added to scores. It expands to [B, H, M, N].
            scale: None means 1 / sqrt(D).
            causal: whether query i sees keys 0 to i.
            shared: whether several query heads may share a key head.
        """
        if self._attend is None or not _takes(module, query, key, value, scale, shared=shared):
            return None
        seen = added = None
        if mask is not None:
            shape = (*query.shape[:3], key.shape[2])
            if not self._masked or causal or not _masks(module, query, mask, shape):
                return None
            wide = mask.expand(shape)
            seen, added = (wide, None) if mask.dtype == torch.bool else (None, wide)
        if not self._served(query, key, seen, added, causal=causal):
            return None
        more = () if mask is None else (seen, added)
        given = 0.0 if scale is None else scale
        out: torch.Tensor = self._attend(query, key, value, *more, scale=given, causal=_kind(causal=causal))
        return out

    def prepare(self, heads: int, groups: int, width: int, like: torch.Tensor) -> tuple[str, str]:
        """Ask the library about calls of traced graphs, whose sizes are unknown: with one query, and with 512.

        Returns:
            The kernels that serve calls without a mask; and why neither call counts, or ''.
        """
        kernels: list[str] = []
        whys: list[str] = []
        for mask in (None, torch.bool, like.dtype) if self._masked else (None,):
            answers = [self._prepared(rows, heads, groups, width, like, mask) for rows in (1, 512)]
            key = heads, groups, width, like.dtype, like.device, mask
            self._traced[key] = not answers[0][1], not answers[1][1]
            if mask is None:
                kernels = [kernel for kernel, why in answers if not why]
                whys = [why for _, why in answers]
        return ", ".join(dict.fromkeys(kernels)), min(whys)

    def _prepared(
        self, rows: int, heads: int, groups: int, width: int, like: torch.Tensor, mask: torch.dtype | None
    ) -> tuple[str, str]:
        query, key = (
            torch.empty(1, length, count, width, dtype=like.dtype, device=like.device).transpose(1, 2)
            for length, count in ((rows, heads), (512, groups))
        )
        more: tuple[torch.Tensor | None, ...] = ()
        if mask is not None:
            wide = torch.empty(1, 1, rows, 512, dtype=mask, device=like.device).expand(1, heads, rows, 512)
            more = (wide, None) if mask == torch.bool else (None, wide)
        kind = _kind(causal=rows > 1 and mask is None)
        return self._library.serves(_NAMED, query, key, key, *more, causal=kind)

    def _served(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        seen: torch.Tensor | None,
        added: torch.Tensor | None,
        *,
        causal: bool,
    ) -> bool:
        mask = seen if seen is not None else added
        masked = None if mask is None else mask.dtype
        if torch.compiler.is_compiling():
            traced = (query.shape[1], key.shape[1], query.shape[3], query.dtype, query.device, masked)
            first, more = self._traced.get(traced, (not self._library.tuned, not self._library.tuned))
            if first == more:
                return first
            return first if query.shape[2] == 1 else more
        # Ask once for all sizes between two powers of two, because a cache grows by one key in each step.
        sizes = (*query.shape[:2], key.shape[1], query.shape[3], query.shape[2].bit_length(), key.shape[2].bit_length())
        layouts = (query.stride(3), key.stride(3), query.stride(1) < query.stride(2), key.stride(1) < key.stride(2))
        shown = None if mask is None else (masked, mask.stride(3), tuple(s == 0 for s in mask.stride()))
        call = (sizes, layouts, shown, query.shape[2] == 1, query.dtype, query.device, causal)
        if call not in self._known:
            tensors = (query.detach(), key.detach(), key.detach(), *(() if mask is None else (seen, added)))
            self._known[call] = not self._library.serves(_NAMED, *tensors, causal=_kind(causal=causal))[1]
        return self._known[call]


def _kind(*, causal: bool) -> str:
    return "upper_left" if causal else "none"


def _takes(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    *,
    shared: bool,
) -> bool:
    """Whether `flash_attention` takes such tensors and such a scale."""
    if query.dim() != 4 or key.dim() != 4 or key.shape != value.shape or query.dtype not in DTYPES:
        return False
    if scale is not None and (not isinstance(scale, float) or not 1e-38 < scale < 1e38):
        return False
    heads, groups = query.shape[1], key.shape[1]
    if key.shape[0] != query.shape[0] or key.shape[3] != query.shape[3] or min(key.shape[1:]) < 1:
        return False
    heads_agree = heads == groups or (shared and heads % groups == 0)
    return heads_agree and fits(module, query, query, key, value)


def _masks(module: torch.nn.Module, query: torch.Tensor, mask: torch.Tensor, shape: tuple[Any, ...]) -> bool:
    """Whether `flash_attention` takes a mask, viewed in that shape."""
    if mask.device != query.device or not fits(module, query, None if mask.dtype == torch.bool else mask):
        return False
    pairs = zip(reversed(mask.shape), reversed(shape), strict=False)
    return mask.dim() <= len(shape) and all(mine in (1, wanted) for mine, wanted in pairs)


def attending_forward(replaced: Replaced, calls: AttentionCalls) -> Callable[..., Any]:
    """A module's own forward. While it runs, this thread's calls of torch's function go to `calls`.

    While such a forward runs in some thread, torch's function is replaced. Threads without one still get torch's own.
    """

    def forward(self: torch.nn.Module, *arguments: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling() or self.training or torch._C._get_tracing_state() is not None:
            return own_forward(self)(self, *arguments, **named)
        before = getattr(_now, "serving", None)
        _now.serving = (self, replaced, calls)
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
        module, replaced, calls = serving
        if dropout_p == 0:
            out = calls(module, query, key, value, attn_mask, scale, causal=is_causal, shared=enable_gqa)
        count_call(replaced, served=out is not None)
    if out is not None:
        return out
    given = {"scale": scale, "enable_gqa": enable_gqa}
    return _torchs(query, key, value, attn_mask, dropout_p, is_causal, **given)


def calls_attention(module: torch.nn.Module) -> bool:
    """Whether a method of the module's class mentions torch's function."""
    methods = (getattr(m, "__wrapped__", m) for m in vars(type(module)).values())
    codes = (getattr(m, "__code__", None) for m in methods)
    return any(isinstance(c, CodeType) and _NAME in c.co_names for c in codes)


class ReplacedAttention:
    """Configs with our attention until `remove`."""

    def __init__(self, replaced: Replaced, configs: list[Any], name: str) -> None:
        self.made, self._configs, self._name = replaced, configs, name

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
        kernel, why = calls.prepare(heads, groups, width, like)
        kernels = kernels or kernel
        whys.append(why)
    if all(whys):
        return whys[0]
    name = f"aot_tune_{next(_numbers)}"
    kinds = ", ".join(sorted({type(m).__name__ for m in layers}))
    rows = RowRanges(ALL_ROWS.ranges, (kernels,))
    replaced = Replaced("attention", kinds, ("flash_attention",), rows, modules=len(layers))
    _register(name, replaced, calls)
    configs: list[Any] = list({id(c): c for c in map(_config, model.modules()) if hasattr(c, _CHOICE)}.values())
    configs = [c for c in configs if c._attn_implementation == _THEIRS]
    for config in configs:
        config._attn_implementation = name
    return ReplacedAttention(replaced, configs, name)


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


def _register(name: str, replaced: Replaced, calls: AttentionCalls) -> None:
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
        count_call(replaced, served=out is not None)
        if out is None:
            given = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **more}
            return theirs(module, query, key, value, attention_mask, **given)
        return out.transpose(1, 2).contiguous(), None

    attention.register(name, attend)
    masks.register(name, masks[_THEIRS])
