"""The sizes of a decoder, from its config.json in the form of Hugging Face's transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from aot_tune.support.errors import SpecError, did_you_mean

__all__ = ["DecoderSizes", "read_model"]

_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_BY_TRACE = (
    "run it with torch.profiler and use `aot-tune workload from-torch`, or trace a run of the library with "
    "AOT_TUNE_TRACE"
)


class DecoderSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes that determine the problems of a forward pass. `name` is the file's.

    Without experts, `expert_width` is the width of a layer's single multilayer perceptron.
    """

    name: str
    dtype: str
    hidden: int
    expert_width: int
    heads: int
    key_heads: int
    head_width: int
    layers: int
    vocabulary: int
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False
    experts: int = 0
    experts_per_token: int = 0


def read_model(text: bytes, name: str, dtype: str = "") -> DecoderSizes:
    """The sizes in a config.json. If `dtype` is given, it replaces the model's.

    Raises:
        SpecError: when it is not a config.json, lacks a size, or is of another kind of decoder. It names the file.
    """
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{name} is not JSON: {error}", fix="name the config.json of a model") from error
    if not isinstance(document, dict):
        raise SpecError(f"{name} is not a JSON object: {str(document)[:60]}", fix="name the config.json of a model")
    inner = document.get("text_config")
    stated = document | inner if isinstance(inner, dict) else document
    _check_kind(stated, name)
    return _sizes(stated, name, dtype or _dtype(stated, name))


def _sizes(stated: Mapping[str, Any], name: str, dtype: str) -> DecoderSizes:
    hidden, heads = _size(stated, "hidden_size", name), _size(stated, "num_attention_heads", name)
    experts = next((field for field in _EXPERTS if stated.get(field)), "")
    wide = "moe_intermediate_size" if experts and stated.get("moe_intermediate_size") else "intermediate_size"
    kind = stated.get("model_type", "")
    bias = bool(stated.get("attention_bias"))
    return DecoderSizes(
        name=name,
        dtype=dtype,
        hidden=hidden,
        expert_width=_size(stated, wide, name),
        heads=heads,
        key_heads=_size(stated, "num_key_value_heads", name, default=heads),
        head_width=_head_width(stated, hidden, heads, name),
        layers=_size(stated, "num_hidden_layers", name),
        vocabulary=_size(stated, "vocab_size", name),
        qkv_bias=bias or kind in ("qwen2", "qwen2_moe"),
        out_bias=bias,
        mlp_bias=bool(stated.get("mlp_bias")),
        head_norms=kind in ("qwen3", "qwen3_moe"),
        experts=_size(stated, experts, name) if experts else 0,
        experts_per_token=_size(stated, "num_experts_per_tok", name) if experts else 0,
    )


def _size(stated: Mapping[str, Any], field: str, name: str, default: int | None = None) -> int:
    value = stated.get(field)
    if value is None and default is not None:
        return default
    if value is None:
        near = did_you_mean(field, stated)
        raise SpecError(
            f"{name}: it has no {field}",
            why="the sizes of products depend on it, and only this name is read",
            fix=f'add "{field}": NUMBER to the file' + (f", or rename what is there: {near}" if "mean" in near else ""),
        )
    if type(value) is not int or value < 1:
        raise SpecError(f"{name}: {field} is {str(value)[:60]!r}", fix="write a positive whole number")
    return value


def _head_width(stated: Mapping[str, Any], hidden: int, heads: int, name: str) -> int:
    if stated.get("head_dim") is not None:
        return _size(stated, "head_dim", name)
    if hidden % heads:
        raise SpecError(
            f"{name}: hidden_size {hidden} is not divided by num_attention_heads {heads}",
            why="that would be the width of a head",
            fix='add "head_dim": NUMBER to the file',
        )
    return hidden // heads


def _dtype(stated: Mapping[str, Any], name: str) -> str:
    value = stated.get("torch_dtype") or stated.get("dtype")
    if value is None:
        raise SpecError(f"{name}: it has no torch_dtype", fix="state it with --dtype, such as --dtype bf16")
    found = _DTYPES.get(str(value).removeprefix("torch."))
    if found is None:
        raise SpecError(
            f"{name}: torch_dtype is {str(value)[:60]!r}",
            why=f"the bundled operators have {', '.join(_DTYPES)}",
            fix="state another with --dtype",
        )
    return found


def _check_kind(stated: Mapping[str, Any], name: str) -> None:
    """Refuse decoders whose layers are not attention and a gated perceptron, each after an RMS norm."""
    activation = next(
        (stated[f] for f in ("hidden_act", "hidden_activation", "activation_function") if f in stated), ""
    )
    other = ""
    if activation not in ("", "silu", "swish"):
        other = f"its activation is {activation!r}, but silu_mul computes silu"
    elif "layer_norm_eps" in stated and "rms_norm_eps" not in stated:
        other = "its norms are layer norms"
    elif stated.get("is_encoder_decoder"):
        other = "it has an encoder"
    else:
        unlike = ("kv_lora_rank", "n_shared_experts", "shared_expert_intermediate_size", "first_k_dense_replace")
        for field in (*unlike, "mlp_only_layers"):
            if stated.get(field):
                other = f"it has {field}: {str(stated[field])[:40]}"
        if stated.get("decoder_sparse_step", 1) != 1:
            other = f"it has decoder_sparse_step: {stated['decoder_sparse_step']}"
    if other:
        raise SpecError(
            f"{name}: its layers are of an unknown kind: {other}",
            why="a layer is attention and a gated perceptron or experts of one kind, each behind an RMS norm",
            fix=_BY_TRACE,
        )
