"""Attention by blocks of keys, with a function that its scores go through."""

# ruff: noqa: N803 - constexprs are written in capitals

import triton
import triton.language as tl


@triton.jit
def attend(
    query,
    key,
    value,
    slopes,
    out,
    stride_query_0,
    stride_query_1,
    stride_query_2,
    stride_key_0,
    stride_key_1,
    stride_key_2,
    stride_value_0,
    stride_value_1,
    stride_value_2,
    stride_out_0,
    stride_out_1,
    stride_out_2,
    stride_slopes_0,
    limit,
    H,
    Q,
    K,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    score: tl.constexpr,
):
    b, h = tl.program_id(1) // H, tl.program_id(1) % H
    i, d = tl.program_id(0) * BM + tl.arange(0, BM)[:, None], tl.arange(0, D)[None, :]
    at = b * stride_query_0 + h * stride_query_1 + i * stride_query_2 + d
    rows = tl.load(query + at, mask=i < Q, other=0.0)
    most = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    sums = tl.zeros((BM, D), tl.float32)
    first = 0  # no range: the interpreter of Triton 3.6 knows no bounds that are arguments
    while first < K:
        j = first + tl.arange(0, BN)
        there = j[:, None] < K
        at = b * stride_key_0 + h * stride_key_1 + j[:, None] * stride_key_2 + d
        keys = tl.load(key + at, mask=there, other=0.0)
        s = tl.sum(rows[:, None, :] * keys[None, :, :], axis=2)
        s = score(s, b, h, i, j[None, :], slopes=slopes, stride_slopes_0=stride_slopes_0, limit=limit, Q=Q, K=K, H=H)
        s = tl.where(j[None, :] < K, s, -float("inf"))
        now = tl.maximum(most, tl.max(s, axis=1))
        base = tl.where(now == -float("inf"), 0.0, now)
        kept, weights = tl.exp(most - base), tl.exp(s - base[:, None])
        at = b * stride_value_0 + h * stride_value_1 + j[:, None] * stride_value_2 + d
        values = tl.load(value + at, mask=there, other=0.0)
        sums = sums * kept[:, None] + tl.sum(weights[:, :, None] * values[None, :, :], axis=1)
        total = total * kept + tl.sum(weights, axis=1)
        most = now
        first += BN
    at = b * stride_out_0 + h * stride_out_1 + i * stride_out_2 + d
    tl.store(out + at, sums / total[:, None], mask=i < Q)
