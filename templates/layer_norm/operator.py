"""Layer norm over the last dim, with or without weight and bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aot_tune.spec import (
    Baseline,
    Call,
    Operator,
    Parameter,
    Problem,
    Scalar,
    Tensor,
    dtype_index,
    parameter,
    problem,
    table,
    where,
)

from ..common.row_kernels import (
    FULL_VECTORS,
    HOPPER,
    OF_ROWS,
    D,
    R,
    cpu_kernels,
    cuda_generic,
    cuda_peeled,
    cuda_rows,
    cuda_rows_few,
    triton_kernel,
    triton_rows,
    triton_tiles,
    unit_strides,
    whole_pieces,
)

BOTH = ("weight", "bias")

AXES = {"x": 1, "weight": 0, "bias": 0, "out": 1}
WHOLE_PIECES = whole_pieces(**AXES)
# What a block of `cuda_rows_few` holds in its registers, 1024 pieces of 16 bytes (T is f32 first).
IN_ONE_BLOCK = where(dtype_index("T") == 0, 4096, 8192) >= D
# What is not of whole pieces; of the rest, rows that no block holds, and those of which a warp takes several.
UNEVEN = (sum(~fact for fact in WHOLE_PIECES) > 0) | (D > 16384) | (D <= 128)


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition (Ba, Kiros and Hinton, arXiv:1607.06450), with the variance of the centred values."""
    centred = call.x - xp.mean(call.x, axis=-1, keepdims=True)
    variance = xp.mean(centred * centred, axis=-1, keepdims=True)
    out = centred / xp.sqrt(variance + call.eps)
    if call.weight is not None:
        out = out * call.weight
    return {"out": out if call.bias is None else out + call.bias}


def torch_layer_norm(torch: Any, call: Call) -> Callable[[], object]:
    """torch's norm through its `.out` form."""
    rows, width = call.x.shape[0], list(call.x.shape[-1:])
    kept = call.x.dtype if call.x.device.type == "cpu" else torch.float32  # what torch keeps them in
    mean, rstd = (torch.empty(rows, 1, dtype=kept, device=call.x.device) for _ in range(2))
    norm = torch.ops.aten.native_layer_norm.out
    return lambda: norm(
        call.x,
        width,
        call.weight,
        call.bias,
        call.eps,
        out0=call.out,
        out1=mean,
        out2=rstd,
    )


def cpu_workload() -> tuple[Problem, ...]:
    """BERT-base and a wider model; two problems in bf16, one in f16, one without weight and bias."""
    base = [problem(R=r, D=768, present=BOTH) for r in (1, 16, 64, 256, 1024)]
    narrow = ((256, 768, "bf16"), (1024, 4096, "bf16"), (1024, 4096, "f16"))
    return (
        *base,
        problem(R=256, D=4096, present=BOTH),
        problem(R=1024, D=4096, present=BOTH),
        problem(R=16384, D=768, present=BOTH),
        *(problem(R=r, D=d, present=BOTH, dtypes={"T": t}) for r, d, t in narrow),
        problem(R=256, D=768),
    )


def cuda_workload() -> tuple[Problem, ...]:
    """BERT-large (1024) and wider models; in bf16, a few in f16 and f32, one without weight and bias.

    And rows of other widths, most of which do not begin with whole pieces of 16 bytes.
    """
    rows = (1, 16, 64, 256, 1024, 4096, 16384)
    bf16 = {"T": "bf16"}
    found = [problem(R=r, D=d, present=BOTH, dtypes=bf16) for d in (1024, 3584, 4096, 8192) for r in rows]
    shapes = (*((r, 1024) for r in (1, 64, 256, 4096, 16384)), (1024, 4096), (16384, 4096))
    found += [problem(R=r, D=d, present=BOTH, dtypes={"T": "f16"}) for r, d in shapes]
    found += [problem(R=r, D=d, present=BOTH) for r, d in shapes]
    found += [problem(R=r, D=12288, present=BOTH, dtypes=bf16) for r in (16, 4096)]
    odd = ((12345, 1536), (4096, 4099), (64, 4099), (3, 50257), (777, 50257), (5000, 50257), (16384, 777), (16384, 33))
    found += [problem(R=r, D=d, present=BOTH, dtypes=bf16) for r, d in odd]
    found += [problem(R=4096, D=4099, present=BOTH, dtypes={"T": "f16"}), problem(R=4096, D=1025, present=BOTH)]
    for dtype in ("f16", "f32"):
        others = ((1, 131072), (3, 50257), (16384, 777), (16384, 64), (16384, 33))
        found += [problem(R=r, D=d, present=BOTH, dtypes={"T": dtype}) for r, d in others]
    return (*found, problem(R=256, D=4096, dtypes=bf16))


