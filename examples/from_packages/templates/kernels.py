"""Generic kernels, which the packages do not have."""

import triton
import triton.language as tl


@triton.jit
def _rotate(ptr, step, cos_ptr, cos_step, sin_ptr, sin_step, half, BLOCK: tl.constexpr):
    for start in range(0, half, BLOCK):
        column = (start + tl.arange(0, BLOCK)).to(tl.int64)
        inside = column < half
        left = tl.load(ptr + column * step, mask=inside).to(tl.float32)
        right = tl.load(ptr + (half + column) * step, mask=inside).to(tl.float32)
        cos = tl.load(cos_ptr + column * cos_step, mask=inside).to(tl.float32)
        sin = tl.load(sin_ptr + column * sin_step, mask=inside).to(tl.float32)
        tl.store(ptr + column * step, left * cos - right * sin, mask=inside)
        tl.store(ptr + (half + column) * step, right * cos + left * sin, mask=inside)


@triton.jit
def rope_any(
    q, q_0, q_1, q_2, q_3, k, k_0, k_1, k_2, k_3, cos, cos_0, cos_1, sin, sin_0, sin_1,
    tokens, query_heads, half, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rotary embedding in place, for any strides: a program for each token and head."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    batch, token = row // tokens, row % tokens
    cos_row, sin_row = cos + token * cos_0, sin + token * sin_0
    if head < query_heads:
        _rotate(q + batch * q_0 + token * q_1 + head * q_2, q_3, cos_row, cos_1, sin_row, sin_1, half, BLOCK)
    else:
        head -= query_heads
        _rotate(k + batch * k_0 + token * k_1 + head * k_2, k_3, cos_row, cos_1, sin_row, sin_1, half, BLOCK)


@triton.jit
def cumsum_any(
    s, s_0, s_1, s_2, s_3, o, o_0, o_1, o_2, o_3, scale, T, H, S, BT: tl.constexpr, BS: tl.constexpr
):  # fmt: skip
    """Sums within chunks of BT tokens for any strides: a program for each BS columns of a chunk of a head."""
    blocks = tl.cdiv(S, BS)
    pid, batch_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    batch, head = batch_head // H, batch_head % H
    column = pid % blocks * BS + tl.arange(0, BS)
    inside = column < S
    first = pid // blocks * BT
    total = tl.zeros((BS,), tl.float32)
    for token in range(first, tl.minimum(first + BT, T)):
        total += tl.load(s + batch * s_0 + token * s_1 + head * s_2 + column * s_3, mask=inside, other=0.0)
        tl.store(o + batch * o_0 + token * o_1 + head * o_2 + column * o_3, total * scale, mask=inside)


@triton.jit
def conv_any(
    x, x_0, x_1, x_2, weight, weight_0, weight_1, bias, bias_0, y, y_0, y_1, y_2, D, W, BD: tl.constexpr
):  # fmt: skip
    """A causal convolution with SiLU for any strides: a program for each BD channels of a token."""
    blocks = tl.cdiv(D, BD)
    pid, batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    token, channel = pid // blocks, pid % blocks * BD + tl.arange(0, BD)
    inside = channel < D
    total = tl.load(bias + channel * bias_0, mask=inside, other=0.0).to(tl.float32)
    for back in range(tl.minimum(W, token + 1)):
        values = tl.load(x + batch * x_0 + (token - back) * x_1 + channel * x_2, mask=inside, other=0.0)
        taps = tl.load(weight + channel * weight_0 + (W - 1 - back) * weight_1, mask=inside, other=0.0)
        total += values.to(tl.float32) * taps.to(tl.float32)
    tl.store(y + batch * y_0 + token * y_1 + channel * y_2, total * tl.sigmoid(total), mask=inside)


@triton.jit
def gated_any(
    x, x_0, x_1, x_2, gate, gate_0, gate_1, up, up_0, up_1, out, out_0, out_1, out_2, hidden, depth,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """SwiGLU of two products for any strides: a program for each COLUMNS of a token."""
    blocks = tl.cdiv(hidden, COLUMNS)
    pid, batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    token, column = pid // blocks, pid % blocks * COLUMNS + tl.arange(0, COLUMNS)
    there = (column < hidden)[:, None]
    gated = tl.zeros((COLUMNS,), tl.float32)
    plain = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, depth, DEPTH):
        k = (start + tl.arange(0, DEPTH)).to(tl.int64)[None, :]
        inside = there & (k < depth)
        values = tl.load(x + batch * x_0 + token * x_1 + k * x_2, mask=k < depth, other=0.0).to(tl.float32)
        gated += tl.sum(values * tl.load(gate + column[:, None] * gate_0 + k * gate_1, mask=inside, other=0.0), 1)
        plain += tl.sum(values * tl.load(up + column[:, None] * up_0 + k * up_1, mask=inside, other=0.0), 1)
    at = out + batch * out_0 + token * out_1 + column * out_2
    tl.store(at, gated * tl.sigmoid(gated) * plain, mask=column < hidden)
