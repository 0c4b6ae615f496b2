"""A function that applies two fragments: one to what it has read, and the operator's epilogue in front of its store."""

# ruff: noqa: N803 - constexprs are written in capitals

import triton
import triton.language as tl


@triton.jit
def scaled(
    x,
    out,
    bias,
    slopes,
    stride_x_0,
    stride_out_0,
    stride_slopes_0,
    alpha,
    M,
    N,
    BM: tl.constexpr,
    BN: tl.constexpr,
    score: tl.constexpr,
    epilogue: tl.constexpr,
):
    i = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    j = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    inside = (i < M) & (j < N)
    value = tl.load(x + i * stride_x_0 + j, mask=inside, other=0.0)
    value = score(value, i, j, slopes=slopes, stride_slopes_0=stride_slopes_0, M=M)
    value = epilogue(value, i, j, bias=bias, stride_bias_0=1, alpha=alpha, N=N)
    tl.store(out + i * stride_out_0 + j, value, mask=inside)
