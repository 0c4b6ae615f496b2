"""Products with weights of 4 and 8 bits: out = a @ w + bias, by matrix units.

A tile of the weight is unpacked into whole numbers of 16 bits (nf4: the values), transposed, and is the first factor:
it is made in registers, where that factor may stay. A step along K lies in one group, whose scales multiply its sums.
"""

import triton
import triton.language as tl


@triton.jit
def nf4_value(code):
    """The value of a code of 4 bits, near enough to be rounded to bf16 and f16 as it is.

    Values are quantiles of the normal distribution: an odd function, 1 at 1. To select one of 16 takes 10 instructions
    more, and those at half the rate.
    """
    from_zero = (code | 0x4B000000).to(tl.float32, bitcast=True) - 8388615.0  # code - 7
    x = tl.minimum(from_zero * (1 / 8), from_zero * (1 / 7))  # the former where positive, the latter elsewhere
    s = x * x
    return x * (0.634238 + s * (0.150149 + s * (0.008006 + s * (0.33705 + s * (-0.551676 + s * 0.422099)))))


@triton.jit
def difference(codes, less, dtype: tl.constexpr):
    """Of whole numbers up to 128, exact: their bits, and those of the float 128 (f16: 1024), are the float of a sum."""
    BITS: tl.constexpr = 0x4300 if dtype == tl.bfloat16 else 0x6400
    return (codes.to(tl.int16) | BITS).to(dtype, bitcast=True) - (less.to(tl.int16) | BITS).to(dtype, bitcast=True)


@triton.jit
def unpacked(
    codes, zero, bits, short, dtype: tl.constexpr, FORMAT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """The numbers of a tile of the weight, transposed, with elements along K in the `order` of `multiply`."""
    if FORMAT == "awq":
        codes = tl.broadcast_to(codes[:, None, :], [BLOCK_N // 8, 8, BLOCK_K])
        codes = codes.reshape(BLOCK_N, BLOCK_K // 8, 2, 4).permute(0, 1, 3, 2).reshape(BLOCK_N, BLOCK_K)
        return difference((codes >> bits[:, None]) & 15, ((zero >> bits) & 15)[:, None], dtype)
    if FORMAT == "gptq":
        pairs = tl.join(tl.join(codes, codes >> 16), tl.join(codes >> 8, codes >> 24)) & 255
        pairs = pairs.reshape(BLOCK_N, BLOCK_K // 2) * 0x1001  # the first one, and 16 bits above it the second
        codes = tl.join(pairs.to(tl.int16), (pairs >> 16).to(tl.int16)) & 15
        numbers = difference(codes, (((zero >> bits) + short) & 15)[:, None, None], dtype)
    elif FORMAT == "nf4":
        numbers = nf4_value(tl.join(codes >> 4, codes & 15).to(tl.int32)).to(dtype)
    else:
        numbers = difference(codes & 127, codes.to(tl.int16) & 128, dtype)
    return numbers.reshape(BLOCK_N, BLOCK_K // 32, 4, 4, 2).permute(0, 1, 3, 2, 4).reshape(BLOCK_N, BLOCK_K)


@triton.jit
def held(values, memory):
    """The values, none negative, by a load that never reads.

    For a factor that stays in registers, Triton gives lanes what they need of loads, but not of ranges: with one in its
    making, the whole factor would pass through shared memory.
    """
    return tl.load(memory + values, mask=values < 0, other=values)


@triton.jit(do_not_specialize=["scales_row", "zeros_row", "M", "K"])
def multiply(
    a,
    weight,
    scales,
    zeros,
    bias,
    out,
    partial,
    arrived,
    a_row,
    weight_k,
    weight_n,
    scales_row,
    scales_column,
    zeros_row,
    out_row,
    M,
    N,
    K,
    in_group,
    less,
    FORMAT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Tiles of `out`, down, then to the right, each by one program or in parts: equal shares of its steps along K.

    The last program to arrive at a tile adds the parts: `partial` has BLOCK_N x BLOCK_M sums of each, `arrived` a
    counter for each tile that is 0. `in_group` steps have a scale. `less` is what gptq's zeros are short of.
    """
    TYPE: tl.constexpr = a.dtype.element_ty
    tile, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    down, steps = tl.cdiv(M, BLOCK_M), K // BLOCK_K
    rows, left = tile % down * BLOCK_M + tl.arange(0, BLOCK_M), tile // down * BLOCK_N
    columns = left + tl.arange(0, BLOCK_N)
    inside = columns < N
    # Sums have no order. In this one, a lane has 8 neighbours of 32 elements along K, which are a word of 4-bit codes.
    k = tl.arange(0, BLOCK_K)
    pairs = k // 32 * 32 + k // 16 % 2 * 4 + k // 8 % 2 * 2
    order = pairs + k // 2 % 4 * 8 + k % 2
    # Beyond the last row it is the last one again: what that gives is not stored.
    a_at = a + tl.minimum(rows, M - 1).to(tl.int64)[None, :] * a_row + order[:, None]
    of_columns = scales + columns * scales_column
    packed: tl.constexpr = 8 if FORMAT == "gptq" else 2 if FORMAT == "nf4" else 1
    along, across, stored, bits, short = tl.arange(0, BLOCK_K // packed), columns, inside, None, None
    if FORMAT == "gptq":
        bits, short = held(columns % 8 * 4, zeros), held(columns * 0 + less, zeros)
    elif FORMAT == "awq":
        # Neighbours are for neighbouring lanes, so that they lie in other banks of shared memory.
        along, across = pairs + k % 4 * 8 + k // 4 % 2, left // 8 + tl.arange(0, BLOCK_N // 8)
        stored, bits = across * 8 < N, held(columns % 8 // 2 * 4 + columns % 2 * 16, zeros)
    at = weight + across[:, None] * weight_n + along[None, :] * weight_k
    sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for step in tl.range(part * steps // parts, (part + 1) * steps // parts):
        group = step // in_group
        scale = tl.load(of_columns + group * scales_row, mask=inside, other=0.0)
        zero = None
        if zeros is not None:
            zero = tl.load(zeros + group * zeros_row + columns // 8, mask=inside, other=0)
        codes = tl.load(at + step * (BLOCK_K // packed) * weight_k, mask=stored[:, None], other=0)
        numbers = unpacked(codes, zero, bits, short, TYPE, FORMAT, BLOCK_N, BLOCK_K)
        sums += tl.dot(numbers, tl.load(a_at + step * BLOCK_K)) * scale.to(tl.float32)[:, None]
    whole = True
    if parts > 1:
        each = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        shares = partial + tile * parts * (BLOCK_N * BLOCK_M)
        tl.store(shares + part * (BLOCK_N * BLOCK_M) + each, sums, cache_modifier=".cg")
        tl.debug_barrier()  # all of it is on its way before the counter says so
        whole = tl.atomic_add(arrived + tile, 1, sem="acq_rel") == parts - 1
        if whole:
            sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            for one in tl.range(parts):
                sums += tl.load(shares + one * (BLOCK_N * BLOCK_M) + each, cache_modifier=".cg")
    if whole:
        if bias is not None:
            sums += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[:, None]
        to = out + rows.to(tl.int64)[:, None] * out_row + columns[None, :]
        tl.store(to, sums.T.to(TYPE), mask=(rows < M)[:, None] & inside[None, :])
