"""Layer norm over the last dim, with or without weight and bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aot_tune.spec import (
    Baseline,
    Call,
    Kernel,
    Operator,
    Parameter,
    Problem,
    Scalar,
    Tensor,
    alignment,
    among,
    dims,
    dtype_index,
    parameter,
    problem,
    stride,
    table,
    target,
    where,
)

from .triton_kernels import TRITON_KERNELS

R, D = dims("R D")

BOTH = ("weight", "bias")

CPU_DTYPES = {"T": ("f32", "bf16", "f16")}
# The CPU kernels read and write whole vectors along the rows.
UNIT_STRIDES = (
    stride("x", 1) == 1,
    stride("weight", 0) == 1,
    stride("bias", 0) == 1,
    stride("out", 1) == 1,
)
# The CUDA kernels read and write pieces of 16 bytes, of which every row is a whole number.
WHOLE_PIECES = (
    *UNIT_STRIDES,
    D % 8 == 0,
    stride("x", 0) % 8 == 0,
    stride("out", 0) % 8 == 0,
    *(alignment(tensor) >= 16 for tensor in ("x", "weight", "bias", "out")),
)
# What a block of `cuda_rows_few` holds in its registers, 1024 pieces of 16 bytes (T is f32 first).
IN_ONE_BLOCK = where(dtype_index("T") == 0, 4096, 8192) >= D
# What is not of whole pieces; of the rest, rows that no block holds, and those of which a warp takes several.
UNEVEN = (sum(~fact for fact in WHOLE_PIECES) > 0) | (D > 16384) | (D <= 128)
# Where kernels have few configs: an H200 measured more, and without the others no problem was 1 % slower.
HOPPER = target("capability") == 90
# Elements: streaming stores have nothing to offer where the output stays in a cache.
BEYOND_L2 = (R * D >= 262144,)


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
    return (*found, problem(R=256, D=4096, dtypes=bf16))


_ROWS_PARAMETERS = (
    Parameter("VECTORS", (1, 2, 4)),
    Parameter("BLOCK", (128, 256)),
    Parameter("RESIDENT", (0, 512, 1024)),
    Parameter("STREAM", (False, True)),
)
# An H200 timed others, too, on problems from 4 MB on: one was 2 % faster on one of them. STREAM was 10 % faster where a
# call takes as much as L2 holds, and by what else was there 3 to 6 % slower than a race said.
_ROWS_ON_HOPPER = table("VECTORS BLOCK RESIDENT STREAM", (4, 128, 0, False), (2, 128, 0, False))

CUDA_ROWS = Kernel(
    "cuda_rows",
    "layer_norm/cuda_rows.cu.j2",
    backend="nvcc",
    parameters=_ROWS_PARAMETERS,
    constraints=(
        ~HOPPER | among(_ROWS_PARAMETERS, _ROWS_ON_HOPPER),
        (parameter("BLOCK") == 128) | ((parameter("STREAM") == 0) & (parameter("RESIDENT") == 0)),
        (parameter("RESIDENT") == 0) | (parameter("STREAM") == 0),
        # As many threads as have room for two rows' pieces in their registers.
        (parameter("RESIDENT") == 0) | (parameter("VECTORS") * parameter("RESIDENT") == 2048),
    ),
    requires=WHOLE_PIECES,
    worthwhile=(D <= 32768,),
    order=(
        {"VECTORS": 4, "BLOCK": 128, "RESIDENT": 0, "STREAM": False},
        {"VECTORS": 2, "BLOCK": 128, "RESIDENT": 0, "STREAM": False},
        {"VECTORS": 1, "BLOCK": 128, "RESIDENT": 0, "STREAM": False},
        {"VECTORS": 4, "BLOCK": 128, "RESIDENT": 512, "STREAM": False},
        {"VECTORS": 2, "BLOCK": 128, "RESIDENT": 1024, "STREAM": False},
        {"VECTORS": 4, "BLOCK": 128, "RESIDENT": 0, "STREAM": True},
        {"VECTORS": 4, "BLOCK": 256, "RESIDENT": 0, "STREAM": False},
    ),
    follows={"f16": "bf16"},
    compile_seconds=4.0,
    tile={"R": 1, "D": 128 * parameter("VECTORS")},
)

# Few rows take as long as their weights need from memory. They come while the kernel before is at work: in one race on
# an H200 1.17 us instead of 1.32 for a row of 1024 in f32.
CUDA_ROWS_FEW = Kernel(
    "cuda_rows_few",
    "layer_norm/cuda_rows.cu.j2",
    backend="nvcc",
    parameters=(
        Parameter("VECTORS", (1, 2)),
        Parameter("BLOCK", (128,)),
        Parameter("RESIDENT", (0,)),
        Parameter("STREAM", (False,)),
        Parameter("AHEAD", (True,)),
    ),
    constraints=(target("capability") >= 90,),
    requires=(*WHOLE_PIECES, IN_ONE_BLOCK),
    worthwhile=(R <= 256,),
    follows={"f16": "bf16"},
    compile_seconds=4.0,
    tile={"R": 1, "D": 128 * parameter("VECTORS")},
)

_PEELED_PARAMETERS = (
    Parameter("CLUSTER", (1, 2, 4, 8)),
    Parameter("VECTORS", (1, 2, 4, 8)),
    Parameter("THREADS", (256, 384, 512)),
)
_PEELED_ORDER = table(
    "CLUSTER VECTORS THREADS",
    (1, 1, 512),
    (1, 2, 512),
    (1, 4, 384),
    (2, 4, 512),
    (2, 8, 384),
    (4, 8, 384),
    (8, 4, 512),
    (8, 8, 384),
    (8, 2, 256),
    (8, 1, 512),
)

# Rows of any width and alignment.
CUDA_PEELED = Kernel(
    "cuda_peeled",
    "layer_norm/cuda_peeled.cu.j2",
    backend="nvcc",
    parameters=_PEELED_PARAMETERS,
    constraints=(
        among(_PEELED_PARAMETERS, _PEELED_ORDER),
        (parameter("CLUSTER") == 1) | (target("capability") >= 90),
    ),
    requires=UNIT_STRIDES,
    worthwhile=(UNEVEN,),
    order=_PEELED_ORDER,
    follows={"f16": "bf16"},
    compile_seconds=8.0,
    tile={"R": 1, "D": 4 * parameter("VECTORS") * parameter("THREADS")},
    cluster={"D": parameter("CLUSTER")},
)

CUDA_KERNELS = (
    Kernel("cuda_generic", "layer_norm/cuda_generic.cu.j2", backend="nvcc", generic=True),
    CUDA_ROWS,
    CUDA_ROWS_FEW,
    CUDA_PEELED,
)


operator = Operator(
    name="layer_norm",
    documentation="out = (x - mean) / sqrt(variance + eps) * weight + bias, over the last dim. "
    "A weight or a bias that is not passed is left out.",
    dims=("R", "D"),
    tensors=(
        Tensor("x", (R, D), "T"),
        Tensor("weight", (D,), "T", optional=True),
        Tensor("bias", (D,), "T", optional=True),
        Tensor("out", (R, D), "T", output=True, may_alias=("x",)),
    ),
    scalars=(Scalar("eps", "f32", 1e-5, other=0.25),),
    reference=reference,
    fold="R",
    flops=7 * R * D,
    dtypes={"T": ("f32", "bf16", "f16")},
    intermediates="f32",
    ranges={"R": (1, 65536), "D": (1, 262144)},
    workload={"cpu": cpu_workload(), "cuda": cuda_workload()},
    # more than the registers of one block hold
    checks=(problem(R=3, D=40008, present=BOTH), problem(R=3, D=40008), problem(R=3, D=40008, present=["weight"])),
    baselines=(Baseline("torch.layer_norm", "torch", torch_layer_norm),),
    kernels=(
        Kernel("generic", "layer_norm/generic.cpp.j2", generic=True, dtypes=CPU_DTYPES),
        Kernel(
            "rows",
            "layer_norm/rows.cpp.j2",
            dtypes=CPU_DTYPES,
            follows={"f16": "bf16"},
            parameters=(
                Parameter("W", (4, 8, 16)),
                Parameter("ROWS", (1, 2)),
                Parameter("UNROLL", (2, 4)),
                Parameter("SERIAL_BELOW", (8192, 65536)),
            ),
            constraints=(
                parameter("W") * 4 == target("vector_bytes"),
                parameter("ROWS") * parameter("UNROLL") == 4,
            ),
            requires=UNIT_STRIDES,
            order=({"ROWS": 1, "UNROLL": 4, "SERIAL_BELOW": 8192},),
        ),
        Kernel(
            "streaming",
            "layer_norm/streaming.cpp.j2",
            dtypes=CPU_DTYPES,
            follows={"f16": "bf16"},
            parameters=(
                Parameter("W", (4, 8, 16)),
                Parameter("ROWS", (1, 2)),
                Parameter("UNROLL", (2, 4)),
                Parameter("PREFETCH", (0, 2048)),
            ),
            constraints=(
                parameter("W") * 4 == target("vector_bytes"),
                parameter("ROWS") * parameter("UNROLL") == 4,
            ),
            requires=UNIT_STRIDES,
            worthwhile=BEYOND_L2,
            order=({"ROWS": 1, "UNROLL": 4, "PREFETCH": 2048},),
        ),
        *CUDA_KERNELS,
        *TRITON_KERNELS,
    ),
)