_SHAPES = (Parameter("ROWS", (1, 2)), Parameter("UNROLL", (2, 4)))

CUDA_KERNELS = (
    cuda_generic("layer_norm"),
    cuda_rows("layer_norm", (1, 2, 4), WHOLE_PIECES),
    cuda_rows_few("layer_norm", (*WHOLE_PIECES, IN_ONE_BLOCK)),
    cuda_peeled("layer_norm", unit_strides(**AXES), UNEVEN),
)


_TRITON = "layer_norm/triton.py:layer_norm"
_ON_HOPPER = (parameter("ELEMENTS") == 2048) | (parameter("num_warps") == 8)
TRITON_KERNELS = (
    triton_rows(f"{_TRITON}_rows", AXES, 16384, 2, 4, 8, 16, constraints=(~HOPPER | (parameter("num_warps") <= 8),)),
    triton_tiles(f"{_TRITON}_rows", AXES, 4096, 1024, (8192, 4), (8192, 8), on_hopper=_ON_HOPPER),
    triton_tiles(
        f"{_TRITON}_rows",
        AXES,
        1024,
        1024,
        *((2048, 4), (4096, 4)),
        on_hopper=_ON_HOPPER,
        name="triton_tiles_small",
    ),
    # Rows are read twice, the second time from L2, which they leave first then: 126.9 us for 16384 rows of 4096 in f32,
    # as for a copy, where the best of the others takes 128.7.
    triton_kernel(
        f"{_TRITON}_twice",
        "triton_twice",
        AXES,
        {"BLOCKS": parameter("BLOCK") >= D},
        listed=table("BLOCK num_warps", (4096, 16), (4096, 8)),
        worthwhile=((D >= 8192) | ((D >= 3584) & (R * D >= 33554432)),),
        tile={"R": 1},
    ),
)


operator = Operator(
    name="layer_norm",
    documentation="out = (x - mean) / sqrt(variance + eps) * weight + bias, over the last dim. "
    "A weight or a bias that is not passed is left out.",
    tensors=(
        Tensor("x", (R, D), "T"),
        Tensor("weight", (D,), "T", optional=True),
        Tensor("bias", (D,), "T", optional=True),
        Tensor("out", (R, D), "T", output=True, may_alias=("x",)),
    ),
    scalars=(Scalar("eps", "f32", 1e-5, other=0.25),),
    reference=reference,
    flops=7 * R * D,
    workload={"cpu": cpu_workload(), "cuda": cuda_workload()},
    # more than the registers of one block hold
    checks=(problem(R=3, D=40008, present=BOTH), problem(R=3, D=40008), problem(R=3, D=40008, present=["weight"])),
    baselines=(Baseline("torch.layer_norm", "torch", torch_layer_norm),),
    kernels=(
        *cpu_kernels(
            "layer_norm",
            {
                "parameters": _SHAPES,
                "constraints": (FULL_VECTORS, parameter("ROWS") * parameter("UNROLL") == 4),
                "requires": unit_strides(**AXES),
                "order": ({"ROWS": 1, "UNROLL": 4},),
            },
            {
                "parameters": _SHAPES,
                "constraints": (FULL_VECTORS, parameter("ROWS") * parameter("UNROLL") == 4),
                "requires": unit_strides(**AXES),
                "order": ({"ROWS": 1, "UNROLL": 4},),
            },
        ),
        *CUDA_KERNELS,
        *TRITON_KERNELS,
    ),
    **OF_ROWS,
)
