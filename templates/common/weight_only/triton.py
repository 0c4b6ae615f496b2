"""Products with weights of 4 and 8 bits: out = a @ w + bias, by matrix units.

A tile of the weight is unpacked into whole numbers of 16 bits (nf4: the values), transposed, and is the first factor:
it is made in registers, where that factor may stay. A step along K lies in one group, whose scales multiply its sums.
"""

import triton
import triton.language as tl


@triton.jit
def nf4_value(code):
    """The value of a code of 4 bits."""
    low, middle, high, top = (code & 1) > 0, (code & 2) > 0, (code & 4) > 0, (code & 8) > 0
    a = tl.where(low, -0.696192801, -1.0)
    b = tl.where(low, -0.394917488, -0.525073051)
    c = tl.where(low, -0.184773430, -0.284441382)
    d = tl.where(low, 0.0, -0.0910500363)
    below = tl.where(high, tl.where(middle, d, c), tl.where(middle, b, a))
    a = tl.where(low, 0.160930201, 0.0795802996)
    b = tl.where(low, 0.337915242, 0.246112302)
    c = tl.where(low, 0.562617004, 0.440709829)
    d = tl.where(low, 1.0, 0.722956836)
    above = tl.where(high, tl.where(middle, d, c), tl.where(middle, b, a))
    return tl.where(top, above, below)


@triton.jit
def numbers_of(codes, less):
    """Differences of whole numbers below 2^23 as float32; the hardware's conversion is four times as slow."""
    return (codes | 0x4B000000).to(tl.float32, bitcast=True) - (less | 0x4B000000).to(tl.float32, bitcast=True)


@triton.jit
def multiply(
    a,
    weight,
    scales,
    zeros,
    bias,
    out,
    a_row,
    weight_row,
    weight_column,
    scales_row,
    scales_column,
    zeros_row,
    out_row,
    M,
    N,
    K,
    depth,
    less,
    FORMAT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """A tile of `out` of each program: GROUP tiles down, then one to the right.

    `depth` elements along K have a scale. `less` is what gptq's zeros are short of.
    """
    TYPE: tl.constexpr = a.dtype.element_ty
    tile = tl.program_id(0)
    down, across = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    band = tile // (GROUP * across)
    tall = tl.minimum(down - band * GROUP, GROUP)
    rest = tile % (GROUP * across)
    rows = (band * GROUP + rest % tall) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = rest // tall * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = columns < N
    k = tl.arange(0, BLOCK_K)
    a_at = a + rows.to(tl.int64)[None, :] * a_row + k[:, None]
    nibbles = (tl.arange(0, 8) * 4)[None, None, :]
    bits = (columns % 8 // 2 * 4 + columns % 2 * 16) if FORMAT == "awq" else columns % 8 * 4
    sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for step in tl.range(0, K, BLOCK_K):
        group = tl.cast(step // depth, tl.int64)
        scale = tl.load(scales + group * scales_row + columns.to(tl.int64) * scales_column, mask=inside, other=0.0)
        if FORMAT == "nf4":
            scale = tl.load(scales + columns.to(tl.int64) * scales_row + group * scales_column, mask=inside, other=0.0)
        if zeros is not None:
            zero = tl.load(zeros + group * zeros_row + columns // 8, mask=inside, other=0)
            zero = (((zero >> bits) + less) & 15).to(tl.int32)[:, None]
        if FORMAT == "gptq":
            at = (step // 8 + tl.arange(0, BLOCK_K // 8))[None, :] * weight_row + columns[:, None] * weight_column
            words = tl.load(weight + at, mask=inside[:, None], other=0)
            codes = ((words[:, :, None] >> nibbles) & 15).reshape(BLOCK_N, BLOCK_K)
            numbers = numbers_of(codes, zero)
        elif FORMAT == "awq":
            eighths = rest // tall * (BLOCK_N // 8) + tl.arange(0, BLOCK_N // 8)
            at = (step + k)[None, :] * weight_row + eighths[:, None] * weight_column
            words = tl.load(weight + at, mask=eighths[:, None] * 8 < N, other=0)
            one = tl.arange(0, 8)
            codes = (words[:, None, :] >> (one // 2 * 4 + one % 2 * 16)[None, :, None]) & 15
            numbers = numbers_of(codes.reshape(BLOCK_N, BLOCK_K), zero)
        elif FORMAT == "nf4":
            at = columns[:, None] * weight_row + (step // 2 + tl.arange(0, BLOCK_K // 2))[None, :] * weight_column
            pairs = tl.load(weight + at, mask=inside[:, None], other=0).to(tl.int32)
            numbers = nf4_value(tl.join(pairs >> 4, pairs & 15).reshape(BLOCK_N, BLOCK_K))
        else:
            at = (step + k)[None, :] * weight_row + columns[:, None] * weight_column
            moved = tl.load(weight + at, mask=inside[:, None], other=0).to(tl.uint8, bitcast=True) ^ 128
            numbers = (moved.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - 8388736.0
        factor = tl.load(a_at + step, mask=rows[None, :] < M, other=0.0)
        sums += tl.dot(numbers.to(TYPE), factor) * scale.to(tl.float32)[:, None]
    if bias is not None:
        sums += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[:, None]
    to = out + rows.to(tl.int64)[None, :] * out_row + columns[:, None]
    tl.store(to, sums.to(TYPE), mask=inside[:, None] & (rows[None, :] < M))
