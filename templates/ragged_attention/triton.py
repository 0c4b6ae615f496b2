"""Attention over sequences of different lengths on matrix units, whose keys lie one after another or in pages.

The method is that of flash_attention/triton.py. A block has BLOCK_M queries, of all heads that share a head of keys, of
one sequence: keys are read once for them. Lengths stay on the device: sequence b has the blocks from
cu_q[b] * group // BLOCK_M + b on, which are enough, and some blocks have nothing to do. Rows of no sequence are one
more sequence without keys.

With SPLIT above 1, so many programs share the keys of a block, and `merge` adds what they found.

`page_table` and `seq_lens` are None where keys lie one after another, and `cu_k` is None for pages. Strides are in
elements; the last axes of q, k, v and out have stride 1.
"""

import triton
import triton.language as tl

LOWEST = tl.constexpr(float("-inf"))
NAN = tl.constexpr(float("nan"))
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def clamp(x, low, high):
    """The number nearest to x from `low` to `high`."""
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def sequence_of(cu_q, step, block, B, M, group, BLOCK_M: tl.constexpr):
    """The last sequence whose first block is this one or before it, and where it begins and ends."""
    low, high = B * 0, B + 1
    while high - low > 1:
        middle = (low + high) // 2
        here = clamp(tl.load(cu_q + middle * step), 0, M) * group // BLOCK_M + middle <= block
        low = tl.where(here, middle, low)
        high = tl.where(here, high, middle)
    first = clamp(tl.load(cu_q + low * step), 0, M)
    end = clamp(tl.load(cu_q + tl.minimum(low + 1, B) * step), 0, M)
    return low, first, tl.where(low < B, end, M)


@triton.jit
def rows_of_keys(page_table, table_step, n, columns, stop, first, k_page, k_row, v_page, v_row, P, PAGE):
    """Offsets of the rows of keys and of values from place n of a sequence on; places behind `stop` have any.

    Pages are found by a product in floats, which is right up to 2^21 keys: an integer quotient takes 20 instructions.
    """
    if page_table is None:
        at = (first + n).to(tl.int64)
        k_rows, v_rows = at * k_row + columns * k_row, at * v_row + columns * v_row
    else:
        places = tl.minimum(n + columns, stop - 1)
        numbers = ((places.to(tl.float32) + 0.5) * (1.0 / PAGE)).to(tl.int32)
        pages = clamp(tl.load(page_table + numbers * table_step), 0, P - 1).to(tl.int64)
        rows = (places - numbers * PAGE).to(tl.int64)
        k_rows, v_rows = pages * k_page + rows * k_row, pages * v_page + rows * v_row
    return k_rows, v_rows


@triton.jit
def keys_of(cu_k, cu_k_step, page_table, seq_lens, lens_step, b, B, N, room):
    """Where the keys of a sequence begin among all, 0 for pages, and how many there are. The last one has none."""
    own = tl.minimum(b, B - 1)
    if page_table is None:
        start = clamp(tl.load(cu_k + own * cu_k_step), 0, N)
        keys = clamp(tl.load(cu_k + (own + 1) * cu_k_step), start, N) - start
    else:
        start = B * 0
        keys = clamp(tl.load(seq_lens + own * lens_step), 0, room)
    return start, tl.where(b < B, keys, 0)


