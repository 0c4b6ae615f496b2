"""Root-mean-square norm of rows whose elements follow each other, with or without residual and weight.

With EARLY, programs may begin before the kernel in front of this one has ended.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["R"])
def rms_norm_rows(
    x,
    weight,
    residual,
    out,
    residual_out,
    eps,
    x_row,
    residual_row,
    out_row,
    residual_out_row,
    R,
    D,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    EARLY: tl.constexpr,
):
    """BLOCK_R rows of a program, whole: BLOCK_D is at least D. Strides are those of rows, in elements."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.arange(0, BLOCK_D)[None, :]
    inside = (rows[:, None] < R) & (columns < D)
    rows = rows.to(tl.int64)[:, None]
    total = tl.load(x + rows * x_row + columns, mask=inside, other=0.0).to(tl.float32)
    if weight is not None:
        weights = tl.load(weight + columns, mask=columns < D, other=0.0).to(tl.float32)
    if residual is not None:
        total += tl.load(residual + rows * residual_row + columns, mask=inside, other=0.0).to(tl.float32)
    result = total * tl.rsqrt(tl.sum(total * total, 1) / D + eps)[:, None]
    if weight is not None:
        result *= weights
    if residual_out is not None:  # behind the sum, for which all threads have read: it may lie in the residual's memory
        tl.store(residual_out + rows * residual_out_row + columns, total.to(residual_out.dtype.element_ty), mask=inside)
    tl.store(out + rows * out_row + columns, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def rms_norm_long(
    x,
    weight,
    residual,
    out,
    residual_out,
    eps,
    x_row,
    residual_row,
    out_row,
    residual_out_row,
    D,
    END: tl.constexpr,
    BLOCK: tl.constexpr,
    HINTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A row of a program: sum of squares, then write; END is where its loops end: BLOCK if that holds it, or 0 for D.

    With HINTS a row stays in L2 until it is read again, and leaves it first then.
    """
    end = D if END == 0 else END
    FIRST: tl.constexpr = "evict_last" if HINTS else ""
    SECOND: tl.constexpr = "evict_first" if HINTS else ""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    out += row * out_row
    if residual is not None:
        residual += row * residual_row
    if residual_out is not None:
        residual_out += row * residual_out_row
    columns = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for first in tl.range(0, end, BLOCK):
        at = first + columns
        total = tl.load(x + at, mask=at < D, other=0.0, eviction_policy=FIRST).to(tl.float32)
        if residual is not None:
            total += tl.load(residual + at, mask=at < D, other=0.0, eviction_policy=FIRST).to(tl.float32)
        squares += total * total
    scale = tl.rsqrt(tl.sum(squares, 0) / D + eps)
    for first in tl.range(0, end, BLOCK):
        at = first + columns
        total = tl.load(x + at, mask=at < D, other=0.0, eviction_policy=SECOND).to(tl.float32)
        if weight is not None:
            weights = tl.load(weight + at, mask=at < D, other=0.0, eviction_policy=FIRST).to(tl.float32)
        if residual is not None:
            total += tl.load(residual + at, mask=at < D, other=0.0, eviction_policy=SECOND).to(tl.float32)
        if residual_out is not None:
            tl.store(residual_out + at, total.to(residual_out.dtype.element_ty), mask=at < D)
        result = total * scale
        if weight is not None:
            result *= weights
        tl.store(out + at, result.to(out.dtype.element_ty), mask=at < D)
