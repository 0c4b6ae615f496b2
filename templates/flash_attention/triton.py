"""Attention forward on matrix units: a block of queries keeps its sums while blocks of keys and values pass by.

The method is that of Milakov and Gimelshein (arXiv:1805.02867) and of FlashAttention-2 (Dao, arXiv:2307.08691): scores
never reach memory, and powers are of 2. Blocks of keys that all queries of a block see are taken without causal
mask.

`mask` (booleans, true where a key is seen) and `bias` (added to scores) are None where a call has none; a code without
them has nothing of them. Where there is a bias, scores are kept as they are, else times the factor to powers of 2: a
bias near the lowest float stays finite.

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
def beside(at, batch, head, heads, rows, columns, a_batch, a_head, a_row, a_key, ROWS: tl.constexpr):
    """Pointers to the elements of a mask or a bias, of some queries and the first keys.

    `heads` and `rows` are those of the queries. Unless `ROWS`, all have the same elements, which are those of `head`.
    """
    at += batch * a_batch + columns[None, :] * tl.cast(a_key, tl.int32)
    if ROWS:
        at += (heads * a_head + rows * a_row)[:, None]
    else:
        at += head * a_head
    return at


@triton.jit
def apply_masks(scores, mask, bias, scale, n, columns, N, mask_key, bias_key, MASKED: tl.constexpr):
    """Scores of a block of keys from key n on: with a bias times `scale` and with it, and -inf where the mask is false.

    `mask` and `bias` are pointers from `beside`, or None.
    """
    if bias is not None:
        bias += tl.cast(n, tl.int64) * bias_key
        added = tl.load(bias, mask=columns[None, :] < N - n, other=0.0) if MASKED else tl.load(bias)
        scores = scores * scale + added.to(tl.float32)
    if mask is not None:
        mask += tl.cast(n, tl.int64) * mask_key
        seen = tl.load(mask, mask=columns[None, :] < N - n, other=0) if MASKED else tl.load(mask)
        scores = tl.where(seen != 0, scores, LOWEST)
    return scores


@triton.jit
def take_powers(scores, total, top, scale, last, keys, N, bias, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """Powers of scores under the greatest so far, what that makes of sums of before, the new sum and the greatest.

    `top` is the greatest score so far, times `scale` where there is no bias, -inf where there was none; `total` the sum
    of powers; `last` the last key that each query sees.
    """
    if MASKED:
        seen = keys[None, :] < N
        if CAUSAL != 0:
            seen &= keys[None, :] <= last[:, None]
        scores = tl.where(seen, scores, LOWEST)
    if bias is None:
        higher = tl.maximum(top, tl.max(scores, 1) * scale)
        level = tl.where(higher == LOWEST, 0.0, higher)
        powers = tl.exp2(scores * scale - level[:, None])
    else:
        higher = tl.maximum(top, tl.max(scores, 1))
        level = tl.where(higher == LOWEST, 0.0, higher)
        powers = tl.exp2((scores - level[:, None]) * LOG2E)
    fade = lower(top - level, bias)
    return powers, fade, total * fade + tl.sum(powers, 1), higher


@triton.jit
def lower(difference, bias):
    """The power of a difference of greatest scores."""
    if bias is not None:
        difference *= LOG2E
    return tl.exp2(difference)


@triton.jit
def exponent(scale, D, bias):
    """The factor of scores, under powers of 2 where there is no bias; a scale of 0 stands for 1 / sqrt(D)."""
    factor = tl.where(scale == 0.0, 1.0 / tl.sqrt(tl.cast(D, tl.float32)), scale)
    return factor * LOG2E if bias is None else factor


@triton.jit
def finish(sums, total, last, mask, bias, CAUSAL: tl.constexpr):
    """The results of a block of queries: 0 where a query sees no key."""
    result = sums / total[:, None]
    if (mask is not None) or (bias is not None):
        result = tl.where(total[:, None] == 0.0, 0.0, result)
    if CAUSAL == 2:  # in the others every query sees the first key
        result = tl.where(last[:, None] >= 0, result, 0.0)
    return result


@triton.jit
def walk_tma(
    queries, k, v, batch, key_head, sums, total, top, scale, last, begin, stop, columns, N,
    mask, bias, mask_key, bias_key,
    CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the keys and values from `begin` to `stop` to what the queries have."""
    for n in tl.range(begin, stop, BLOCK_N):
        keys = k.load([batch, key_head, n, 0]).reshape(BLOCK_N, BLOCK_D)
        values = v.load([batch, key_head, n, 0]).reshape(BLOCK_N, BLOCK_D)
        scores = tl.dot(queries, keys.T)
        scores = apply_masks(scores, mask, bias, scale, n, columns, N, mask_key, bias_key, MASKED)
        powers, fade, total, top = take_powers(scores, total, top, scale, last, n + columns, N, bias, CAUSAL, MASKED)
        sums = tl.dot(powers.to(values.dtype), values, sums * fade[:, None])
    return sums, total, top


