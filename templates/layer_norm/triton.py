"""Layer norm of rows whose elements follow each other, with or without weight and bias.

The variance is that of the centred values.

With EARLY, programs may begin before the kernel in front of this one has ended.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["R"])
def layer_norm_rows(
    x,
    weight,
    bias,
    out,
    eps,
    x_row,
    out_row,
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
    values = tl.load(x + rows * x_row + columns, mask=inside, other=0.0).to(tl.float32)
    if weight is not None:
        weights = tl.load(weight + columns, mask=columns < D, other=0.0).to(tl.float32)
    if bias is not None:
        biases = tl.load(bias + columns, mask=columns < D, other=0.0).to(tl.float32)
    mean = tl.sum(values, 1) / D
    centred = tl.where(columns < D, values - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / D + eps)
    result = centred * scale[:, None]
    if weight is not None:
        result *= weights
    if bias is not None:
        result += biases
    tl.store(out + rows * out_row + columns, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def layer_norm_twice(
    x,
    weight,
    bias,
    out,
    eps,
    x_row,
    out_row,
    D,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A row of a program, read twice: moments, for which it stays in L2, then write, after which it leaves first.

    BLOCKS is 1 where a block holds the row, else 0. Each lane then has moments of its own (Welford's) of the columns
    that are a block apart, so that lanes meet but once.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    out += row * out_row
    columns = tl.arange(0, BLOCK)
    if BLOCKS == 1:
        values = tl.load(x + columns, mask=columns < D, other=0.0, eviction_policy="evict_last").to(tl.float32)
        mean = tl.sum(values, 0) / D
        centred = tl.where(columns < D, values - mean, 0.0)
        squares = tl.sum(centred * centred, 0)
    else:
        means = tl.zeros([BLOCK], tl.float32)
        sums = tl.zeros([BLOCK], tl.float32)
        for first in tl.range(0, D, BLOCK):
            at = first + columns
            values = tl.load(x + at, mask=at < D, other=0.0, eviction_policy="evict_last").to(tl.float32)
            apart = tl.where(at < D, values - means, 0.0)
            means += apart * (1.0 / (first // BLOCK + 1))
            sums += tl.where(at < D, apart * (values - means), 0.0)
        counts = tl.where(columns < D, (D - columns + BLOCK - 1) // BLOCK, 0).to(tl.float32)
        mean = tl.sum(means * counts, 0) / D
        apart = means - mean
        squares = tl.sum(sums + counts * apart * apart, 0)
    scale = tl.rsqrt(squares / D + eps)
    for first in tl.range(0, BLOCK if BLOCKS == 1 else D, BLOCK):
        at = first + columns
        if weight is not None:
            weights = tl.load(weight + at, mask=at < D, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if bias is not None:
            biases = tl.load(bias + at, mask=at < D, other=0.0, eviction_policy="evict_last").to(tl.float32)
        centred = tl.load(x + at, mask=at < D, other=0.0, eviction_policy="evict_first").to(tl.float32) - mean
        result = centred * scale
        if weight is not None:
            result *= weights
        if bias is not None:
            result += biases
        tl.store(out + at, result.to(out.dtype.element_ty), mask=at < D)
