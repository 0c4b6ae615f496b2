"""Scaled products of floats of 8 bits: out = (a * scales) @ (b * scales) + bias, b by columns.

Matrix units sum at most 128 products by themselves: their sums keep fewer bits than f32. With BLOCKS, a scale is of 128
elements of K, and of 128 columns of b; else a row's and a column's scale are for the whole sum.
"""

import triton
import triton.language as tl


@triton.jit
def place(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """The first row and column of a tile: GROUP tiles down, then one to the right: neighbours in time share."""
    down, across = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    band = tile // (GROUP * across)
    tall = tl.minimum(down - band * GROUP, GROUP)
    rest = tile % (GROUP * across)
    return (band * GROUP + rest % tall) * BLOCK_M, rest // tall * BLOCK_N


@triton.jit
def column_scales(scale_b, step, columns, N, b_block, b_column):
    """Scales of columns in a block of K."""
    at = (columns // 128).to(tl.int64) * b_column + step * b_block
    return tl.load(scale_b + at, mask=columns < N, other=0.0)


@triton.jit
def finish(sums, scale_a, scale_b, bias, a_row, b_column, rows, columns, M, N, BLOCKS: tl.constexpr):
    """Sums after the scales of rows and columns, and the bias."""
    if not BLOCKS:
        of_rows = tl.load(scale_a + rows.to(tl.int64) * a_row, mask=rows < M, other=0.0)
        sums = sums * of_rows[:, None] * tl.load(scale_b + columns.to(tl.int64) * b_column, mask=columns < N, other=0.0)
    if bias is not None:
        sums += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    return sums


@triton.jit(do_not_specialize=["a_row", "a_block", "b_block", "b_column"])
def scaled_tma(
    a,
    b,
    scale_a,
    scale_b,
    bias,
    out,
    a_row,
    a_block,
    b_block,
    b_column,
    M,
    N,
    K,
    BLOCKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr,
):
    """With tensor descriptors of a, b and out, made by the host; programs take tiles in turn until none is left."""
    height, width = tl.cast(M, tl.int32), tl.cast(N, tl.int32)
    tiles = tl.cdiv(height, BLOCK_M) * tl.cdiv(width, BLOCK_N)
    steps = tl.cdiv(tl.cast(K, tl.int32), 128)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=not BLOCKS):
        first, left = place(tile, height, width, BLOCK_M, BLOCK_N, GROUP)
        rows, columns = first + tl.arange(0, BLOCK_M), left + tl.arange(0, BLOCK_N)
        sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        of_rows = scale_a + rows.to(tl.int64) * a_row
        for step in tl.range(0, steps):
            factor, other = a.load([first, step * 128]), b.load([left, step * 128]).T
            if BLOCKS:
                of_a = tl.load(of_rows + step * a_block, mask=rows < height, other=0.0)
                if BLOCK_N <= 128:  # one block of columns
                    of_a *= tl.load(scale_b + (left // 128).to(tl.int64) * b_column + step * b_block)
                    sums += tl.dot(factor, other) * of_a[:, None]
                else:
                    of_b = column_scales(scale_b, step, columns, width, b_block, b_column)
                    sums += tl.dot(factor, other) * (of_a[:, None] * of_b[None, :])
            else:
                sums = tl.dot(factor, other, sums, max_num_imprecise_acc=128)
        sums = finish(sums, scale_a, scale_b, bias, a_row, b_column, rows, columns, height, width, BLOCKS)
        out.store([first, left], sums.to(out.dtype))


@triton.jit(do_not_specialize=["a_row", "a_block", "b_block", "b_column", "M"])
def scaled_few(
    a,
    b,
    scale_a,
    scale_b,
    bias,
    out,
    partial,
    arrived,
    out_line,
    a_row,
    a_block,
    b_block,
    b_column,
    M,
    N,
    K,
    BLOCKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STEPS: tl.constexpr,
    SPLIT: tl.constexpr,
    EARLY: tl.constexpr,
):
    """All rows of a, at most BLOCK_M, times BLOCK_N columns of b, which is read once.

    Instructions are 64 tall: the columns of b lie that way, or the rows of a where columns are fewer. STEPS blocks of K
    are read at a time: memory likes more than the 128 bytes of one.

    SPLIT programs share the sums of a block of columns, and the last to arrive adds what they found: `partial` has
    BLOCK_N x BLOCK_M sums of each, `arrived` a counter for each block that is 0. Both are None where SPLIT is 1.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    TALL: tl.constexpr = BLOCK_N >= 64
    AXIS: tl.constexpr = 0 if TALL else 1
    tile, part = tl.program_id(0), tl.program_id(1)
    left, steps = tile * BLOCK_N, tl.cdiv(tl.cast(K, tl.int32), 128)
    turns = tl.cdiv(steps, STEPS)
    first, end = part * turns // SPLIT * STEPS, (part + 1) * turns // SPLIT * STEPS
    rows, columns = tl.arange(0, BLOCK_M), left + tl.arange(0, BLOCK_N)
    of_rows = scale_a + rows.to(tl.int64) * a_row
    of_columns = scale_b + (left // 128).to(tl.int64) * b_column
    sums = tl.zeros([BLOCK_N, BLOCK_M] if TALL else [BLOCK_M, BLOCK_N], tl.float32)
    if BLOCKS:  # those of a step are read before the products of the one before
        of_a = tl.load(of_rows + first * a_block, mask=rows < M, other=0.0)
        of_b = tl.load(of_columns + first * b_block)
    for turn in tl.range(first, end, STEPS):
        for more in tl.static_range(STEPS):  # behind the last step all is 0
            step = turn + more
            tall, flat = b.load([left, step * 128]), a.load([0, step * 128])
            if not TALL:
                tall, flat = flat, tall
            if BLOCKS:
                there = tl.where(step + 1 < steps, M, 0)
                a_next = tl.load(of_rows + (step + 1) * a_block, mask=rows < there, other=0.0)
                b_next = tl.load(of_columns + (step + 1) * b_block, mask=there > 0, other=0.0)
                sums += tl.dot(tall, flat.T) * tl.expand_dims(of_a * of_b, AXIS)
                of_a, of_b = a_next, b_next
            else:
                sums = tl.dot(tall, flat.T, sums, max_num_imprecise_acc=128)
    if TALL:
        sums = sums.T
    whole = True
    if SPLIT > 1:
        each = rows[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        parts = partial + tile * (SPLIT * BLOCK_N * BLOCK_M)
        tl.store(parts + part * (BLOCK_N * BLOCK_M) + each, sums, cache_modifier=".cg")
        tl.debug_barrier()  # all of it is on its way before the counter says so
        whole = tl.atomic_add(arrived + tile, 1, sem="acq_rel") == SPLIT - 1
        if whole:
            sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            for one in tl.static_range(SPLIT):
                sums += tl.load(parts + one * (BLOCK_N * BLOCK_M) + each, cache_modifier=".cg")
    if whole:
        total = finish(sums, scale_a, scale_b, bias, a_row, b_column, rows, columns, M, N, BLOCKS)
        to = out + rows.to(tl.int64)[:, None] * out_line + columns[None, :]
        tl.store(to, total.to(out.dtype.element_ty), mask=(rows < M)[:, None] & (columns < N)[None, :])
