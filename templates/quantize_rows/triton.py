"""Rows to 8 bits with scales, as they are, after silu(gate) * up, or after a root-mean-square norm.

Elements of a row follow each other; scales may have any strides. With EARLY, programs may begin before the kernel in
front of this one has ended.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LOG2E_REST = tl.constexpr(1.925963033500925e-08)  # what float32 leaves of it
LOWEST = tl.constexpr(-3.4028234e38)
ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: to add it rounds to a whole number


@triton.jit
def begin(EARLY: tl.constexpr):
    """Wait for the kernel in front of this one."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def block(R, D, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr):
    """A program's rows, its first column, its columns, and what exists. Programs of a row follow each other."""
    across = tl.cdiv(D, BLOCK_D)
    rows = tl.program_id(0) // across * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    first = tl.program_id(0) % across * BLOCK_D
    columns = first + tl.arange(0, BLOCK_D)[None, :]
    return rows.to(tl.int64), first, columns, (rows < R) & (columns < D)


@triton.jit
def write(y, rows, first, inside, out, scale, scale_column, GROUPS, R, min_amax, POWERS, SPAN: tl.constexpr):
    """Write a block of rows in groups of SPAN columns, to addresses, and their scales, to those of rows."""
    BLOCK_R: tl.constexpr = y.shape[0]
    BLOCK_D: tl.constexpr = y.shape[1]
    PARTS: tl.constexpr = BLOCK_D // SPAN
    INTEGERS: tl.constexpr = out.dtype.element_ty == tl.int8
    bits = tl.reshape(y.to(tl.int32, bitcast=True) & 0x7FFFFFFF, [BLOCK_R, PARTS, SPAN])
    most = tl.max(bits, 2).to(tl.float32, bitcast=True)  # as integers, NaN is the largest
    MOST: tl.constexpr = 127.0 if INTEGERS else 448.0
    limited = tl.where(most <= min_amax, min_amax, most)
    near = limited * (1.0 / MOST)
    rest = tl.fma(near, -MOST, limited)  # what is left of it makes the quotient that to nearest
    scales = tl.where(rest == rest, tl.fma(rest, 1.0 / MOST, near), near)
    up = ((scales.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    scales = tl.where((POWERS != 0) & (scales == scales), up, scales)
    y *= tl.reshape(tl.broadcast_to((1.0 / scales)[:, :, None], [BLOCK_R, PARTS, SPAN]), [BLOCK_R, BLOCK_D])
    if INTEGERS:
        y = (y + ROUND) - ROUND
        y = tl.where(y == y, y, 0.0)
    tl.store(out, y.to(out.dtype.element_ty), mask=inside)
    groups = first // SPAN + tl.arange(0, PARTS)[None, :]
    tl.store(scale + groups * scale_column, scales, mask=(rows < R) & (groups < GROUPS))


@triton.jit(do_not_specialize=["R", "GROUPS", "scale_row", "scale_column", "POWERS"])
def quantize_rows(
    x,
    out,
    scale,
    min_amax,
    x_row,
    out_row,
    scale_row,
    scale_column,
    R,
    D,
    GROUPS,
    POWERS,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPAN: tl.constexpr,
    EARLY: tl.constexpr,
):
    """BLOCK_R rows and BLOCK_D columns, in whole groups."""
    begin(EARLY)
    rows, first, columns, inside = block(R, D, BLOCK_R, BLOCK_D)
    y = tl.load(x + rows * x_row + columns, mask=inside, other=0.0).to(tl.float32)
    at = out + rows * out_row + columns
    write(y, rows, first, inside, at, scale + rows * scale_row, scale_column, GROUPS, R, min_amax, POWERS, SPAN)


@triton.jit(do_not_specialize=["R", "GROUPS", "scale_row", "scale_column", "POWERS"])
def silu_mul_quantize(
    gate,
    up,
    out,
    scale,
    min_amax,
    gate_row,
    up_row,
    out_row,
    scale_row,
    scale_column,
    R,
    D,
    GROUPS,
    POWERS,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPAN: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The same of silu(gate) * up. Scales are f32: e^-x is to float32's precision."""
    begin(EARLY)
    rows, first, columns, inside = block(R, D, BLOCK_R, BLOCK_D)
    x = tl.load(gate + rows * gate_row + columns, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(up + rows * up_row + columns, mask=inside, other=0.0).to(tl.float32)
    least = tl.where(x < -150.0, -150.0, x)  # e^-x is inf or 0 either way, and finite below; NaN stays
    least = tl.where(least > 150.0, 150.0, least)
    whole = least * -LOG2E
    rest = tl.fma(least, -LOG2E, -whole) - least * LOG2E_REST
    power = tl.exp2(whole) * (1.0 + rest * 0.6931471805599453)
    y *= tl.where(x < LOWEST, LOWEST, x) / (1.0 + power)  # at -inf the limit is -0
    at = out + rows * out_row + columns
    write(y, rows, first, inside, at, scale + rows * scale_row, scale_column, GROUPS, R, min_amax, POWERS, SPAN)


@triton.jit(do_not_specialize=["R", "GROUPS", "scale_row", "scale_column", "POWERS"])
def rms_norm_quantize(
    x,
    weight,
    residual,
    out,
    scale,
    residual_out,
    eps,
    min_amax,
    x_row,
    residual_row,
    out_row,
    scale_row,
    scale_column,
    residual_out_row,
    R,
    D,
    GROUPS,
    POWERS,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPAN: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The same of a root-mean-square norm. Rows are whole: BLOCK_D is at least D."""
    begin(EARLY)
    rows, first, columns, inside = block(R, D, BLOCK_R, BLOCK_D)
    y = tl.load(x + rows * x_row + columns, mask=inside, other=0.0).to(tl.float32)
    if weight is not None:
        weights = tl.load(weight + columns, mask=columns < D, other=0.0).to(tl.float32)
    if residual is not None:
        y += tl.load(residual + rows * residual_row + columns, mask=inside, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(y * y, 1) / D + eps)[:, None]
    if residual_out is not None:  # behind the sum, for which all threads have read: it may lie in the residual's memory
        tl.store(residual_out + rows * residual_out_row + columns, y.to(residual_out.dtype.element_ty), mask=inside)
    y *= factor
    if weight is not None:
        y *= weights
    at = out + rows * out_row + columns
    write(y, rows, first, inside, at, scale + rows * scale_row, scale_column, GROUPS, R, min_amax, POWERS, SPAN)
