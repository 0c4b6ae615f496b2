"""Two ordinary Triton kernels. They know nothing of aot_tune."""

import triton
import triton.language as tl


@triton.jit
def swiglu(out_ptr, gate_ptr, up_ptr, out_stride, gate_stride, up_stride, columns, BLOCK: tl.constexpr):
    """silu(gate) * up, one row a program."""
    row = tl.program_id(0).to(tl.int64)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        gate = tl.load(gate_ptr + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(up_ptr + row * up_stride + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * out_stride + column, gate * tl.sigmoid(gate) * up, mask=inside)


@triton.autotune(
    configs=[triton.Config({"ROWS": r}, num_warps=w) for r, w in ((1, 4), (1, 8), (2, 8), (4, 8))],
    key=["columns"],
)
@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(min(args["columns"], 4096))})
@triton.jit
def rms_norm(
    out_ptr,
    x_ptr,
    weight_ptr,
    out_stride,
    x_stride,
    rows,
    columns,
    eps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """x / rms(x) * weight, ROWS rows a program, BLOCK columns at a time."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        inside = (row < rows) & (column < columns)
        x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        total += x * x
    scale = tl.rsqrt(tl.sum(total, 1) / columns + eps)[:, None]
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        inside = (row < rows) & (column < columns)
        x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * out_stride + column, x * scale * weight, mask=inside)
