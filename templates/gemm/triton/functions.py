"""Matrix products: out = activation(a @ b + bias) + residual.

`ACTIVATION` is the index of the operator's attribute: none, relu, gelu (by erf), gelu_tanh, silu. `BY_COLUMNS` says
that b's columns are contiguous: its descriptor is then that of its transpose.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3.4028234e38)  # a digit more, and Triton 3.6 compares in float64
ALL = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def gelu_approximate(x):
    """Within 0.05 units in the last place of 16-bit floats: max(x, 0) - a P(X < -a), where a = |x|, of a normal X.

    The binary logarithm of the probability is nearly a parabola: the polynomial is within 5e-6 of it up to 6, and falls
    from there on. From 32 on the product is 0, and 32 is not infinite.
    """
    a = tl.minimum(tl.abs(x), 32.0)
    log2 = -1.83484042e-06 * a + 6.15988465e-05
    log2 = log2 * a - 0.000930528913
    log2 = log2 * a + 0.00850790553
    log2 = log2 * a - 0.0539600961
    log2 = log2 * a - 0.458464384
    log2 = log2 * a - 1.15125108
    log2 = log2 * a - 0.999995291
    return tl.maximum(x, 0.0, propagate_nan=ALL) - a * tl.exp2(log2)


@triton.jit
def quotient(x, y, SHORT: tl.constexpr):
    """x / y for y from 1 on; a division takes care of other divisors too, which takes longer."""
    if SHORT:
        root = tl.rsqrt(y)
        return x * root * root
    return x / y


@triton.jit
def activate(x, ACTIVATION: tl.constexpr, SHORT: tl.constexpr):
    """x after the activation, to the precision of 16 bits if SHORT.

    NaN stays, and -inf goes to its limit, 0: it would meet an infinite divisor or a 0.
    """
    limited = tl.maximum(x, LOWEST, propagate_nan=ALL)
    if ACTIVATION == 1:
        x = tl.maximum(x, 0.0, propagate_nan=ALL)
    elif ACTIVATION == 2 and SHORT:
        x = gelu_approximate(x)
    elif ACTIVATION == 2:
        x = limited * (0.5 + 0.5 * tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == 3:  # 0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
        x = quotient(limited, 1.0 + tl.exp2(x * (x * x * -0.102943240 - 2.30220819)), SHORT)
    elif ACTIVATION == 4:
        x = quotient(limited, 1.0 + tl.exp2(x * -LOG2E), SHORT)
    return x


@triton.jit
def place(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """The first row and column of a tile: GROUP tiles down, then one to the right: neighbours in time share."""
    down, across = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    band = tile // (GROUP * across)
    tall = tl.minimum(down - band * GROUP, GROUP)
    rest = tile % (GROUP * across)
    return (band * GROUP + rest % tall) * BLOCK_M, rest // tall * BLOCK_N


@triton.jit
def finish(sums, bias, residual, residual_row, rows, columns, M, N, ACTIVATION: tl.constexpr, SHORT: tl.constexpr):
    """Sums after bias, activation and residual; one that is None is left out."""
    if bias is not None:
        sums += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    sums = activate(sums, ACTIVATION, SHORT)
    if residual is not None:
        at = residual + rows.to(tl.int64)[:, None] * residual_row + columns[None, :]
        sums += tl.load(at, mask=(rows[:, None] < M) & (columns[None, :] < N), other=0.0).to(tl.float32)
    return sums


@triton.jit
def store_tile(
    out, sums, bias, residual, residual_row, first, left, M, N, ACTIVATION: tl.constexpr, HALVES: tl.constexpr
):
    """Write a tile by its descriptor, in halves of its columns where shared memory is short."""
    BLOCK_M: tl.constexpr = sums.shape[0]
    BLOCK_N: tl.constexpr = sums.shape[1]
    SHORT: tl.constexpr = out.dtype.primitive_bitwidth == 16
    rows = first + tl.arange(0, BLOCK_M)
    if HALVES:
        near, far = tl.split(sums.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1))
        columns = left + tl.arange(0, BLOCK_N // 2)
        near = finish(near, bias, residual, residual_row, rows, columns, M, N, ACTIVATION, SHORT)
        out.store([first, left], near.to(out.dtype))
        columns += BLOCK_N // 2
        far = finish(far, bias, residual, residual_row, rows, columns, M, N, ACTIVATION, SHORT)
        out.store([first, left + BLOCK_N // 2], far.to(out.dtype))
    else:
        columns = left + tl.arange(0, BLOCK_N)
        sums = finish(sums, bias, residual, residual_row, rows, columns, M, N, ACTIVATION, SHORT)
        out.store([first, left], sums.to(out.dtype))


@triton.jit
def gemm_tma(
    a,
    b,
    bias,
    residual,
    out,
    residual_row,
    M,
    N,
    K,
    ACTIVATION: tl.constexpr,
    BY_COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    HALVES: tl.constexpr,
):
    """With tensor descriptors of a, b and out, made by the host; programs take tiles in turn until none is left."""
    height, width = tl.cast(M, tl.int32), tl.cast(N, tl.int32)
    tiles = tl.cdiv(height, BLOCK_M) * tl.cdiv(width, BLOCK_N)
    steps = tl.cdiv(tl.cast(K, tl.int32), BLOCK_K)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        first, left = place(tile, height, width, BLOCK_M, BLOCK_N, GROUP)
        sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for step in tl.range(0, steps):
            factor = a.load([first, step * BLOCK_K])
            other = b.load([left, step * BLOCK_K]).T if BY_COLUMNS else b.load([step * BLOCK_K, left])
            sums = tl.dot(factor, other, sums, input_precision="tf32")
        store_tile(out, sums, bias, residual, residual_row, first, left, height, width, ACTIVATION, HALVES)


@triton.jit
def gemv(
    a,
    b,
    bias,
    residual,
    out,
    a_row,
    b_column,
    residual_row,
    out_row,
    N,
    K,
    ACTIVATION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UNROLL: tl.constexpr,
    TURN: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A program takes BLOCK_N columns of b, whole, for one row of a; columns of b are `b_column` elements apart.

    With TURN programs begin at different blocks of their columns: columns that are a power of two apart would have all
    programs ask the same part of memory. With EARLY they may begin before the kernel in front of this one has ended.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = columns < N
    inner = tl.arange(0, BLOCK_K)
    starts = b + columns.to(tl.int64) * b_column
    products = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    whole = tl.cdiv(K, BLOCK_K) * BLOCK_K
    first = tl.program_id(0) % tl.cdiv(K, BLOCK_K) * BLOCK_K if TURN else 0
    for step in tl.range(0, K, BLOCK_K, loop_unroll_factor=UNROLL):
        k = step
        if TURN:
            k = tl.where(k + first < whole, k + first, k + first - whole)
        left = inner < K - k
        factor = tl.load(a + row * a_row + k + inner, mask=left, other=0.0, eviction_policy="evict_last")
        mask = inside[:, None] & left[None, :]
        other = tl.load(starts[:, None] + k + inner[None, :], mask=mask, other=0.0, eviction_policy="evict_first")
        products += factor.to(tl.float32)[None, :] * other.to(tl.float32)
    sums = tl.sum(products, axis=1)
    if bias is not None:
        sums += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    SHORT: tl.constexpr = out.dtype.element_ty.primitive_bitwidth == 16
    sums = activate(sums, ACTIVATION, SHORT)
    if residual is not None:
        sums += tl.load(residual + row * residual_row + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_row + columns, sums.to(out.dtype.element_ty), mask=inside)
