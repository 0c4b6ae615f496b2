"""Softmax of rows whose elements follow each other: rows in registers, or row by row in two walks.

With EARLY, programs may begin before the kernel in front of this one has ended.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LOG2E_REST = tl.constexpr(1.925963033500925e-08)  # what float32 leaves of it


@triton.jit
def power(x, EXACT: tl.constexpr):
    """e^x for x <= 0; `EXACT` to float32's precision, where a rounded product costs |x| times that."""
    if EXACT:
        x = tl.where(x < -150.0, -150.0, x)  # 0 either way, and finite below; NaN stays
        whole = x * LOG2E
        rest = tl.fma(x, LOG2E, -whole) + x * LOG2E_REST
        return tl.exp2(whole) * (1.0 + rest * 0.6931471805599453)
    return tl.exp2(x * LOG2E)


@triton.jit(do_not_specialize=["R"])
def softmax_rows(x, out, x_row, out_row, R, D, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, EARLY: tl.constexpr):
    """BLOCK_R rows of a program, whole: BLOCK_D is at least D. Strides are those of rows, in elements."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    EXACT: tl.constexpr = out.dtype.element_ty == tl.float32
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.arange(0, BLOCK_D)[None, :]
    inside = (rows[:, None] < R) & (columns < D)
    rows = rows.to(tl.int64)[:, None]
    values = tl.load(x + rows * x_row + columns, mask=inside, other=-float("inf")).to(tl.float32)
    powers = power(values - tl.max(values, 1)[:, None], EXACT)
    share = 1.0 / tl.sum(tl.where(columns < D, powers, 0.0), 1)
    tl.store(out + rows * out_row + columns, (powers * share[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def softmax_long(x, out, x_row, out_row, D, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """A row of a program: maximum and sum in one walk, each lane its own, then write."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    EXACT: tl.constexpr = out.dtype.element_ty == tl.float32
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    out += row * out_row
    columns = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    for first in tl.range(0, D, BLOCK):
        values = tl.load(x + first + columns, mask=first + columns < D, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, values)
        level = tl.where(higher == -float("inf"), 0.0, higher)
        sums = sums * power(top - level, EXACT) + power(values - level, EXACT)
        top = higher
    most = tl.max(top, 0)
    # Lanes without an element take no part; where all elements are -inf, the sum of powers is 0 as it must be.
    total = tl.sum(sums * power(tl.where(top == -float("inf"), -float("inf"), top - most), EXACT), 0)
    share = 1.0 / total
    for first in tl.range(0, D, BLOCK):
        inside = first + columns < D
        values = tl.load(x + first + columns, mask=inside, other=-float("inf")).to(tl.float32)
        tl.store(out + first + columns, (power(values - most, EXACT) * share).to(out.dtype.element_ty), mask=inside)
