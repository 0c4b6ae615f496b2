"""Softmax of rows whose elements follow each other, in registers.

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
