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
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
UNPACK = tl.constexpr("""{
    .reg .b32 t; .reg .b16 a, b;
    prmt.b32 t, $2, 0, 0x3120; mov.b32 {a, b}, t;
    cvt.rn.f16x2.e4m3x2 $0, a; cvt.rn.f16x2.e4m3x2 $1, b;
}""")


@triton.jit
def clamp(x, low, high):
    """The number nearest to x from `low` to `high`."""
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def first_block(cu_q, step, b, M, group, BLOCK_M: tl.constexpr):
    """The first block of a sequence."""
    return clamp(tl.load(cu_q + b * step), 0, M) * group // BLOCK_M + b


@triton.jit
def sequence_of(cu_q, step, block, B, M, group, BLOCK_M: tl.constexpr):
    """The last sequence whose first block is this one or before it, and where it begins and ends.

    It is where lengths alike would have it, or is searched for: each step of that waits for memory.
    """
    low = clamp(((block + 1) * B * BLOCK_M - 1) // (M * group + B * BLOCK_M), 0, B)
    high = low + 1
    behind = first_block(cu_q, step, tl.minimum(high, B), M, group, BLOCK_M)
    if (first_block(cu_q, step, low, M, group, BLOCK_M) > block) | ((behind <= block) & (low < B)):
        low, high = B * 0, B + 1
    while high - low > 1:
        middle = (low + high) // 2
        here = first_block(cu_q, step, middle, M, group, BLOCK_M) <= block
        low = tl.where(here, middle, low)
        high = tl.where(here, high, middle)
    first = clamp(tl.load(cu_q + low * step), 0, M)
    end = clamp(tl.load(cu_q + tl.minimum(low + 1, B) * step), 0, M)
    return low, first, tl.where(low < B, end, M)


@triton.jit
def look_up(page_table, table_step, places, stop, PAGE):
    """Where the pages of places of a sequence are, and their numbers; of places behind `stop`, page 0.

    Pages are found by a product in floats, which is right up to 2^21 keys: an integer quotient takes 20 instructions.
    """
    numbers = ((places.to(tl.float32) + 0.5) * (1.0 / PAGE)).to(tl.int32)
    return tl.load(page_table + numbers * table_step, mask=places < stop, other=0)


@triton.jit
def rows_of_keys(pages, places, first, of_page, of_row, P, PAGE):
    """Offsets of rows at places of a sequence, in pages unless `pages` is None. Within a page they have 32 bits."""
    if pages is None:
        offsets = (first + places).to(tl.int64) * of_row
    else:
        numbers = ((places.to(tl.float32) + 0.5) * (1.0 / PAGE)).to(tl.int32)
        pages = clamp(pages, 0, P - 1).to(tl.int64)
        offsets = pages * of_page + (places - numbers * PAGE) * tl.cast(of_row, tl.int32)
    return offsets


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
def halves(pairs):
    """Of pairs of f8e4m3 the first ones and the second ones, in f16."""
    if INTERPRETED:
        first = pairs.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
        second = (pairs >> 8).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        first, second = tl.inline_asm_elementwise(
            UNPACK, "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
        )
    return first, second


@triton.jit
def products(q, q_second, keys, scores, PAIRS: tl.constexpr):
    """`scores` and those of a block of keys. With PAIRS, `q` has every other column, and `q_second` the rest."""
    if PAIRS:
        keys, second = halves(keys)
        scores = tl.dot(q_second, tl.trans(second), scores)
    return tl.dot(q, tl.trans(keys.to(q.dtype)), scores)


@triton.jit
def walk(
    q, q_second, rest, rest_second, k, k_rest, v, key_head, page_table, table_step, first,
    k_page, k_row, v_page, v_row, P, PAGE, D, DV,
    sums, second, total, top, scale, softcap, lowest, last, begin, stop, columns,
    WHOLE: tl.constexpr, SAME: tl.constexpr, REST: tl.constexpr, TMA: tl.constexpr, EIGHT: tl.constexpr,
    EACH: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Add the keys and values from `begin` to `stop` to what the queries have.

    With MASKED, each query sees keys from `lowest` to `last`, scores have a cap, and what lies behind `stop` may be
    anything, such as NaN. Without, all queries see all keys, and the scale is above 0. With EIGHT, keys and values are
    f8e4m3, and `scale` has a number for each query; with an EACH of 2 they are pairs, and `second` has sums of the
    second of each.

    Pages are looked up one block ahead, so that as many blocks of keys are on their way as there are stages.
    """
    d, dv = tl.arange(0, BLOCK_D // EACH), tl.arange(0, BLOCK_V // EACH)
    pages = None
    if page_table is not None:
        pages = look_up(page_table, table_step, begin + columns, stop, PAGE)
    for n in tl.range(begin, stop, BLOCK_N):
        places = n + columns
        inside = places < stop
        if TMA:
            row, head = tl.cast(first + n, tl.int32), tl.cast(key_head, tl.int32)
            keys = k.load([row, head, 0]).reshape(BLOCK_N, BLOCK_D)
            values = v.load([row, head, 0]).reshape(BLOCK_N, BLOCK_V)
            if MASKED:
                values = tl.where(inside[:, None], values, 0.0)
        else:
            k_rows = rows_of_keys(pages, places, first, k_page, k_row, P, PAGE)
            v_rows = k_rows if SAME else rows_of_keys(pages, places, first, v_page, v_row, P, PAGE)
            if page_table is not None:
                pages = look_up(page_table, table_step, places + BLOCK_N, stop, PAGE)
            keys = read(k + k_rows[:, None] + d[None, :], inside[:, None] & (d[None, :] < D), WHOLE, MASKED)
            values = read(v + v_rows[:, None] + dv[None, :], inside[:, None] & (dv[None, :] < DV), WHOLE, MASKED)
        scores = products(q, q_second, keys, tl.zeros([BLOCK_M, BLOCK_N], tl.float32), EACH == 2)
        if REST > 0:
            if TMA:
                keys = k_rest.load([tl.cast(first + n, tl.int32), tl.cast(key_head, tl.int32), BLOCK_D]).reshape(
                    BLOCK_N, REST
                )
            else:
                d_rest = BLOCK_D // EACH + tl.arange(0, REST // EACH)
                own = inside[:, None] & (d_rest[None, :] < D)
                keys = read(k + k_rows[:, None] + d_rest[None, :], own, WHOLE, MASKED)
            scores = products(rest, rest_second, keys, scores, EACH == 2)
        if MASKED:
            scores *= scale[:, None] if EIGHT else scale
            if softcap > 0.0:
                scores = softcap - 2.0 * softcap / (1.0 + tl.exp2(scores * (2.0 * LOG2E / softcap)))
            seen = inside[None, :] & (places[None, :] <= last[:, None]) & (places[None, :] >= lowest[:, None])
            scores = tl.where(seen, scores * LOG2E, LOWEST)
            higher = tl.maximum(top, tl.max(scores, 1))
            level = tl.where(higher == LOWEST, 0.0, higher)
            powers = tl.exp2(scores - level[:, None])
        else:
            factor = scale * LOG2E
            higher = tl.maximum(top, tl.max(scores, 1) * factor)
            level = tl.where(higher == LOWEST, 0.0, higher)
            powers = tl.exp2(scores * (factor[:, None] if EIGHT else factor) - level[:, None])
        fade = tl.exp2(top - level)
        total = total * fade + tl.sum(powers, 1)
        top = higher
        powers = powers.to(q.dtype)
        if EACH == 2:
            values, others = halves(values)
            second = tl.dot(powers, others, second * fade[:, None])
        sums = tl.dot(powers, values.to(q.dtype), sums * fade[:, None])
    return sums, second, total, top


@triton.jit
def queries_of(at, inside, D, REST: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr):
    """Queries, and their columns from BLOCK on; with an EACH of 2, every other column of both, and the rest.

    `at` has the first column of each. What there is not is one of the others.
    """
    d = tl.arange(0, BLOCK // EACH) * EACH
    d_rest = BLOCK + tl.arange(0, REST // EACH if REST > 0 else 16) * EACH
    own, own_rest = inside & (d[None, :] < D), inside & (d_rest[None, :] < D)
    q = tl.load(at + d[None, :], mask=own, other=0.0)
    rest = tl.load(at + d_rest[None, :], mask=own_rest, other=0.0) if REST > 0 else q
    second, rest_second = q, rest
    if EACH == 2:
        second = tl.load(at + d[None, :] + 1, mask=own, other=0.0)
        rest_second = tl.load(at + d_rest[None, :] + 1, mask=own_rest, other=0.0) if REST > 0 else second
    return q, second, rest, rest_second


@triton.jit
def exponent(q):
    """The greatest exponent of each row of bf16, which is 127 of 1."""
    return tl.max((q.to(tl.int16, bitcast=True) & 32767).to(tl.int32), 1) >> 7


@triton.jit
def power(exponents):
    """2 to the power exponent - 127, for 1 to 254."""
    return (exponents << 23).to(tl.float32, bitcast=True)


@triton.jit
def halved(q, second, rest, rest_second, scale, BLOCK_M: tl.constexpr):
    """Queries in f16, and a scale of scores for each. Rows of bf16 are times a power of 2: their greatest is large.

    What is lost is less than 2^-38 of the greatest. NaN and infinities stay.
    """
    scale += tl.zeros([BLOCK_M], tl.float32)
    if q.dtype == tl.bfloat16:
        most = tl.maximum(tl.maximum(exponent(q), exponent(second)), 15)
        most = tl.minimum(tl.maximum(most, tl.maximum(exponent(rest), exponent(rest_second))), 254)
        lift = power(268 - most)[:, None]
        q, second = (q * lift).to(tl.float16), (second * lift).to(tl.float16)
        rest, rest_second = (rest * lift).to(tl.float16), (rest_second * lift).to(tl.float16)
        scale *= power(most - 14)
    return q, second, rest, rest_second, scale


@triton.jit
def write(
    sums, second, total, top, sees, inside, rows, heads, each, out, lse, partial, stats, v_scale,
    out_row, out_head, lse_row, lse_head, DV, SPLIT: tl.constexpr, EACH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The results of a block of queries, or its part of them."""
    if EACH == 2:
        sums = tl.join(sums, second).reshape(BLOCK_M, BLOCK_V)
    dv = tl.arange(0, BLOCK_V)
    own = inside[:, None] & (dv[None, :] < DV)
    # A query that sees keys whose scores are all -inf has NaN by the definition.
    total = tl.where(sees & (total == 0.0), NAN, total)
    if SPLIT > 1:
        tl.store(partial + each[:, None] * BLOCK_V + dv[None, :], sums, mask=own)
        tl.store(stats + each * 2, total, mask=inside)
        tl.store(stats + each * 2 + 1, top, mask=inside)
    else:
        result = tl.where(sees[:, None], sums / total[:, None] * v_scale, 0.0).to(out.dtype.element_ty)
        tl.store(out + (rows * out_row + heads * out_head)[:, None] + dv[None, :], result, mask=own)
        if lse is not None:
            level = tl.where(sees, (top + tl.log2(total)) * LN2, LOWEST)
            tl.store(lse + rows * lse_row + heads * lse_head, level, mask=inside)


@triton.jit(do_not_specialize=["B", "M", "N", "W", "causal", "window", "softcap", "scale", "k_scale", "v_scale"])
def attend(
    q, k, k_rest, v, cu_q, cu_k, page_table, seq_lens, out, lse, partial, scale, window, softcap, k_scale, v_scale,
    q_row, q_head, k_page, k_row, k_head, v_page, v_row, v_head, out_row, out_head, lse_row, lse_head,
    cu_q_step, cu_k_step, table_row, table_step, lens_step, B, H, HK, M, N, P, PAGE, W, D, DV, causal,
    SPLIT: tl.constexpr, WHOLE: tl.constexpr, SAME: tl.constexpr, REST: tl.constexpr, TMA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One block of queries. With SPLIT above 1, sums, sums of powers and greatest scores go to `partial`.

    It has M x H x SPLIT rows of BLOCK_V + 2 floats. WHOLE: heads have BLOCK_D + REST columns of keys, and BLOCK_V of
    values. SAME: the strides of pages and rows of keys are those of values.
    """
    B, H, HK = tl.cast(B, tl.int32), tl.cast(H, tl.int32), tl.cast(HK, tl.int32)
    M, N, W = tl.cast(M, tl.int32), tl.cast(N, tl.int32), tl.cast(W, tl.int32)
    P, PAGE = tl.cast(P, tl.int32), tl.cast(PAGE, tl.int32)
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
    stats = partial
    if SPLIT > 1:
        stats += tl.cast(M, tl.int64) * H * SPLIT * BLOCK_V
        if begin >= stop:
            tl.store(stats + each * 2, tl.zeros([BLOCK_M], tl.float32), mask=inside)
            tl.store(stats + each * 2 + 1, tl.full([BLOCK_M], LOWEST, tl.float32), mask=inside)
            return

    EIGHT: tl.constexpr = False if TMA else k.dtype.element_ty == tl.float8e4nv
    EACH: tl.constexpr = 2 if EIGHT and SPLIT > 1 else 1
    if EACH == 2:  # two columns are an element of 16 bits: such blocks are transposed by hardware, those of 8 are not
        k = k.to(tl.pointer_type(tl.int16), bitcast=True)
        v = v.to(tl.pointer_type(tl.int16), bitcast=True)
    at = q + (rows * q_row + heads * q_head)[:, None]
    block_q, second_q, rest, second_rest = queries_of(at, inside[:, None], D, REST, EACH, BLOCK_D)
    scale = tl.where(scale == 0.0, 1.0 / tl.sqrt(tl.cast(D, tl.float32)), scale) * k_scale
    if (window > 0) | (softcap > 0.0) | (scale <= 0.0):
        full = begin
    if EIGHT:  # f8e4m3 becomes f16 in one instruction, and bf16 in several
        block_q, second_q, rest, second_rest, scale = halved(block_q, second_q, rest, second_rest, scale, BLOCK_M)
    if not TMA:
        k += key_head.to(tl.int64) * (k_head // EACH)
        v += key_head.to(tl.int64) * (v_head // EACH)
    sums = tl.zeros([BLOCK_M, BLOCK_V // EACH], tl.float32)
    second = sums
    total = tl.zeros([BLOCK_M], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    for masked in tl.static_range(2):  # what all queries see, and the rest
        sums, second, total, top = walk(
            block_q, second_q, rest, second_rest, k, k_rest, v, key_head, page_table, table_step, start,
            k_page // EACH, k_row // EACH, v_page // EACH, v_row // EACH, P, PAGE, D // EACH, DV // EACH,
            sums, second, total, top, scale, softcap, lowest, last,
            full if masked else begin, stop if masked else full, tl.arange(0, BLOCK_N),
            WHOLE, SAME, REST, TMA, EIGHT, EACH, masked == 1, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_V,
        )  # fmt: skip
    write(
        sums, second, total, top, sees, inside, rows, heads, each, out, lse, partial, stats, v_scale,
        out_row, out_head, lse_row, lse_head, DV, SPLIT, EACH, BLOCK_M, BLOCK_V,
    )  # fmt: skip


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
