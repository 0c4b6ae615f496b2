"""Attention: out = softmax(scale * q @ k^T + bias) @ v, head by head, with or without masks."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import msgspec

from aot_tune.spec import (
    Attribute,
    Baseline,
    Call,
    Expr,
    Kernel,
    Operator,
    Problem,
    Scalar,
    Tensor,
    attribute,
    dims,
    minimum,
    problem,
    sparse,
    stride,
    where,
)

from .cpu.cpu_kernels import CPU_KERNELS
from .gpu_kernels import GPU_KERNELS
from .vendor.vendor_kernels import CUDNN

B, H, HK, M, N, D = dims("B H HK M N D")

CAUSAL = attribute("causal")
SQUARE = minimum(M, N)
# Queries and keys of a head that meet.
PAIRS = where(
    CAUSAL == 0, M * N, SQUARE * (SQUARE + 1) // 2 + where(CAUSAL == 1, (M - SQUARE) * N, SQUARE * (N - SQUARE))
)
# Keys that some query sees, and queries that see some.
SEEN = B * minimum(H, HK) * where(CAUSAL == 1, SQUARE, N) * D
SEEING = B * H * where(CAUSAL == 2, SQUARE, M) * D


def _beside(tensor: str) -> Expr:
    """Elements of a mask or a bias that a call reads: those of a broadcast axis once."""
    per_head = where(stride(tensor, 2) == 0, where(CAUSAL == 1, SQUARE, N), PAIRS)
    return where(stride(tensor, 0) == 0, 1, B) * where(stride(tensor, 1) == 0, 1, H) * per_head


_SCORES = 2**25  # that the reference holds at a time


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition, some queries at a time; a query that sees no key is 0."""
    out = xp.zeros_like(call.q)
    if min(*call.q.shape, *call.k.shape) == 0:
        return {"out": out}
    batches, heads, queries, width = call.q.shape
    key_heads, keys = call.k.shape[1:3]
    read = [h * key_heads // heads for h in range(heads)]
    k, v = call.k[:, read], call.v[:, read]
    scale = call.scale or 1.0 / math.sqrt(width)
    shift = {"none": None, "upper_left": 0, "lower_right": keys - queries}[call.causal]
    rows = max(_SCORES // (batches * heads * keys), 1)
    for s in range(0, queries, rows):
        last = None if shift is None else s + shift
        few, mask, bias = (None if t is None else t[:, :, s : s + rows] for t in (call.q, call.mask, call.bias))
        out[:, :, s : s + rows] = _attend(xp, few, k, v, scale, last, mask, bias)
        # By itself: of a product of two matrices, the yardstick of errors makes some sums in order.
        first = (None if t is None else t[0, 0] for t in (mask, bias))
        out[0, 0, s : s + rows] = _attend(xp, few[0, 0], k[0, 0], v[0, 0], scale, last, *first)
    return {"out": out}


def _attend(xp: Any, q: Any, k: Any, v: Any, scale: float, last: int | None, mask: Any, bias: Any) -> Any:
    """Of queries of some heads, or of one; the first query sees keys up to `last`, or all."""
    scores = xp.matmul(q, k.swapaxes(-1, -2)) * scale
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = xp.where(mask, scores, -math.inf)
    if last is not None:
        head = scores if scores.ndim == 2 else scores[0, 0]
        scores = xp.where(xp.tril(xp.ones_like(head), last) > 0, scores, -math.inf)
    highest = xp.max(scores, axis=-1, keepdims=True)
    powers = xp.exp(scores - highest)
    result = xp.matmul(powers / xp.sum(powers, axis=-1, keepdims=True), v)
    if mask is not None or bias is not None:
        result = xp.where(highest == -math.inf, xp.zeros_like(result), result)
    if last is not None:
        result[..., : max(-last, 0), :] = 0
    return result


def torch_attention(backend: str = "") -> Callable[[Any, Call], Callable[[], object]]:
    """torch's function, of one of its backends by name, or of the one that it chooses.

    It has no `.out` form: the result is copied into the output where that is looked at, not in a graph that is timed.
    """

    def prepare(torch: Any, call: Call) -> Callable[[], object]:
        scale = call.scale or None
        masked: dict[str, Any] = {"is_causal": call.causal != "none"}
        queries, keys = call.q.shape[2], call.k.shape[2]
        if call.mask is not None or call.bias is not None:
            masked = {"attn_mask": _mask_of_torch(torch, call)}
        elif call.causal == "lower_right" and queries != keys:
            bias = importlib.import_module("torch.nn.attention.bias")
            masked = {"attn_mask": bias.causal_lower_right(queries, keys)}

        def attend() -> Any:
            return torch.nn.functional.scaled_dot_product_attention(
                call.q, call.k, call.v, scale=scale, enable_gqa=call.q.shape[1] != call.k.shape[1], **masked
            )

        def run() -> None:
            if backend:
                with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
                    result = attend()
            else:
                result = attend()
            if not (call.q.is_cuda and torch.cuda.is_current_stream_capturing()):
                call.out.copy_(result)

        return run

    return prepare


def _mask_of_torch(torch: Any, call: Call) -> Any:
    """The mask, the bias, or both and the causal mask in one tensor, as torch wants them: made once."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    mask = call.mask
    if call.causal != "none":
        seen = torch.ones(queries, keys, dtype=torch.bool, device=call.q.device)
        seen = seen.tril(keys - queries if call.causal == "lower_right" else 0)
        mask = seen if mask is None else mask & seen
    if call.bias is None or mask is None:
        return mask if call.bias is None else call.bias
    return call.bias.masked_fill(~mask, -math.inf)


def whole_groups(given: Problem) -> bool:
    """Whether as many heads share each key head, which torch asks for."""
    return given.dims["HK"] > 0 and given.dims["H"] % given.dims["HK"] == 0


def short_floats(given: Problem) -> bool:
    """Whether torch's backends for matrix units take the problem: 16 bits, and heads that are not too wide."""
    return whole_groups(given) and given.dtypes.get("T", "f32") != "f32" and given.dims["D"] <= 256


def without_masks(given: Problem) -> bool:
    """Whether torch's flash kernels take the problem: they know the causal mask alone."""
    return short_floats(given) and not given.present


def without_booleans(given: Problem) -> bool:
    """Whether cuDNN takes the problem: a bias, and no mask of booleans."""
    return short_floats(given) and "mask" not in given.present


def masked_heads(given: Problem) -> bool:
    """Whether torch's memory-efficient kernels are for the problem: a mask, and keys for each head."""
    return bool(given.present) and given.dims["H"] == given.dims["HK"]


def cpu_workload() -> tuple[Problem, ...]:
    """Layers of BERT-base, GPT-2 and ViT-B/16, and of Llama-3-8B: a short prompt, its next piece, and single tokens.

    In f32; some in bf16. Of those with masks, some are of padded sequences, and one has a bias for each head.
    """
    upper, lower = {"causal": "upper_left"}, {"causal": "lower_right"}
    return (
        _layer(1, 4, 4, 128, 128, 64, {}, "f32"),
        _layer(1, 12, 12, 384, 384, 64, {}, "f32"),
        _layer(1, 12, 12, 512, 512, 64, upper, "f32"),
        _layer(2, 12, 12, 197, 197, 64, {}, "f32"),
        _layer(1, 32, 8, 512, 512, 128, upper, "f32"),
        _layer(1, 32, 8, 64, 1024, 128, lower, "f32"),
        _layer(1, 32, 8, 1, 4096, 128, {}, "f32"),
        _layer(1, 12, 12, 1, 1024, 64, {}, "f32"),
        _layer(1, 8, 1, 1, 16384, 64, {}, "f32"),
        _layer(1, 16, 4, 5, 2000, 80, lower, "f32"),
        _layer(1, 7, 7, 333, 333, 72, upper, "f32"),
        _layer(1, 12, 12, 384, 384, 64, {}),
        _layer(1, 32, 8, 512, 512, 128, upper),
        _layer(1, 32, 8, 64, 1024, 128, lower),
        _layer(1, 32, 8, 1, 4096, 128, {}),
        _layer(1, 32, 32, 256, 256, 96, upper),
        _masked(_layer(2, 12, 12, 384, 384, 64, {}, "f32"), "mask", "B N"),
        _masked(_layer(4, 8, 8, 256, 256, 64, {}, "f32"), "bias", "H M N"),
        _masked(_layer(4, 32, 8, 1, 2048, 128, {}), "mask", "B N"),
    )


def cuda_workload() -> tuple[Problem, ...]:
    """16384 tokens in sequences of 4 K to 16 K and 2048 columns, and layers of Llama-3-8B (32 heads, 8 of keys).

    In bf16, a few in f16; with and without a mask. Short queries against long keys are a prompt's next piece, a single
    one is a token's, a few are guesses at the next ones. Then heads of other widths, and other masks than the causal
    one: of padded sequences, of a document's parts, and a bias for each head.
    """
    found = []
    masks: tuple[dict[str, str], ...] = ({}, {"causal": "upper_left"})
    for causal in masks:
        for width in (64, 128, 256):
            for tokens in (4096, 8192, 16384):
                heads = 2048 // width
                found.append(_layer(16384 // tokens, heads, heads, tokens, tokens, width, causal))
        for tokens in (1024, 4096, 8192):
            found.append(_layer(1, 32, 8, tokens, tokens, 128, causal))
        found.append(_layer(4, 16, 16, 4096, 4096, 128, causal, "f16"))
    found += [_layer(1, 32, 8, m, 8192, 128, {"causal": "lower_right"}) for m in (128, 1024)]
    found += [_layer(b, 32, 8, 1, 8192, 128, {}) for b in (1, 16)]
    found += [_layer(1, 32, 8, m, 16384, 128, {"causal": "lower_right"}) for m in (1, 8)]
    found += [_layer(4, 16, 16, 1, 16384, 64, {}), _layer(2, 16, 8, 1, 8192, 256, {})]
    upper, lower = {"causal": "upper_left"}, {"causal": "lower_right"}
    found += [_layer(1, 16, 16, 4096, 4096, width, upper) for width in (96, 160, 192, 224)]
    found += [_layer(1, 16, 16, 4096, 4096, width, upper, "f16") for width in (64, 96, 160, 192, 256)]
    found += [_layer(b, 32, 8, 1, 8192, 128, {}, "f16") for b in (1, 16)]
    found += [_layer(4, 16, 16, 1, 16384, 64, {}, "f16"), _layer(2, 16, 8, 1, 8192, 256, {}, "f16")]
    found.append(_layer(1, 32, 8, 8, 16384, 128, lower, "f16"))
    found += [
        _masked(_layer(16, 16, 16, 512, 512, 64, {}), "mask", "B N"),
        _masked(_layer(1, 32, 8, 4096, 4096, 128, {}), "mask", "M N"),
        _masked(_layer(2, 16, 16, 2048, 2048, 64, {}), "bias", "H M N"),
        _masked(_layer(16, 32, 8, 1, 8192, 128, {}), "mask", "B N"),
        _masked(_layer(4, 16, 16, 1024, 1024, 64, {}), "mask", "B H M N"),
    ]
    return tuple(found)


def _layer(
    b: int, heads: int, key_heads: int, m: int, n: int, width: int, causal: dict[str, str], dtype: str = "bf16"
) -> Problem:
    return problem(B=b, H=heads, HK=key_heads, M=m, N=n, D=width, attributes=causal, dtypes={"T": dtype})


def _masked(given: Problem, tensor: str, axes: str) -> Problem:
    """The problem with a mask or a bias that has these axes, and is broadcast over the others."""
    strides, size = [0, 0, 0, 0], 1
    for axis in reversed(range(4)):
        if "BHMN"[axis] in axes:
            strides[axis] = size
            size *= given.dims["BHMN"[axis]]
    return msgspec.structs.replace(given, present=(tensor,), strides={tensor: tuple(strides)})


def _checks() -> tuple[Problem, ...]:
    """Sizes that are multiples of no block, with groups of heads, and every mask; once with more queries than keys.

    And heads of other widths, with masks and biases that are broadcast and that are not.
    """
    found = []
    for causal in ("none", "upper_left", "lower_right"):
        attributes = {} if causal == "none" else {"causal": causal}
        found.append(problem(B=2, H=6, HK=2, M=301, N=517, D=64, attributes=attributes))
        found.append(problem(B=1, H=4, HK=1, M=517, N=301, D=128, attributes=attributes))
        found.append(problem(B=1, H=2, HK=1, M=130, N=259, D=256, attributes=attributes))
        found.append(problem(B=1, H=2, HK=2, M=70, N=70, D=80, attributes=attributes))
    lower = {"causal": "lower_right"}
    found += [
        problem(B=2, H=4, HK=2, M=131, N=203, D=96, attributes=lower, present=["mask"]),
        problem(B=2, H=4, HK=4, M=131, N=203, D=160, present=["bias"]),
        problem(B=1, H=2, HK=1, M=131, N=203, D=192, attributes={"causal": "upper_left"}, present=["bias", "mask"]),
        problem(B=1, H=2, HK=1, M=131, N=203, D=224),
        _masked(problem(B=2, H=6, HK=2, M=3, N=1301, D=64, attributes=lower), "mask", "B N"),
        _masked(problem(B=2, H=6, HK=2, M=150, N=170, D=128), "bias", "H M N"),
    ]
    return tuple(found)


operator = Operator(
    name="flash_attention",
    documentation="out = softmax(scale * q @ k^T + bias) @ v, head by head; a scale of 0 stands for 1 / sqrt(D), none "
    "may be negative. A key is seen where mask is true. mask and bias have all four axes; what is the same for all "
    "batches, heads or queries is passed as a view with stride 0. Query head h reads key head h * HK / H, rounded "
    "down: H / HK heads share one. causal=upper_left: query i sees keys 0 to i; lower_right: up to i + N - M, so that "
    "the last query sees all. A query that sees no key is 0, and, where mask or bias is passed, one whose scores are "
    "all -inf. D may be anything; up to 256 there are kernels for matrix units.",
    dims=("B", "H", "HK", "M", "N", "D"),
    tensors=(
        Tensor("q", (B, H, M, D), "T", read=SEEING),
        Tensor("k", (B, HK, N, D), "T", read=SEEN),
        Tensor("v", (B, HK, N, D), "T", read=SEEN),
        Tensor("mask", (B, H, M, N), "bool", optional=True, read=_beside("mask"), values=sparse(0.75)),
        Tensor("bias", (B, H, M, N), "T", optional=True, read=_beside("bias")),
        Tensor("out", (B, H, M, D), "T", output=True, layout_of="q"),
    ),
    scalars=(Scalar("scale", "f32", 0.0, other=0.2, least=0.0),),
    attributes=(Attribute("causal", ("none", "upper_left", "lower_right")),),
    dtypes={"T": ("f32", "bf16", "f16")},
    intermediates="f32",
    reference=reference,
    flops=4 * B * H * D * PAIRS,
    ranges={"M": (1, 32768), "N": (64, 32768)},
    values={
        "H": (8, 12, 16, 20, 24, 28, 32, 40, 48, 64),
        "HK": (1, 2, 4, 8, 12, 16, 32),
        "D": (64, 80, 96, 128, 160, 192, 256),
    },
    regimes={"one query": (M == 1,), "few queries": (M <= 32,), "prompt": (M > 32,)},
    expected=(H % HK == 0, (M > 32) | (CAUSAL != 1)),  # by upper_left, few queries would see few keys
    workload={"cpu": cpu_workload(), "cuda": cuda_workload()},
    checks=_checks(),
    # Matrix units take powers that are rounded to 16 bits. Where a query sees few of many keys, that is much beside the
    # typical result: with 2048 keys, 4 times what rounding the result costs.
    tolerance=16.0,
    baselines=(
        Baseline("torch.scaled_dot_product_attention", "torch", torch_attention(), supports=whole_groups),
        Baseline("torch.sdpa_flash", "torch", torch_attention("FLASH_ATTENTION"), supports=without_masks),
        Baseline("torch.sdpa_cudnn", "torch", torch_attention("CUDNN_ATTENTION"), supports=without_booleans),
        Baseline("torch.sdpa_efficient", "torch", torch_attention("EFFICIENT_ATTENTION"), supports=masked_heads),
    ),
    kernels=(
        *CPU_KERNELS,
        Kernel("cuda_generic", "flash_attention/cuda_generic.cu.j2", backend="nvcc", generic=True),
        *GPU_KERNELS,
        CUDNN,
    ),
)
