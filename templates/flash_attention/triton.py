"""Attention forward on matrix units: a block of queries keeps its sums while blocks of keys and values pass by.

The method is that of Milakov and Gimelshein (arXiv:1805.02867) and of FlashAttention-2 (Dao, arXiv:2307.08691): scores
never reach memory, and powers are of 2. Blocks of keys that all queries of a block see are taken without a mask.

`CAUSAL` is the index of the attribute's value: none, upper_left, lower_right. A query i sees keys up to i + shift.
"""

import triton
import triton.language as tl

LOWEST = tl.constexpr(float("-inf"))
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def locate(H, HK, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):
    """The batch, head, key head and first query of a program; the shift; and where the keys end that all its queries
    see, in whole blocks, and those that any sees.

    Blocks with the most keys begin first, and blocks of one head run at the same time: its keys stay in the L2 cache.
    """
    blocks = tl.cdiv(M, BLOCK_M)
    program = tl.program_id(0)
    first = program % blocks
    if CAUSAL != 0:
        first = blocks - 1 - first
    first *= BLOCK_M
    head = program // blocks % H
    batch = program // blocks // H
    shift = N - M if CAUSAL == 2 else 0
    full, end = N, N
    if CAUSAL != 0:
        full = tl.minimum(tl.maximum(first + 1 + shift, 0), N)
        end = tl.minimum(tl.maximum(tl.minimum(first + BLOCK_M, M) + shift, 0), N)
    return batch, head, head * HK // H, first, shift, full // BLOCK_N * BLOCK_N, end


