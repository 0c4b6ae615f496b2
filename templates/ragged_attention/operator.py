"""Attention over a batch of sequences of different lengths, whose queries and keys lie one after another."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import (
    Baseline,
    Call,
    Kernel,
    Operator,
    Problem,
    Tensor,
    dim,
    drawn,
    maximum,
    minimum,
    problem,
    where,
)

from ..common.attention_sequences import (
    ATTRIBUTES,
    CAUSAL,
    DOCUMENTATION,
    DV,
    HK,
    OPTIONS,
    B,
    D,
    H,
    M,
    attend,
    cu_q,
    limits,
    pairs,
    seen,
    short_floats,
    split,
    torch_by_sequence,
    torch_varlen,
    whole_groups,
)
from .triton_kernels import RAGGED_KERNELS

N = dim("N")
SEEN = minimum(H, HK) * where(N >= M, seen(N), seen(N) // 8)  # rows of keys that are read in tests
FEWER = where(CAUSAL == 1, N * N // 2, M * N) // maximum(B, 1)  # `pairs` where there are fewer keys than queries


def cu_k(rng: Any, call: Any) -> list[int]:
    """Offsets of keys: with each query its own, and as many others in each sequence, if there are enough keys."""
    if call.N < call.M:
        return split(rng, call.N, call.B)
    return [int(q) + (call.N - call.M) * b // max(call.B, 1) for b, q in enumerate(call.cu_q)]


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition."""
    ends = limits(call.cu_k.tolist(), call.k.shape[0])
    begins = xp.asarray([begin for begin, _ in ends])

    def gather(b: Any, places: Any) -> tuple[Any, Any]:
        at = begins[b] + places
        return call.k[at], call.v[at]

    return attend(xp, call, [end - begin for begin, end in ends], gather, call.v.shape[2])


def _of_torch(call: Call, b: int) -> tuple[Any, Any]:
    """Keys and values of a sequence. Offsets are brought to the host once, not in each call."""
    if not hasattr(call, "on_host"):
        call.on_host = limits(call.cu_k.tolist(), call.k.shape[0])
    begin, end = call.on_host[b]
    return call.k[begin:end], call.v[begin:end]


def _of_varlen(call: Call) -> dict[str, Any]:
    most = max(end - begin for begin, end in limits(call.cu_k.tolist(), call.k.shape[0]))
    return {"key": call.k, "value": call.v, "cu_seq_k": call.cu_k, "max_k": most}


def _batch(
    b: int, heads: int, key_heads: int, m: int, n: int, d: int, dv: int = 0, dtype: str = "bf16", causal: bool = True
) -> Problem:
    chosen = {"causal": "lower_right"} if causal else {}
    return problem(B=b, M=m, H=heads, HK=key_heads, N=n, D=d, DV=dv or d, attributes=chosen, dtypes={"T": dtype})


def cuda_workload() -> tuple[Problem, ...]:
    """Prompts of Llama-3-8B and 70B (a part of 8), some with keys of before, of DeepSeek-V3, and of encoders."""
    found = [_batch(b, 32, 8, m, m, 128) for b, m in ((4, 8192), (8, 8192), (16, 16384))]
    found += [_batch(b, 8, 1, m, m, 128) for b, m in ((4, 8192), (16, 16384))]
    found += [_batch(8, 32, 8, 4096, 16384, 128), _batch(4, 16, 16, 8192, 8192, 192, 128)]
    found += [_batch(16, 12, 12, 8192, 8192, 64, causal=False), _batch(4, 8, 4, 8192, 8192, 256)]
    found += [_batch(8, 32, 8, 8192, 8192, d, dtype="f16") for d in (64, 128, 256)]
    return (*found, _batch(4, 16, 16, 8192, 8192, 192, 128, dtype="f16"))


CHECKS = tuple(
    problem(B=b, M=m, H=6, HK=2, N=n, D=d, DV=dv, attributes=chosen, present=["lse"])
    for b, m, n, d, dv in (
        (3, 301, 517, 64, 64),
        (5, 150, 150, 128, 128),
        (2, 203, 131, 192, 128),
        (3, 70, 90, 256, 192),
    )
    for chosen in ({}, {"causal": "lower_right"})
)

operator = Operator(
    name="ragged_attention",
    documentation=DOCUMENTATION.format(
        keys="Its keys are rows cu_k[b] to cu_k[b + 1] - 1 of k and v, by the same rules."
    ),
    dims=("B", "M", "H", "HK", "N", "D", "DV"),
    tensors=(
        Tensor("q", (M, H, D), "T", read=seen(M) * H * D),
        Tensor("k", (N, HK, D), "T", read=SEEN * D),
        Tensor("v", (N, HK, DV), "T", read=SEEN * DV),
        Tensor("cu_q", (B + 1,), "i32", values=drawn(cu_q)),
        Tensor("cu_k", (B + 1,), "i32", values=drawn(cu_k)),
        Tensor("out", (M, H, DV), "T", output=True),
        Tensor("lse", (M, H), "f32", output=True, optional=True),
    ),
    scalars=OPTIONS,
    attributes=ATTRIBUTES,
    dtypes={"T": ("f32", "bf16", "f16")},
    intermediates="f32",
    legal=(HK >= 1,),
    reference=reference,
    flops=2 * H * (D + DV) * where(N >= M, pairs(maximum(N - M, 0)), FEWER),
    ranges={"M": (1, 65536), "N": (64, 131072)},
    values={
        "B": (1, 2, 4, 8, 16, 32, 64),
        "H": (8, 12, 16, 24, 32, 40, 64),
        "HK": (1, 2, 4, 8, 16),
        "D": (64, 128, 192, 256),
        "DV": (64, 128, 256),
    },
    regimes={"short": (M <= 512 * B,), "long": (M > 512 * B,)},
    expected=(H % HK == 0, (D == DV) | (D == 192) & (DV == 128), N >= M, M >= 16 * B, CAUSAL == 1),
    workload={
        "cpu": (_batch(3, 8, 2, 192, 192, 64, dtype="f32"),),
        "cuda": cuda_workload(),
    },
    checks=CHECKS,
    tolerance=16.0,  # as of flash_attention: matrix units take powers that are rounded to 16 bits
    baselines=(
        Baseline("torch.sdpa_by_sequence", "torch", torch_by_sequence(_of_torch), supports=whole_groups),
        Baseline("torch.varlen_attn", "torch.nn.attention.varlen", torch_varlen(_of_varlen), supports=short_floats),
    ),
    kernels=(
        Kernel("generic", "ragged_attention/generic.cpp.j2", generic=True),
        Kernel("cuda_generic", "ragged_attention/cuda_generic.cu.j2", backend="nvcc", generic=True),
        *RAGGED_KERNELS,
    ),
)
