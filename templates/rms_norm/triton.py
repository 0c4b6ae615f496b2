"""Root-mean-square norm of rows whose elements follow each other, with or without the residual."""

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
):
    """BLOCK_R rows of a program, whole: BLOCK_D is at least D. Strides are those of rows, in elements."""
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.arange(0, BLOCK_D)[None, :]
    inside = (rows[:, None] < R) & (columns < D)
    rows = rows.to(tl.int64)[:, None]
    total = tl.load(x + rows * x_row + columns, mask=inside, other=0.0).to(tl.float32)
    weights = tl.load(weight + columns, mask=columns < D, other=0.0).to(tl.float32)
    if residual is not None:
        total += tl.load(residual + rows * residual_row + columns, mask=inside, other=0.0).to(tl.float32)
    if residual_out is not None:
        tl.store(residual_out + rows * residual_out_row + columns, total.to(residual_out.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(total * total, 1) / D + eps)
    tl.store(out + rows * out_row + columns, (total * scale[:, None] * weights).to(out.dtype.element_ty), mask=inside)


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
    BLOCK: tl.constexpr,
):
    """A row of a program: sum of squares, then write."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    out += row * out_row
    if residual is not None:
        residual += row * residual_row
    if residual_out is not None:
        residual_out += row * residual_out_row
    columns = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for first in tl.range(0, D, BLOCK):
        at = first + columns
        total = tl.load(x + at, mask=at < D, other=0.0).to(tl.float32)
        if residual is not None:
            total += tl.load(residual + at, mask=at < D, other=0.0).to(tl.float32)
        squares += total * total
    scale = tl.rsqrt(tl.sum(squares, 0) / D + eps)
    for first in tl.range(0, D, BLOCK):
        at = first + columns
        total = tl.load(x + at, mask=at < D, other=0.0).to(tl.float32)
        weights = tl.load(weight + at, mask=at < D, other=0.0).to(tl.float32)
        if residual is not None:
            total += tl.load(residual + at, mask=at < D, other=0.0).to(tl.float32)
        if residual_out is not None:
            tl.store(residual_out + at, total.to(residual_out.dtype.element_ty), mask=at < D)
        tl.store(out + at, (total * scale * weights).to(out.dtype.element_ty), mask=at < D)


@triton.jit
def rms_norm_twice(
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
    BLOCK: tl.constexpr,
):
    """A row of a program: sum of squares, for which it stays in L2, then write, after which it leaves first."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    out += row * out_row
    if residual is not None:
        residual += row * residual_row
    if residual_out is not None:
        residual_out += row * residual_out_row
    columns = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for first in tl.range(0, D, BLOCK):
        at = first + columns
        total = tl.load(x + at, mask=at < D, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if residual is not None:
            total += tl.load(residual + at, mask=at < D, other=0.0, eviction_policy="evict_last").to(tl.float32)
        squares += total * total
    scale = tl.rsqrt(tl.sum(squares, 0) / D + eps)
    for first in tl.range(0, D, BLOCK):
        at = first + columns
        total = tl.load(x + at, mask=at < D, other=0.0, eviction_policy="evict_first").to(tl.float32)
        weights = tl.load(weight + at, mask=at < D, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if residual is not None:
            total += tl.load(residual + at, mask=at < D, other=0.0, eviction_policy="evict_first").to(tl.float32)
        if residual_out is not None:
            tl.store(residual_out + at, total.to(residual_out.dtype.element_ty), mask=at < D)
        tl.store(out + at, (total * scale * weights).to(out.dtype.element_ty), mask=at < D)
