"""silu(gate) * up, a stretch of a row to a program.

With EARLY, programs may begin before the kernel in front of this one has ended.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LOG2E_REST = tl.constexpr(1.925963033500925e-08)  # what float32 leaves of it
LOWEST = tl.constexpr(-3.4028234e38)  # a digit more, and Triton 3.6 compares in float64


@triton.jit
def power(x, EXACT: tl.constexpr):
    """e^x; `EXACT` to float32's precision, where a rounded product costs |x| times that."""
    if EXACT:
        x = tl.where(x < -150.0, -150.0, x)  # 0 or inf either way, and finite below; NaN stays
        x = tl.where(x > 150.0, 150.0, x)
        whole = x * LOG2E
        rest = tl.fma(x, LOG2E, -whole) + x * LOG2E_REST
        return tl.exp2(whole) * (1.0 + rest * 0.6931471805599453)
    return tl.exp2(x * LOG2E)


@triton.jit
def silu_mul(gate, up, out, gate_row, up_row, out_row, D, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """BLOCK elements of a row of D; strides are those of rows, in elements."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    EXACT: tl.constexpr = out.dtype.element_ty == tl.float32
    blocks = tl.cdiv(D, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(gate + row * gate_row + at, mask=at < D, other=0.0).to(tl.float32)
    y = tl.load(up + row * up_row + at, mask=at < D, other=0.0).to(tl.float32)
    limited = tl.where(x < LOWEST, LOWEST, x)  # -inf would meet an infinite divisor; its limit is -0
    result = limited / (1.0 + power(-x, EXACT)) * y
    tl.store(out + row * out_row + at, result.to(out.dtype.element_ty), mask=at < D)
