"""A function with every kind of parameter, for the tests of launchers; each of them has a say in what it stores."""

# ruff: noqa: N803 - constexprs are written in capitals

import triton
import triton.language as tl


@triton.jit
def everything(
    rows,
    x,
    absent,
    small: tl.int8,
    count,
    flag,
    half: tl.float16,
    brain: tl.bfloat16,
    wide,
    one,
    scale,
    precise: tl.float64,
    sums,
    out,
    BLOCK: tl.constexpr,
    MADE: tl.constexpr,
):
    """`rows` is a descriptor that the host makes, or two of the device where `MADE`."""
    at = tl.program_id(0) * BLOCK
    value = rows.load([at, 0]).to(tl.float32)
    if MADE:
        made = tl.make_tensor_descriptor(x, [count, BLOCK], [BLOCK, 1], [BLOCK, BLOCK])
        value += made.load([at, 0]).to(tl.float32)
    if flag:
        value += one
    value = value * scale + half + brain + small + precise.to(tl.float32)
    if absent is not None:
        value += tl.load(absent)
    lanes = tl.arange(0, BLOCK)
    tl.atomic_add(sums + lanes, tl.sum(value, 0))
    tl.store(out + (at + lanes[:, None]) * wide + lanes[None, :], value.to(tl.bfloat16))
