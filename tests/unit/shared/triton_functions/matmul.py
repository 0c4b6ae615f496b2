"""A matrix product with descriptors made by the host, for tests."""

# ruff: noqa: N803 - constexprs are written in capitals

import triton
import triton.language as tl


@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    top, left = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(a.load([top, k]), b.load([k, left]), total)
    row, column = top + tl.arange(0, BM), left + tl.arange(0, BN)
    inside = (row[:, None] < M) & (column[None, :] < N)
    tl.store(c + row[:, None] * N + column[None, :], total.to(c.dtype.element_ty), mask=inside)
