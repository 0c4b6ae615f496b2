"""The problems of a decoder's forward pass, from its config.json in the form of Hugging Face's transformers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from aot_tune.spec import DEFAULT_ALIGNMENT, Problem, problem
from aot_tune.spec.dtypes import DTYPES
from aot_tune.support.errors import SpecError, did_you_mean

_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_BY_TRACE = (
    "run it with torch.profiler and use `aot-tune workload from-torch`, or trace a run of the library with "
    "AOT_TUNE_TRACE"
)

_BY_COLUMNS = {"b": (1, 0)}
"""Linear layers store weights so that rows in memory are columns of the product."""

_WEIGHTED = ("weight",)
_ADDED = ("weight", "residual", "residual_out")

Weighted = tuple[str, Problem, float]


class DecoderSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes that determine a forward pass. Without experts, `expert_width` is the perceptron's width."""

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
    """The sizes in a config.json, with `dtype` in place of the model's. Raises SpecError with the file."""
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
    dtype = _DTYPES.get(str(value).removeprefix("torch."))
    if dtype is None:
        raise SpecError(
            f"{name}: torch_dtype is {str(value)[:60]!r}",
            why=f"the bundled operators have {', '.join(_DTYPES)}",
            fix="state another with --dtype",
        )
    return dtype


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


def decoder_problems(
    sizes: DecoderSizes, tokens: Iterable[int], *, parallel: int = 1, context: int = 0
) -> list[Weighted]:
    """Operators and problems of a forward pass, with the number of calls of each, for each number of tokens.

    The tokens are of one sequence. They follow `context` others that attention sees. `parallel` devices share heads,
    perceptrons and vocabulary. The problems are those of one device.

    Raises:
        SpecError: when the devices cannot share a size.
    """
    _check_shares(sizes, parallel)
    return [weighted for count in tokens for weighted in _forward(sizes, count, parallel, context)]


def _check_shares(sizes: DecoderSizes, parallel: int) -> None:
    if bad := _unequal(sizes, parallel):
        fits = [str(n) for n in range(1, sizes.heads + 1) if not _unequal(sizes, n)]
        raise SpecError(
            f"{sizes.name}: {parallel} devices cannot share {' and '.join(bad)}",
            why="each device must get an equal share of the heads, the perceptron's columns and the vocabulary",
            fix=f"choose --tp among {', '.join(fits)}",
        )


def _unequal(sizes: DecoderSizes, parallel: int) -> list[str]:
    """The sizes of which devices cannot have equal shares. Several devices may have the same key head."""
    shared = {
        "num_attention_heads": sizes.heads,
        "the intermediate size": sizes.expert_width,
        "vocab_size": sizes.vocabulary,
    }
    bad = [f"{name} {size}" for name, size in shared.items() if size % parallel]
    one, other = sorted((parallel, sizes.key_heads))
    return [*bad, f"num_key_value_heads {sizes.key_heads}"] if other % one else bad


def _forward(sizes: DecoderSizes, tokens: int, parallel: int, context: int) -> Iterator[Weighted]:
    """One forward pass. RMS norm can add a residual, so a layer's sum with its input is computed in the next norm."""
    layers, dtypes = sizes.layers, {"T": sizes.dtype}
    yield "rms_norm", problem(R=tokens, D=sizes.hidden, present=_WEIGHTED, dtypes=dtypes), 1
    yield "rms_norm", problem(R=tokens, D=sizes.hidden, present=_ADDED, dtypes=dtypes), 2 * layers
    yield from _attention(sizes, tokens, parallel, context)
    if sizes.experts:
        yield _linear(sizes, tokens, sizes.experts, sizes.hidden, layers)
        pairs = tokens * sizes.experts_per_token  # spread as evenly as possible
        busy = min(sizes.experts, pairs)
        yield from _perceptron(sizes, -(-pairs // busy), parallel, layers * busy)
    else:
        yield from _perceptron(sizes, tokens, parallel, layers)
    yield _linear(sizes, tokens, sizes.vocabulary // parallel, sizes.hidden, 1)


def _attention(sizes: DecoderSizes, tokens: int, parallel: int, context: int) -> Iterator[Weighted]:
    heads, key_heads = sizes.heads // parallel, max(sizes.key_heads // parallel, 1)
    width, layers, dtypes = sizes.head_width, sizes.layers, {"T": sizes.dtype}
    yield _linear(sizes, tokens, (heads + 2 * key_heads) * width, sizes.hidden, layers, bias=sizes.qkv_bias)
    if sizes.head_norms:
        yield "rms_norm", problem(R=tokens * heads, D=width, present=_WEIGHTED, dtypes=dtypes), layers
        yield "rms_norm", problem(R=tokens * key_heads, D=width, present=_WEIGHTED, dtypes=dtypes), layers
    causal = {} if tokens == 1 else {"causal": "lower_right" if context else "upper_left"}
    attended = problem(
        B=1, H=heads, HK=key_heads, M=tokens, N=context + tokens, D=width, attributes=causal, dtypes=dtypes
    )
    yield "flash_attention", attended, layers
    yield _linear(sizes, tokens, sizes.hidden, heads * width, layers, bias=sizes.out_bias and parallel == 1)


def _perceptron(sizes: DecoderSizes, tokens: int, parallel: int, calls: int) -> Iterator[Weighted]:
    """One product computes gate and up: they are the halves of its rows."""
    width = sizes.expert_width // parallel
    yield _linear(sizes, tokens, 2 * width, sizes.hidden, calls, bias=sizes.mlp_bias)
    halves = {"gate": (2 * width, 1), "up": (2 * width, 1)}
    begins = width * DTYPES[sizes.dtype].itemsize
    aligned = min(begins & -begins, DEFAULT_ALIGNMENT)
    alignment = {"up": aligned} if aligned != DEFAULT_ALIGNMENT else {}
    gated = problem(R=tokens, D=width, strides=halves, alignment=alignment, dtypes={"T": sizes.dtype})
    yield "silu_mul", gated, calls
    yield _linear(sizes, tokens, sizes.hidden, width, calls, bias=sizes.mlp_bias and parallel == 1)


def _linear(sizes: DecoderSizes, rows: int, columns: int, depth: int, calls: int, *, bias: bool = False) -> Weighted:
    """A product with a weight. If devices add up their parts of it, its bias is added after that."""
    present: Sequence[str] = ("bias",) if bias else ()
    asked = problem(M=rows, N=columns, K=depth, order=_BY_COLUMNS, present=present, dtypes={"T": sizes.dtype})
    return "gemm", asked, calls
