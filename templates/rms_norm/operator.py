"""Root-mean-square norm, with or without a weight, and a residual that is added first and written out."""

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
    present,
    problem,
    stride,
    table,
    target,
    where,
)

from .triton_kernels import TRITON_KERNELS

R, D = dims("R D")

FUSED = ("weight", "residual", "residual_out")

CPU_DTYPES = {"T": ("f32", "bf16", "f16")}
# The CPU kernels read and write whole vectors along the rows.
UNIT_STRIDES = (
    stride("x", 1) == 1,
    stride("weight", 0) == 1,
    stride("residual", 1) == 1,
    stride("out", 1) == 1,
    stride("residual_out", 1) == 1,
)
# The CUDA kernels read and write pieces of 16 bytes, of which every row is a whole number.
WHOLE_PIECES = (
    *UNIT_STRIDES,
    D % 8 == 0,
    *(stride(tensor, 0) % 8 == 0 for tensor in ("x", "residual", "out", "residual_out")),
    *(alignment(tensor) >= 16 for tensor in ("x", "weight", "residual", "out", "residual_out")),
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
    """The definition (Zhang and Sennrich, arXiv:1910.07467)."""
    total = call.x if call.residual is None else call.x + call.residual
    scale = xp.sqrt(xp.mean(total * total, axis=-1, keepdims=True) + call.eps)
    normal = total / scale
    return {"out": normal if call.weight is None else normal * call.weight, "residual_out": total}


def torch_rms_norm(torch: Any, call: Call) -> Callable[[], object]:
    """torch's norm, then a copy into the output: it has no `.out` form. The residual is added before."""
    norm, width = torch.nn.functional.rms_norm, call.x.shape[-1:]
    if call.residual is None:
        return lambda: call.out.copy_(norm(call.x, width, call.weight, call.eps))
    total = torch.empty_like(call.x) if call.residual_out is None else call.residual_out
    add = torch.add

    def run() -> None:
        add(call.x, call.residual, out=total)
        call.out.copy_(norm(total, width, call.weight, call.eps))

    return run


def both_or_none(given: Problem) -> bool:
    """Whether the sum is written where there is one, and only there."""
    return ("residual" in given.present) == ("residual_out" in given.present)


def cpu_workload() -> tuple[Problem, ...]:
    """Llama-3-8B's norm, plain and with the residual that its blocks add; two in bf16, one in f16, one unweighted."""
    plain = [problem(R=r, D=4096, present=["weight"]) for r in (1, 16, 256, 1024, 4096)]
    fused = [problem(R=r, D=4096, present=FUSED) for r in (1, 16, 64, 256, 1024, 2048)]
    narrow = [problem(R=16, D=4096, present=["weight"], dtypes={"T": "bf16"})]
    narrow += [problem(R=1024, D=4096, present=FUSED, dtypes={"T": t}) for t in ("bf16", "f16")]
    return (*plain, *fused, *narrow, problem(R=256, D=4096))


def cuda_workload() -> tuple[Problem, ...]:
    """Norms of Llama-3-8B (4096), Qwen-2.5-7B (3584), Llama-3-70B (8192) and 405B (16384); one width in f16 and f32.

    One has no weight. And rows of other widths, most of which do not begin with whole pieces of 16 bytes.
    """
    rows = (1, 16, 64, 256, 1024, 4096, 16384)
    bf16 = {"T": "bf16"}
    plain = ("weight",)
    found = [problem(R=r, D=d, present=plain, dtypes=bf16) for d in (3584, 4096, 8192) for r in rows]
    found += [problem(R=r, D=d, present=FUSED, dtypes=bf16) for d in (4096, 8192) for r in (1, 16, 256, 4096, 16384)]
    some = (1, 16, 256, 1024, 4096, 16384)
    found += [problem(R=r, D=4096, present=plain, dtypes={"T": "f16"}) for r in some]
    found += [problem(R=r, D=4096, present=plain) for r in some]
    found += [problem(R=r, D=4096, present=FUSED) for r in (16, 4096)]
    found += [problem(R=r, D=16384, present=plain, dtypes=bf16) for r in (16, 4096)]
    odd = ((12345, 1536), (4096, 4099), (64, 4099), (3, 50257), (5000, 50257), (16384, 777), (16384, 33))
    found += [problem(R=r, D=d, present=plain, dtypes=bf16) for r, d in odd]
    found += [problem(R=4096, D=4099, present=FUSED, dtypes=bf16)]
    found += [problem(R=4096, D=4099, present=plain, dtypes={"T": "f16"}), problem(R=4096, D=1537, present=plain)]
    return (*found, problem(R=256, D=4096, dtypes=bf16))


_ROWS_PARAMETERS = (
    Parameter("VECTORS", (1, 2, 4, 8)),
    Parameter("BLOCK", (128, 256)),
    Parameter("RESIDENT", (0, 512, 1024)),
    Parameter("STREAM", (False, True)),
)
# An H200 timed others, too, on problems from 4 MB on: none was 1 % faster. STREAM was 8 % faster where a call takes as
# much as L2 holds, and by what else was there 3 to 6 % slower than a race said.
_ROWS_ON_HOPPER = table("VECTORS BLOCK RESIDENT STREAM", (4, 128, 0, False), (2, 128, 0, False))

CUDA_ROWS = Kernel(
    "cuda_rows",
    "rms_norm/cuda_rows.cu.j2",
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
        {"VECTORS": 8, "BLOCK": 128, "RESIDENT": 0, "STREAM": False},
        {"VECTORS": 4, "BLOCK": 256, "RESIDENT": 0, "STREAM": False},
    ),
    follows={"f16": "bf16"},
    compile_seconds=4.0,
    tile={"R": 1, "D": 128 * parameter("VECTORS")},
)

