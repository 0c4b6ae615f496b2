"""Products of groups of rows, each by the matrix of its expert. The kernel itself reads the ends or counts."""

import triton
import triton.language as tl

MOST = tl.constexpr(512)  # experts


@triton.jit
def larger(x, y):
    """What a running maximum takes."""
    return tl.maximum(x, y)


@triton.jit
def clamped(sizes, experts, inside, M):
    """Ends or counts of experts within 0 and M; 0 where there is none."""
    return tl.minimum(tl.maximum(tl.load(sizes + experts, mask=inside, other=0), 0), M)


@triton.jit
def of_expert(values, chosen):
    """The element of the one expert that is chosen."""
    return tl.sum(tl.where(chosen, values, 0), 0)


@triton.jit
def write(rows, sums, inside, columns, width):
    """Store a tile: `rows` points to the first elements of its rows."""
    mask = inside[:, None] & (columns < width)[None, :]
    tl.store(rows[:, None] + columns[None, :], sums.to(rows.dtype.element_ty), mask=mask)


@triton.jit
def grouped(
    a, b, sizes, scale_a, scale_b, out, out_expert, out_row, scale_a_expert, scale_a_row, scale_a_k,
    scale_b_expert, scale_b_k, scale_b_n, E, M, N, K, MASKED: tl.constexpr, BY_COLUMNS: tl.constexpr,
    SWAP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Programs take tiles of all experts in turn; a and b have descriptors that the host makes.

    `sizes` are the ends of the experts' rows, or the counts of rows of M if MASKED. With SWAP a tile is computed as its
    transpose: matrix units take 64 columns of b and few rows of a. BLOCK_K is 128 where there are scales.
    """
    rows, width, depth = tl.cast(M, tl.int32), tl.cast(N, tl.int32), tl.cast(K, tl.int32)
    experts = tl.arange(0, MOST)
    ends = clamped(sizes, experts, experts < E, rows)
    begins = tl.zeros([MOST], tl.int32)
    if not MASKED:
        before = clamped(sizes, experts - 1, (experts > 0) & (experts <= E), rows)
        begins = tl.associative_scan(before, 0, larger)
        ends = tl.maximum(ends, begins)
    tall = tl.where(experts < E, tl.cdiv(ends - begins, BLOCK_M), 0)
    across, steps = tl.cdiv(width, BLOCK_N), tl.cdiv(depth, BLOCK_K)
    upto = tl.cumsum(tall, 0) * across
    each_row, each_column = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    tiles = tl.sum(tall, 0) * across
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=SWAP or scale_a is None):
        expert = tl.sum((upto <= tile).to(tl.int32), 0)
        chosen = experts == expert
        begin, end = of_expert(begins, chosen), of_expert(ends, chosen)
        down = tl.cdiv(end - begin, BLOCK_M)
        place = tile - of_expert(upto, chosen) + down * across
        first = begin + place % down * BLOCK_M
        left = place // down * BLOCK_N
        at = (first + each_row).to(tl.int64)
        own = at < end
        sums = tl.zeros([BLOCK_N, BLOCK_M] if SWAP else [BLOCK_M, BLOCK_N], tl.float32)
        if scale_a is not None:  # those of a step are read before the products of the one before
            of_rows = scale_a + expert.to(tl.int64) * scale_a_expert + at * scale_a_row
            of_block = scale_b + expert.to(tl.int64) * scale_b_expert + (left // 128).to(tl.int64) * scale_b_n
            scales = tl.load(of_rows, mask=own, other=0.0) * tl.load(of_block)
        for step in tl.range(0, steps):
            k = step * BLOCK_K
            factor = a.load([expert, first, k]).reshape(BLOCK_M, BLOCK_K) if MASKED else a.load([first, k])
            if BY_COLUMNS:
                other = b.load([expert, left, k]).reshape(BLOCK_N, BLOCK_K)
            else:
                other = b.load([expert, k, left]).reshape(BLOCK_K, BLOCK_N).T
            if scale_a is None:
                sums = tl.dot(other, factor.T, sums) if SWAP else tl.dot(factor, other.T, sums)
            else:
                following = tl.minimum(step + 1, steps - 1).to(tl.int64)
                rows_next = tl.load(of_rows + following * scale_a_k, mask=own, other=0.0)
                block_next = tl.load(of_block + following * scale_b_k)
                if SWAP:
                    sums += tl.dot(other, factor.T) * scales[None, :]
                else:
                    sums += tl.dot(factor, other.T) * scales[:, None]
                scales = rows_next * block_next
        target = out + expert.to(tl.int64) * out_expert + at * out_row
        if SWAP:
            sums = sums.T
        if BLOCK_N == 256:  # in halves: addresses of all take too many registers
            near, far = tl.split(sums.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1))
            columns = left + tl.arange(0, BLOCK_N // 2)
            write(target, near, own, columns, width)
            write(target, far, own, columns + BLOCK_N // 2, width)
        else:
            write(target, sums, own, left + each_column, width)
    if not MASKED:  # rows of no expert
        last = tl.max(tl.where(experts < E, ends, 0), 0)
        for tile in tl.range(tl.program_id(0), tl.cdiv(rows - last, BLOCK_M) * across, tl.num_programs(0)):
            at = (last + tile // across * BLOCK_M + each_row).to(tl.int64)
            zeros = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            write(out + at * out_row, zeros, at < rows, tile % across * BLOCK_N + each_column, width)