@triton.jit
def attention_tma(
    q, k, v, mask, bias, out, scale,
    mask_batch, mask_head, mask_row, mask_key, bias_batch, bias_head, bias_row, bias_key, H, HK, M, N, D,
    CAUSAL: tl.constexpr, MASK_ROWS: tl.constexpr, BIAS_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """With tensor descriptors: of q and out in blocks of 1 x 1 x BLOCK_M x BLOCK_D, of k and v of BLOCK_N rows."""
    rows, length = tl.cast(M, tl.int32), tl.cast(N, tl.int32)
    batch, head, key_head, first, shift, full, end = locate(
        tl.cast(H, tl.int32), tl.cast(HK, tl.int32), rows, length, BLOCK_M, BLOCK_N, CAUSAL
    )
    scale = exponent(scale, D, bias)
    places = first + tl.arange(0, BLOCK_M)
    last = places + shift
    columns = tl.arange(0, BLOCK_N)
    at, h, place = batch.to(tl.int64), head.to(tl.int64), tl.minimum(places, rows - 1).to(tl.int64)
    if mask is not None:
        mask = beside(mask, at, h, h, place, columns, mask_batch, mask_head, mask_row, mask_key, MASK_ROWS)
    if bias is not None:
        bias = beside(bias, at, h, h, place, columns, bias_batch, bias_head, bias_row, bias_key, BIAS_ROWS)
    sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    queries = q.load([batch, head, first, 0]).reshape(BLOCK_M, BLOCK_D)
    for part in tl.static_range(2):  # what all queries see, and the rest
        sums, total, top = walk_tma(
            queries, k, v, batch, key_head, sums, total, top, scale, last, full if part else 0, end if part else full,
            columns, length, mask, bias, mask_key, bias_key, CAUSAL, BLOCK_N, BLOCK_D, part == 1,
        )  # fmt: skip
    result = finish(sums, total, last, mask, bias, CAUSAL).to(out.dtype)
    out.store([batch, head, first, 0], result.reshape(1, 1, BLOCK_M, BLOCK_D))


@triton.jit
def walk_parts(
    q, q_rest, k, k_rest, v, v_rest, batch, key_head, sums, sums_rest, total, top, scale, last, begin, stop, columns, N,
    mask, bias, mask_key, bias_key,
    CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """As `walk_tma`, with columns in two parts."""
    for n in tl.range(begin, stop, BLOCK_N):
        keys = k.load([batch, key_head, n, 0]).reshape(BLOCK_N, BLOCK_D)
        keys_rest = k_rest.load([batch, key_head, n, BLOCK_D]).reshape(BLOCK_N, REST)
        values = v.load([batch, key_head, n, 0]).reshape(BLOCK_N, BLOCK_D)
        values_rest = v_rest.load([batch, key_head, n, BLOCK_D]).reshape(BLOCK_N, REST)
        scores = tl.dot(q_rest, keys_rest.T, tl.dot(q, keys.T))
        scores = apply_masks(scores, mask, bias, scale, n, columns, N, mask_key, bias_key, MASKED)
        powers, fade, total, top = take_powers(scores, total, top, scale, last, n + columns, N, bias, CAUSAL, MASKED)
        powers = powers.to(values.dtype)
        sums = tl.dot(powers, values, sums * fade[:, None])
        sums_rest = tl.dot(powers, values_rest, sums_rest * fade[:, None])
    return sums, sums_rest, total, top


@triton.jit
def attention_tma_parts(
    q, q_rest, k, k_rest, v, v_rest, mask, bias, out, out_rest, scale,
    mask_batch, mask_head, mask_row, mask_key, bias_batch, bias_head, bias_row, bias_key, H, HK, M, N, D,
    CAUSAL: tl.constexpr, MASK_ROWS: tl.constexpr, BIAS_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """As `attention_tma`, for heads of BLOCK_D + REST columns: 128 and 64 take less than 256 that are in part empty.

    Of each tensor there is a second descriptor, in blocks of REST columns.
    """
    rows, length = tl.cast(M, tl.int32), tl.cast(N, tl.int32)
    batch, head, key_head, first, shift, full, end = locate(
        tl.cast(H, tl.int32), tl.cast(HK, tl.int32), rows, length, BLOCK_M, BLOCK_N, CAUSAL
    )
    scale = exponent(scale, D, bias)
    places = first + tl.arange(0, BLOCK_M)
    last = places + shift
    columns = tl.arange(0, BLOCK_N)
    at, h, place = batch.to(tl.int64), head.to(tl.int64), tl.minimum(places, rows - 1).to(tl.int64)
    if mask is not None:
        mask = beside(mask, at, h, h, place, columns, mask_batch, mask_head, mask_row, mask_key, MASK_ROWS)
    if bias is not None:
        bias = beside(bias, at, h, h, place, columns, bias_batch, bias_head, bias_row, bias_key, BIAS_ROWS)
    sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    sums_rest = tl.zeros([BLOCK_M, REST], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    queries = q.load([batch, head, first, 0]).reshape(BLOCK_M, BLOCK_D)
    queries_rest = q_rest.load([batch, head, first, BLOCK_D]).reshape(BLOCK_M, REST)
    for part in tl.static_range(2):  # what all queries see, and the rest
        sums, sums_rest, total, top = walk_parts(
            queries, queries_rest, k, k_rest, v, v_rest, batch, key_head, sums, sums_rest, total, top, scale, last,
            full if part else 0, end if part else full, columns, length, mask, bias, mask_key, bias_key,
            CAUSAL, BLOCK_N, BLOCK_D, REST, part == 1,
        )  # fmt: skip
    result = finish(sums, total, last, mask, bias, CAUSAL).to(out.dtype)
    out.store([batch, head, first, 0], result.reshape(1, 1, BLOCK_M, BLOCK_D))
    result = finish(sums_rest, total, last, mask, bias, CAUSAL).to(out.dtype)
    out_rest.store([batch, head, first, BLOCK_D], result.reshape(1, 1, BLOCK_M, REST))


@triton.jit
def read(at, inside, WHOLE: tl.constexpr, MASKED: tl.constexpr):
    """A block; zeros outside."""
    return tl.load(at) if WHOLE and not MASKED else tl.load(at, mask=inside, other=0.0)


@triton.jit
def walk(
    queries, k, v, k_row, v_row, sums, total, top, scale, last, begin, stop, columns, d, N, D,
    mask, bias, mask_key, bias_key,
    CAUSAL: tl.constexpr, WHOLE: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the keys and values from `begin` to `stop` to what the queries have. Offsets within a block have 32 bits."""
    key_offsets = columns[None, :] * tl.cast(k_row, tl.int32) + d[:, None]
    value_offsets = columns[:, None] * tl.cast(v_row, tl.int32) + d[None, :]
    for n in tl.range(begin, stop, BLOCK_N):
        of_keys, of_values = d[:, None] < D, d[None, :] < D
        if MASKED:
            of_keys &= columns[None, :] < N - n
            of_values &= columns[:, None] < N - n
        keys = read(k + tl.cast(n, tl.int64) * k_row + key_offsets, of_keys, WHOLE, MASKED)
        values = read(v + tl.cast(n, tl.int64) * v_row + value_offsets, of_values, WHOLE, MASKED)
        scores = tl.dot(queries, keys)
        scores = apply_masks(scores, mask, bias, scale, n, columns, N, mask_key, bias_key, MASKED)
        powers, fade, total, top = take_powers(scores, total, top, scale, last, n + columns, N, bias, CAUSAL, MASKED)
        sums = tl.dot(powers.to(values.dtype), values, sums * fade[:, None])
    return sums, total, top


@triton.jit
def attention(
    q, k, v, mask, bias, out, scale, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    mask_batch, mask_head, mask_row, mask_key, bias_batch, bias_head, bias_row, bias_key,
    out_batch, out_head, out_row, H, HK, M, N, D,
    CAUSAL: tl.constexpr, MASK_ROWS: tl.constexpr, BIAS_ROWS: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """With pointers and strides, in elements; the last axis of q, k, v and out has stride 1. `WHOLE`: D is BLOCK_D."""
    batch, head, key_head, first, shift, full, end = locate(H, HK, M, N, BLOCK_M, BLOCK_N, CAUSAL)
    scale = exponent(scale, D, bias)
    rows = first + tl.arange(0, BLOCK_M)
    last = rows + shift
    columns = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    batch, head, key_head = batch.to(tl.int64), head.to(tl.int64), key_head.to(tl.int64)
    place = tl.minimum(rows, M - 1).to(tl.int64)
    if mask is not None:
        mask = beside(mask, batch, head, head, place, columns, mask_batch, mask_head, mask_row, mask_key, MASK_ROWS)
    if bias is not None:
        bias = beside(bias, batch, head, head, place, columns, bias_batch, bias_head, bias_row, bias_key, BIAS_ROWS)
    k += batch * k_batch + key_head * k_head
    v += batch * v_batch + key_head * v_head
    own = (rows[:, None] < M) & (d[None, :] < D)
    rows = rows.to(tl.int64)[:, None]
    queries = tl.load(q + batch * q_batch + head * q_head + rows * q_row + d[None, :], mask=own, other=0.0)
    sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    for part in tl.static_range(2):  # what all queries see, and the rest
        sums, total, top = walk(
            queries, k, v, k_row, v_row, sums, total, top, scale, last, full if part else 0, end if part else full,
            columns, d, N, D, mask, bias, mask_key, bias_key, CAUSAL, WHOLE, BLOCK_N, part == 1,
        )  # fmt: skip
    result = finish(sums, total, last, mask, bias, CAUSAL).to(out.dtype.element_ty)
    tl.store(out + batch * out_batch + head * out_head + rows * out_row + d[None, :], result, mask=own)


@triton.jit
def attention_split(
    q, k, v, mask, bias, out, partial, arrived, scale,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    mask_batch, mask_head, mask_row, mask_key, bias_batch, bias_head, bias_row, bias_key,
    out_batch, out_head, out_row, H, HK, M, N, D,
    CAUSAL: tl.constexpr, MASK_ROWS: tl.constexpr, BIAS_ROWS: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
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
    scale = exponent(scale, D, bias)
    columns = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    place = rows.to(tl.int64)
    own_head = (key_head * group).to(tl.int64)
    known = tl.where(inside, heads, own_head)
    if mask is not None:
        mask = beside(
            mask, batch, own_head, known, place, columns, mask_batch, mask_head, mask_row, mask_key, MASK_ROWS
        )
    if bias is not None:
        bias = beside(
            bias, batch, own_head, known, place, columns, bias_batch, bias_head, bias_row, bias_key, BIAS_ROWS
        )
    k += batch * k_batch + key_head.to(tl.int64) * k_head
    v += batch * v_batch + key_head.to(tl.int64) * v_head
    own = inside[:, None] & (d[None, :] < D)
    at = (batch * q_batch + heads * q_head + place * q_row)[:, None] + d[None, :]
    queries = tl.load(q + at, mask=own, other=0.0)
    sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    for rest in tl.static_range(2):  # what all queries see, and the rest
        sums, total, top = walk(
            queries, k, v, k_row, v_row, sums, total, top, scale, last, full if rest else begin,
            stop if rest else full, columns, d, N, D, mask, bias, mask_key, bias_key, CAUSAL, WHOLE, BLOCK_N, rest == 1,
        )  # fmt: skip
    each = tl.arange(0, BLOCK_M)
    square = each[:, None] * BLOCK_D + d[None, :]
    SIZE: tl.constexpr = BLOCK_M * (BLOCK_D + 2)
    found = partial + tile.to(tl.int64) * (SPLIT * SIZE)
    mine = found + part * SIZE
    tl.store(mine + square, sums, mask=own, cache_modifier=".cg")
    tl.store(mine + BLOCK_M * BLOCK_D + each, total, cache_modifier=".cg")
    tl.store(mine + BLOCK_M * (BLOCK_D + 1) + each, top, cache_modifier=".cg")
    tl.debug_barrier()  # all of it is on its way before the counter says so
    before = tl.atomic_add(arrived + tile, 1, sem="acq_rel")
    if before == SPLIT - 1:
        others = found + (tl.arange(0, SPLIT) * SIZE)[:, None] + BLOCK_M * (BLOCK_D + 1) + each[None, :]
        highest = tl.max(tl.load(others, cache_modifier=".cg"), 0)
        level = tl.where(highest == LOWEST, 0.0, highest)
        sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        for other in tl.static_range(SPLIT):
            theirs = found + other * SIZE
            fade = lower(tl.load(theirs + BLOCK_M * (BLOCK_D + 1) + each, cache_modifier=".cg") - level, bias)
            total += fade * tl.load(theirs + BLOCK_M * BLOCK_D + each, cache_modifier=".cg")
            sums += fade[:, None] * tl.load(theirs + square, mask=own, other=0.0, cache_modifier=".cg")
        result = finish(sums, total, last, mask, bias, CAUSAL).to(out.dtype.element_ty)
        at = (batch * out_batch + heads * out_head + place * out_row)[:, None] + d[None, :]
        tl.store(out + at, result, mask=own)