# Few rows take as long as their weights need from memory. They come while the kernel before is at work: in one race on
# an H200 1.18 us instead of 1.31 for a row of 4096 in f16.
CUDA_ROWS_FEW = Kernel(
    "cuda_rows_few",
    "rms_norm/cuda_rows.cu.j2",
    backend="nvcc",
    parameters=(
        Parameter("VECTORS", (1, 2)),
        Parameter("BLOCK", (128,)),
        Parameter("RESIDENT", (0,)),
        Parameter("STREAM", (False,)),
        Parameter("AHEAD", (True,)),
    ),
    constraints=(target("capability") >= 90, ~HOPPER | (parameter("VECTORS") == 2)),
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
    "rms_norm/cuda_peeled.cu.j2",
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
    Kernel("cuda_generic", "rms_norm/cuda_generic.cu.j2", backend="nvcc", generic=True),
    CUDA_ROWS,
    CUDA_ROWS_FEW,
    CUDA_PEELED,
)


operator = Operator(
    name="rms_norm",
    documentation="s = x + residual; residual_out = s; out = s / sqrt(mean(s^2) + eps) * weight, over the last dim. "
    "A weight or a residual that is not passed is left out.",
    dims=("R", "D"),
    tensors=(
        Tensor("x", (R, D), "T"),
        Tensor("weight", (D,), "T", optional=True),
        Tensor("residual", (R, D), "T", optional=True),
        Tensor("out", (R, D), "T", output=True, may_alias=("x",)),
        Tensor("residual_out", (R, D), "T", output=True, optional=True, may_alias=("residual",)),
    ),
    scalars=(Scalar("eps", "f32", 1e-5, other=0.25),),
    reference=reference,
    fold="R",
    flops=4 * R * D + present("residual") * R * D,
    dtypes={"T": ("f32", "bf16", "f16")},
    intermediates="f32",
    ranges={"R": (1, 65536), "D": (1, 262144)},
    workload={"cpu": cpu_workload(), "cuda": cuda_workload()},
    # more than the registers of one block hold
    checks=(problem(R=3, D=40008, present=["weight"]), problem(R=3, D=40008, present=FUSED), problem(R=3, D=40008)),
    baselines=(Baseline("torch.rms_norm", "torch", torch_rms_norm, supports=both_or_none),),
    kernels=(
        Kernel("generic", "rms_norm/generic.cpp.j2", generic=True, dtypes=CPU_DTYPES),
        Kernel(
            "rows",
            "rms_norm/rows.cpp.j2",
            dtypes=CPU_DTYPES,
            follows={"f16": "bf16"},
            parameters=(
                Parameter("W", (4, 8, 16)),
                Parameter("UNROLL", (2, 4, 8)),
                Parameter("SERIAL_BELOW", (8192, 65536)),
            ),
            constraints=(parameter("W") * 4 == target("vector_bytes"),),
            requires=UNIT_STRIDES,
            order=({"UNROLL": 4, "SERIAL_BELOW": 8192},),
        ),
        Kernel(
            "streaming",
            "rms_norm/streaming.cpp.j2",
            dtypes=CPU_DTYPES,
            follows={"f16": "bf16"},
            parameters=(
                Parameter("W", (4, 8, 16)),
                Parameter("UNROLL", (4, 8)),
                Parameter("PREFETCH", (0, 2048)),
            ),
            constraints=(parameter("W") * 4 == target("vector_bytes"),),
            requires=UNIT_STRIDES,
            worthwhile=BEYOND_L2,
            order=({"UNROLL": 4, "PREFETCH": 2048},),
        ),
        *CUDA_KERNELS,
        *TRITON_KERNELS,
    ),
)