@triton.jit
def fold(q, k, v, sums, total, top, scale, last, keys, N, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """Add a block of keys (D x N) and values (N x D) to what the queries (M x D) have.

    `top` is the greatest score so far times `scale`, -inf where there was none; `total` the sum of powers, `sums` that
    of the values times them; `last` the last key that each query sees.
    """
    scores = tl.dot(q, k)
    if MASKED:
        seen = keys[None, :] < N
        if CAUSAL != 0:
            seen &= keys[None, :] <= last[:, None]
        scores = tl.where(seen, scores, LOWEST)
    higher = tl.maximum(top, tl.max(scores, 1) * scale)
    level = tl.where(higher == LOWEST, 0.0, higher)
    powers = tl.exp2(scores * scale - level[:, None])
    fade = tl.exp2(top - level)
    total = total * fade + tl.sum(powers, 1)
    sums = tl.dot(powers.to(v.dtype), v, sums * fade[:, None])
    return sums, total, higher


@triton.jit
def exponent(scale, D):
    """The factor of scores under powers of 2; a scale of 0 stands for 1 / sqrt(D)."""
    return tl.where(scale == 0.0, 1.0 / tl.sqrt(tl.cast(D, tl.float32)), scale) * LOG2E


@triton.jit
def finish(sums, total, last, CAUSAL: tl.constexpr):
    """The results of a block of queries: 0 where a query sees no key."""
    result = sums / total[:, None]
    if CAUSAL == 2:  # in the others every query sees the first key
        result = tl.where(last[:, None] >= 0, result, 0.0)
    return result


@triton.jit
def attention_tma(
    q,
    k,
    v,
    out,
    scale,
    H,
    HK,
    M,
    N,
    D,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """With tensor descriptors: of q and out in blocks of 1 x 1 x BLOCK_M x BLOCK_D, of k and v of BLOCK_N rows."""
    rows, length = tl.cast(M, tl.int32), tl.cast(N, tl.int32)
    batch, head, key_head, first, shift, full, end = locate(
        tl.cast(H, tl.int32), tl.cast(HK, tl.int32), rows, length, BLOCK_M, BLOCK_N, CAUSAL
    )
    scale = exponent(scale, D)
    last = first + tl.arange(0, BLOCK_M) + shift
    columns = tl.arange(0, BLOCK_N)
    sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    queries = q.load([batch, head, first, 0]).reshape(BLOCK_M, BLOCK_D)
    for n in tl.range(0, full, BLOCK_N):
        keys = k.load([batch, key_head, n, 0]).reshape(BLOCK_N, BLOCK_D)
        values = v.load([batch, key_head, n, 0]).reshape(BLOCK_N, BLOCK_D)
        sums, total, top = fold(
            queries, keys.T, values, sums, total, top, scale, last, n + columns, length, CAUSAL, MASKED=False
        )
    for n in tl.range(full, end, BLOCK_N):
        keys = k.load([batch, key_head, n, 0]).reshape(BLOCK_N, BLOCK_D)
        values = v.load([batch, key_head, n, 0]).reshape(BLOCK_N, BLOCK_D)
        sums, total, top = fold(
            queries, keys.T, values, sums, total, top, scale, last, n + columns, length, CAUSAL, MASKED=True
        )
    result = finish(sums, total, last, CAUSAL).to(out.dtype)
    out.store([batch, head, first, 0], result.reshape(1, 1, BLOCK_M, BLOCK_D))


@triton.jit
def read(at, inside, WHOLE: tl.constexpr, MASKED: tl.constexpr):
    """A block; zeros outside."""
    return tl.load(at) if WHOLE and not MASKED else tl.load(at, mask=inside, other=0.0)


@triton.jit
def attention(
    q,
    k,
    v,
    out,
    scale,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    out_batch,
    out_head,
    out_row,
    H,
    HK,
    M,
    N,
    D,
    CAUSAL: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """With pointers and strides, in elements; the last axis of every tensor has stride 1. `WHOLE`: D is BLOCK_D.

    Offsets within a block of keys have 32 bits.
    """
    batch, head, key_head, first, shift, full, end = locate(H, HK, M, N, BLOCK_M, BLOCK_N, CAUSAL)
    scale = exponent(scale, D)
    rows = first + tl.arange(0, BLOCK_M)
    last = rows + shift
    columns = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    batch, head, key_head = batch.to(tl.int64), head.to(tl.int64), key_head.to(tl.int64)
    k += batch * k_batch + key_head * k_head
    v += batch * v_batch + key_head * v_head
    key_offsets = columns[None, :] * tl.cast(k_row, tl.int32) + d[:, None]
    value_offsets = columns[:, None] * tl.cast(v_row, tl.int32) + d[None, :]
    own = (rows[:, None] < M) & (d[None, :] < D)
    rows = rows.to(tl.int64)[:, None]
    queries = tl.load(q + batch * q_batch + head * q_head + rows * q_row + d[None, :], mask=own, other=0.0)
    sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    for n in tl.range(0, full, BLOCK_N):
        keys = read(k + tl.cast(n, tl.int64) * k_row + key_offsets, d[:, None] < D, WHOLE, MASKED=False)
        values = read(v + tl.cast(n, tl.int64) * v_row + value_offsets, d[None, :] < D, WHOLE, MASKED=False)
        sums, total, top = fold(
            queries, keys, values, sums, total, top, scale, last, n + columns, N, CAUSAL, MASKED=False
        )
    for n in tl.range(full, end, BLOCK_N):
        left = N - n
        keys = read(
            k + tl.cast(n, tl.int64) * k_row + key_offsets,
            (d[:, None] < D) & (columns[None, :] < left),
            WHOLE,
            MASKED=True,
        )
        values = read(
            v + tl.cast(n, tl.int64) * v_row + value_offsets,
            (d[None, :] < D) & (columns[:, None] < left),
            WHOLE,
            MASKED=True,
        )
        sums, total, top = fold(
            queries, keys, values, sums, total, top, scale, last, n + columns, N, CAUSAL, MASKED=True
        )
    result = finish(sums, total, last, CAUSAL).to(out.dtype.element_ty)
    tl.store(out + batch * out_batch + head * out_head + rows * out_row + d[None, :], result, mask=own)


@triton.jit
def attention_split(
    q,
    k,
    v,
    out,
    partial,
    arrived,
    scale,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    out_batch,
    out_head,
    out_row,
    H,
    HK,
    M,
    N,
    D,
    CAUSAL: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Few queries, many keys: SPLIT programs share the keys of a block, and the last to arrive adds what they found.

    A block has queries of all heads that share a key head, head after head, so that keys are read once for them.
    `partial` has, for each block and program, BLOCK_M x BLOCK_D sums, then BLOCK_M sums of powers and as many greatest
    scores, in float32; `arrived` a counter for each block that is 0. Pointers and strides are those of `attention`.
    """
    group = H // HK
    blocks = tl.cdiv(M * group, BLOCK_M)
    tile, part = tl.program_id(0) // SPLIT, tl.program_id(0) % SPLIT
    key_head = tile // blocks % HK
    batch = (tile // blocks // HK).to(tl.int64)
    packed = tile % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = packed < M * group
    rows = packed % M
    heads = (key_head * group + packed // M).to(tl.int64)
    last = rows + (N - M if CAUSAL == 2 else 0)
    full, end = N, N
    if CAUSAL != 0:
        full = tl.minimum(tl.maximum(tl.min(tl.where(inside, last, N), 0) + 1, 0), N)
        end = tl.minimum(tl.maximum(tl.max(tl.where(inside, last, -1), 0) + 1, 0), N)
    steps = tl.cdiv(end, BLOCK_N)
    begin, stop = part * steps // SPLIT * BLOCK_N, tl.minimum((part + 1) * steps // SPLIT * BLOCK_N, end)
    full = tl.minimum(tl.maximum(full // BLOCK_N * BLOCK_N, begin), stop)
    scale = exponent(scale, D)
    columns = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    k += batch * k_batch + key_head.to(tl.int64) * k_head
    v += batch * v_batch + key_head.to(tl.int64) * v_head
    key_offsets = columns[None, :] * tl.cast(k_row, tl.int32) + d[:, None]
    value_offsets = columns[:, None] * tl.cast(v_row, tl.int32) + d[None, :]
    own = inside[:, None] & (d[None, :] < D)
    place = rows.to(tl.int64)
    at = (batch * q_batch + heads * q_head + place * q_row)[:, None] + d[None, :]
    queries = tl.load(q + at, mask=own, other=0.0)
    sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    for n in tl.range(begin, full, BLOCK_N):
        keys = read(k + tl.cast(n, tl.int64) * k_row + key_offsets, d[:, None] < D, WHOLE, MASKED=False)
        values = read(v + tl.cast(n, tl.int64) * v_row + value_offsets, d[None, :] < D, WHOLE, MASKED=False)
        sums, total, top = fold(
            queries, keys, values, sums, total, top, scale, last, n + columns, N, CAUSAL, MASKED=False
        )
    for n in tl.range(full, stop, BLOCK_N):
        left = N - n
        keys = read(
            k + tl.cast(n, tl.int64) * k_row + key_offsets,
            (d[:, None] < D) & (columns[None, :] < left),
            WHOLE,
            MASKED=True,
        )
        values = read(
            v + tl.cast(n, tl.int64) * v_row + value_offsets,
            (d[None, :] < D) & (columns[:, None] < left),
            WHOLE,
            MASKED=True,
        )
        sums, total, top = fold(
            queries, keys, values, sums, total, top, scale, last, n + columns, N, CAUSAL, MASKED=True
        )
    each = tl.arange(0, BLOCK_M)
    square = each[:, None] * BLOCK_D + d[None, :]
    SIZE: tl.constexpr = BLOCK_M * (BLOCK_D + 2)
    found = partial + tile.to(tl.int64) * (SPLIT * SIZE)
    mine = found + part * SIZE
    tl.store(mine + square, sums, cache_modifier=".cg")
    tl.store(mine + BLOCK_M * BLOCK_D + each, total, cache_modifier=".cg")
    tl.store(mine + BLOCK_M * (BLOCK_D + 1) + each, top, cache_modifier=".cg")
    tl.debug_barrier()  # all of it is on its way before the counter says so
    before = tl.atomic_add(arrived + tile, 1, sem="acq_rel")
    if before == SPLIT - 1:
        highest = tl.full([BLOCK_M], LOWEST, tl.float32)
        for other in tl.static_range(SPLIT):
            theirs = found + other * SIZE + BLOCK_M * (BLOCK_D + 1) + each
            highest = tl.maximum(highest, tl.load(theirs, cache_modifier=".cg"))
        level = tl.where(highest == LOWEST, 0.0, highest)
        sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        for other in tl.static_range(SPLIT):
            theirs = found + other * SIZE
            fade = tl.exp2(tl.load(theirs + BLOCK_M * (BLOCK_D + 1) + each, cache_modifier=".cg") - level)
            total += fade * tl.load(theirs + BLOCK_M * BLOCK_D + each, cache_modifier=".cg")
            sums += fade[:, None] * tl.load(theirs + square, cache_modifier=".cg")
        result = finish(sums, total, last, CAUSAL).to(out.dtype.element_ty)
        at = (batch * out_batch + heads * out_head + place * out_row)[:, None] + d[None, :]
        tl.store(out + at, result, mask=own)
