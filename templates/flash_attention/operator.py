"""Attention: out = softmax(scale * q @ k^T) @ v, head by head, with or without a causal mask."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

from aot_tune.spec import (
    Attribute,
    Baseline,
    Call,
    Kernel,
    Operator,
    Problem,
    Scalar,
    Tensor,
    attribute,
    dims,
    minimum,
    problem,
    where,
)

from .cpu.cpu_kernels import CPU_KERNELS
from .triton_kernels import TRITON_KERNELS

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
        few = call.q[:, :, s : s + rows]
        out[:, :, s : s + rows] = _attend(xp, few, k, v, scale, last)
        # By itself: of a product of two matrices, the yardstick of errors makes some sums in order.
        out[0, 0, s : s + rows] = _attend(xp, few[0, 0], k[0, 0], v[0, 0], scale, last)
    return {"out": out}


def _attend(xp: Any, q: Any, k: Any, v: Any, scale: float, last: int | None) -> Any:
    """Of queries of some heads, or of one; the first query sees keys up to `last`, or all."""
    scores = xp.matmul(q, k.swapaxes(-1, -2)) * scale
    if last is not None:
        head = scores if scores.ndim == 2 else scores[0, 0]
        scores = xp.where(xp.tril(xp.ones_like(head), last) > 0, scores, -math.inf)
    powers = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    result = xp.matmul(powers / xp.sum(powers, axis=-1, keepdims=True), v)
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
        if call.causal == "lower_right" and call.q.shape[2] != call.k.shape[2]:
            bias = importlib.import_module("torch.nn.attention.bias")
            masked = {"attn_mask": bias.causal_lower_right(call.q.shape[2], call.k.shape[2])}

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


def whole_groups(given: Problem) -> bool:
    """Whether as many heads share each key head, which torch asks for."""
    return given.dims["HK"] > 0 and given.dims["H"] % given.dims["HK"] == 0


def short_floats(given: Problem) -> bool:
    """Whether torch's backends for matrix units take the problem: 16 bits, and heads that are not too wide."""
    return whole_groups(given) and given.dtypes.get("T", "f32") != "f32" and given.dims["D"] <= 256


def cpu_workload() -> tuple[Problem, ...]:
    """Layers of BERT-base, GPT-2 and ViT-B/16, and of Llama-3-8B: a short prompt, its next piece, and single tokens.

    In f32; some in bf16.
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
    )


def cuda_workload() -> tuple[Problem, ...]:
    """16384 tokens in sequences of 4 K to 16 K and 2048 columns, and layers of Llama-3-8B (32 heads, 8 of keys).

    In bf16, a few in f16; with and without a mask. Short queries against long keys are a prompt's next piece, a single
    one is a token's.
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
    return tuple(found)


def _layer(
    b: int, heads: int, key_heads: int, m: int, n: int, width: int, causal: dict[str, str], dtype: str = "bf16"
) -> Problem:
    return problem(B=b, H=heads, HK=key_heads, M=m, N=n, D=width, attributes=causal, dtypes={"T": dtype})


def _checks() -> tuple[Problem, ...]:
    """Sizes that are multiples of no block, with groups of heads, and every mask; once with more queries than keys."""
    found = []
    for causal in ("none", "upper_left", "lower_right"):
        attributes = {} if causal == "none" else {"causal": causal}
        found.append(problem(B=2, H=6, HK=2, M=301, N=517, D=64, attributes=attributes))
        found.append(problem(B=1, H=4, HK=1, M=517, N=301, D=128, attributes=attributes))
        found.append(problem(B=1, H=2, HK=1, M=130, N=259, D=256, attributes=attributes))
        found.append(problem(B=1, H=2, HK=2, M=70, N=70, D=80, attributes=attributes))
    return tuple(found)


operator = Operator(
    name="flash_attention",
    documentation="out = softmax(scale * q @ k^T) @ v, head by head; a scale of 0 stands for 1 / sqrt(D), none may be "
    "negative. Query head h reads key head h * HK / H, rounded down: H / HK heads share one. causal=upper_left: query "
    "i sees keys 0 to i; lower_right: up to i + N - M, so that the last query sees all. A query that sees no key is 0.",
    dims=("B", "H", "HK", "M", "N", "D"),
    tensors=(
        Tensor("q", (B, H, M, D), "T", read=SEEING),
        Tensor("k", (B, HK, N, D), "T", read=SEEN),
        Tensor("v", (B, HK, N, D), "T", read=SEEN),
        Tensor("out", (B, H, M, D), "T", output=True),
    ),
    scalars=(Scalar("scale", "f32", 0.0, other=0.2),),
    attributes=(Attribute("causal", ("none", "upper_left", "lower_right")),),
    dtypes={"T": ("f32", "bf16", "f16")},
    intermediates="f32",
    reference=reference,
    flops=4 * B * H * D * PAIRS,
    ranges={"M": (1, 32768), "N": (64, 32768), "D": (32, 256)},
    expected=(H % HK == 0,),
    workload={"cpu": cpu_workload(), "cuda": cuda_workload()},
    checks=_checks(),
    # Matrix units take powers that are rounded to 16 bits. Where a query sees few of many keys, that is much beside the
    # typical result: with 2048 keys, 4 times what rounding the result costs.
    tolerance=16.0,
    baselines=(
        Baseline("torch.scaled_dot_product_attention", "torch", torch_attention(), supports=whole_groups),
        Baseline("torch.sdpa_flash", "torch", torch_attention("FLASH_ATTENTION"), supports=short_floats),
        Baseline("torch.sdpa_cudnn", "torch", torch_attention("CUDNN_ATTENTION"), supports=short_floats),
    ),
    kernels=(
        *CPU_KERNELS,
        Kernel("cuda_generic", "flash_attention/cuda_generic.cu.j2", backend="nvcc", generic=True),
        *TRITON_KERNELS,
    ),
)