@triton.jit
def seen_by_all(first, last, queries, keys, group, causal, window):
    """Where the keys begin that some query of a block sees; where those end that all see, and those that any sees."""
    own = first // group + keys - queries
    final = tl.minimum(last // group, queries - 1) + keys - queries
    stop = tl.where(causal != 0, clamp(final + 1, 0, keys), keys)
    full = tl.where(causal != 0, clamp(own + 1, 0, keys), keys)
    return tl.where(window > 0, clamp(own - window + 1, 0, stop), 0), full, stop


@triton.jit
def read(at, inside, WHOLE: tl.constexpr, MASKED: tl.constexpr):
    """A block; zeros outside."""
    return tl.load(at) if WHOLE and not MASKED else tl.load(at, mask=inside, other=0.0)


@triton.jit
def walk(
    q, q_rest, k, v, page_table, table_step, first, k_page, k_row, v_page, v_row, P, PAGE, D, DV,
    sums, total, top, scale, softcap, lowest, last, begin, stop, columns, d, d_rest, dv,
    WHOLE: tl.constexpr, REST: tl.constexpr, MASKED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add the keys and values from `begin` to `stop` to what the queries have.

    With MASKED, each query sees keys from `lowest` to `last`, scores have a cap, and what lies behind `stop` may be
    anything, such as NaN. Without, all queries see all keys, and the scale is above 0.
    """
    for n in tl.range(begin, stop, BLOCK_N):
        places = n + columns
        inside = places < stop
        k_rows, v_rows = rows_of_keys(
            page_table, table_step, n, columns, stop, first, k_page, k_row, v_page, v_row, P, PAGE
        )
        keys = read(k + k_rows[None, :] + d[:, None], inside[None, :] & (d[:, None] < D), WHOLE, MASKED)
        values = read(v + v_rows[:, None] + dv[None, :], inside[:, None] & (dv[None, :] < DV), WHOLE, MASKED)
        scores = tl.dot(q, keys.to(q.dtype))
        if REST > 0:
            rest = inside[None, :] & (d_rest[:, None] < D)
            keys = read(k + k_rows[None, :] + d_rest[:, None], rest, WHOLE, MASKED)
            scores = tl.dot(q_rest, keys.to(q.dtype), scores)
        if MASKED:
            scores *= scale
            if softcap > 0.0:
                scores = softcap - 2.0 * softcap / (1.0 + tl.exp2(scores * (2.0 * LOG2E / softcap)))
            seen = inside[None, :] & (places[None, :] <= last[:, None]) & (places[None, :] >= lowest[:, None])
            scores = tl.where(seen, scores * LOG2E, LOWEST)
            higher = tl.maximum(top, tl.max(scores, 1))
            level = tl.where(higher == LOWEST, 0.0, higher)
            powers = tl.exp2(scores - level[:, None])
        else:
            higher = tl.maximum(top, tl.max(scores, 1) * (scale * LOG2E))
            level = tl.where(higher == LOWEST, 0.0, higher)
            powers = tl.exp2(scores * (scale * LOG2E) - level[:, None])
        fade = tl.exp2(top - level)
        total = total * fade + tl.sum(powers, 1)
        top = higher
        sums = tl.dot(powers.to(q.dtype), values.to(q.dtype), sums * fade[:, None])
    return sums, total, top


@triton.jit(do_not_specialize=["B", "M", "N", "W", "causal", "window", "softcap", "scale", "k_scale", "v_scale"])
def attend(
    q, k, v, cu_q, cu_k, page_table, seq_lens, out, lse, partial, scale, window, softcap, k_scale, v_scale,
    q_row, q_head, k_page, k_row, k_head, v_page, v_row, v_head, out_row, out_head, lse_row, lse_head,
    cu_q_step, cu_k_step, table_row, table_step, lens_step, B, H, HK, M, N, P, PAGE, W, D, DV, causal,
    SPLIT: tl.constexpr, WHOLE: tl.constexpr, REST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One block of queries. With SPLIT above 1, sums, sums of powers and greatest scores go to `partial`.

    It has M x H x SPLIT rows of BLOCK_V + 2 floats.
    """
    group = H // HK
    if SPLIT == 1:  # blocks of one head of keys run at the same time, those with the most keys first
        blocks = M * group // BLOCK_M + B + 1
        part, key_head, block = 0, tl.program_id(0) // blocks, blocks - 1 - tl.program_id(0) % blocks
    else:  # heads of the same keys run at the same time
        part, key_head, block = tl.program_id(0) // HK % SPLIT, tl.program_id(0) % HK, tl.program_id(0) // HK // SPLIT
    b, first, end = sequence_of(cu_q, cu_q_step, block, B, M, group, BLOCK_M)
    local = (block - first * group // BLOCK_M - b) * BLOCK_M
    queries = end - first
    if (local >= queries * group) | (local < 0):
        return
    start, keys = keys_of(cu_k, cu_k_step, page_table, seq_lens, lens_step, b, B, N, W * PAGE)
    if page_table is not None:
        page_table += tl.minimum(b, B - 1).to(tl.int64) * table_row
    shift = keys - queries
    begin, full, stop = seen_by_all(local, local + BLOCK_M - 1, queries, keys, group, causal, window)
    if SPLIT > 1:
        share = tl.maximum(tl.cdiv(tl.cdiv(stop - begin, BLOCK_N), SPLIT), 1) * BLOCK_N
        begin += part * share
        stop = tl.minimum(stop, begin + share)
    full = begin + clamp(full - begin, 0, tl.maximum(stop - begin, 0)) // BLOCK_N * BLOCK_N

    packed = local + tl.arange(0, BLOCK_M)
    rows = (first + packed // group).to(tl.int64)
    heads = (key_head * group + packed % group).to(tl.int64)
    inside = packed < queries * group
    place = packed // group + shift
    last = tl.where(causal != 0, tl.minimum(place, stop - 1), stop - 1)
    lowest = tl.where(window > 0, tl.maximum(place - window + 1, begin), begin)
    sees = last >= lowest
    each = (rows * H + heads) * SPLIT + part
    if SPLIT > 1:
        stats = partial + tl.cast(M, tl.int64) * H * SPLIT * BLOCK_V
        if begin >= stop:
            tl.store(stats + each * 2, tl.zeros([BLOCK_M], tl.float32), mask=inside)
            tl.store(stats + each * 2 + 1, tl.full([BLOCK_M], LOWEST, tl.float32), mask=inside)
            return

    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_V)
    d_rest = BLOCK_D + tl.arange(0, REST if REST > 0 else 16)
    at = q + (rows * q_row + heads * q_head)[:, None]
    block_q = tl.load(at + d[None, :], mask=inside[:, None] & (d[None, :] < D), other=0.0)
    block_rest = block_q
    if REST > 0:
        block_rest = tl.load(at + d_rest[None, :], mask=inside[:, None] & (d_rest[None, :] < D), other=0.0)
    scale = tl.where(scale == 0.0, 1.0 / tl.sqrt(tl.cast(D, tl.float32)), scale) * k_scale
    k += key_head.to(tl.int64) * k_head
    v += key_head.to(tl.int64) * v_head
    sums = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    if (window > 0) | (softcap > 0.0) | (scale <= 0.0) | (SPLIT > 1):
        full = begin
    for masked in tl.static_range(SPLIT > 1, 2):  # what all queries see, and the rest
        sums, total, top = walk(
            block_q, block_rest, k, v, page_table, table_step, start, k_page, k_row, v_page, v_row, P, PAGE, D, DV,
            sums, total, top, scale, softcap, lowest, last, full if masked else begin, stop if masked else full,
            tl.arange(0, BLOCK_N), d, d_rest, dv, WHOLE, REST, masked == 1, BLOCK_N,
        )  # fmt: skip
    # A query that sees keys whose scores are all -inf has NaN by the definition.
    total = tl.where(sees & (total == 0.0), NAN, total)
    if SPLIT > 1:
        tl.store(partial + each[:, None] * BLOCK_V + dv[None, :], sums, mask=inside[:, None] & (dv[None, :] < DV))
        tl.store(stats + each * 2, total, mask=inside)
        tl.store(stats + each * 2 + 1, top, mask=inside)
    else:
        result = tl.where(sees[:, None], sums / total[:, None] * v_scale, 0.0).to(out.dtype.element_ty)
        at = out + (rows * out_row + heads * out_head)[:, None] + dv[None, :]
        tl.store(at, result, mask=inside[:, None] & (dv[None, :] < DV))
        if lse is not None:
            level = tl.where(sees, (top + tl.log2(total)) * LN2, LOWEST)
            tl.store(lse + rows * lse_row + heads * lse_head, level, mask=inside)


@triton.jit(do_not_specialize=["M", "v_scale"])
def merge(
    partial, out, lse, v_scale, out_row, out_head, lse_row, lse_head, H, M, DV,
    SPLIT: tl.constexpr, BLOCK_V: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """COLUMNS results of a query and head from those of SPLIT programs, which are in `partial`."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    each = tl.program_id(0).to(tl.int64)
    row, head = each // H, each % H
    parts = each * SPLIT + tl.arange(0, SPLIT)
    stats = partial + tl.cast(M, tl.int64) * H * SPLIT * BLOCK_V
    totals = tl.load(stats + parts * 2)
    tops = tl.load(stats + parts * 2 + 1)
    highest = tl.max(tops, 0)
    level = tl.where(highest == LOWEST, 0.0, highest)
    weights = tl.where(tops == LOWEST, 0.0, tl.exp2(tops - level))
    total = tl.sum(tl.where(tops == LOWEST, 0.0, totals * weights), 0)
    none = tl.sum(tl.where(tops == LOWEST, totals, 0.0), 0)  # 0 where no key is seen, NaN where all scores are -inf
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (tops != LOWEST)[:, None] & (columns[None, :] < DV)
    sums = tl.load(partial + parts[:, None] * BLOCK_V + columns[None, :], mask=inside, other=0.0)
    result = tl.sum(sums * weights[:, None], 0) / total * v_scale
    result = tl.where(total == 0.0, none, result).to(out.dtype.element_ty)
    tl.store(out + row * out_row + head * out_head + columns, result, mask=columns < DV)
    if lse is not None:  # by each program alike
        value = tl.where(total == 0.0, none + LOWEST, (highest + tl.log2(total)) * LN2)
        tl.store(lse + row * lse_row + head * lse_head, value)
