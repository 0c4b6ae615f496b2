"""Softmax over the last dim."""

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
    Tensor,
    alignment,
    among,
    dims,
    normal,
    parameter,
    problem,
    stride,
    table,
    target,
)

from .triton_kernels import TRITON_KERNELS

R, D = dims("R D")

CPU_DTYPES = {"T": ("f32", "bf16", "f16")}
# The CPU kernels read and write whole vectors along the rows.
UNIT_STRIDES = (stride("x", 1) == 1, stride("out", 1) == 1)
# The CUDA kernels read and write pieces of 16 bytes, of which every row is a whole number.
WHOLE_PIECES = (
    *UNIT_STRIDES,
    D % 8 == 0,
    stride("x", 0) % 8 == 0,
    stride("out", 0) % 8 == 0,
    alignment("x") >= 16,
    alignment("out") >= 16,
)
# Elements: ordinary stores read the output first, which streaming ones do not; it shows where no cache holds it.
WITHIN_REACH = (R * D < 4194304,)
# What is not of whole pieces; of the rest, rows of which a warp takes several.
UNEVEN = (sum(~fact for fact in WHOLE_PIECES) > 0) | (D <= 128)
# Where kernels have few configs: an H200 measured more, and without the others no problem was 1 % slower.
HOPPER = target("capability") == 90
# Elements: streaming stores have nothing to offer where the output stays in a cache.
BEYOND_L2 = (R * D >= 262144,)


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition, shifted by the row's maximum."""
    shifted = xp.exp(call.x - xp.max(call.x, axis=-1, keepdims=True))
    return {"out": shifted / xp.sum(shifted, axis=-1, keepdims=True)}


def torch_softmax(torch: Any, call: Call) -> Callable[[], object]:
    """torch's softmax into the output."""
    return lambda: torch.softmax(call.x, -1, out=call.out)


def cpu_workload() -> tuple[Problem, ...]:
    """Attention rows, and the vocabularies of Llama 2 and 3; two in bf16, one in f16."""
    few = ((1, 1024), (1, 32000), (1, 128256), (16, 32000), (64, 128))
    many = ((256, 1024), (192, 512), (1024, 1024), (1024, 4096), (8192, 1024))
    narrow = ((256, 1024, "bf16"), (1024, 4096, "bf16"), (256, 1024, "f16"))
    found = [problem(R=r, D=d) for r, d in (*few, *many)]
    return (*found, *(problem(R=r, D=d, dtypes={"T": t}) for r, d, t in narrow))


def cuda_workload() -> tuple[Problem, ...]:
    """Attention rows, and the vocabularies of Llama 2, Llama 3, Qwen 2.5 and GPT-2; in bf16, a few in f16 and f32.

    And rows that do not begin with whole pieces of 16 bytes.
    """
    rows = (1, 16, 64, 256, 1024, 4096, 16384)
    shapes = [(r, d) for d in (1024, 4096, 32000, 128256, 152064) for r in rows if r * d * 2 <= 1200000000]
    found = [problem(R=r, D=d, dtypes={"T": "bf16"}) for r, d in (*shapes, (8192, 4096))]
    found += [problem(R=r, D=d, dtypes={"T": "f16"}) for r, d in ((1, 4096), (4096, 4096), (16, 128256))]
    found += [problem(R=r, D=d) for r, d in ((64, 1024), (4096, 4096), (256, 32000), (1, 128256), (64, 128256))]
    odd = ((3, 50257), (777, 50257), (5000, 50257), (1, 151643), (12345, 1537), (4096, 777), (16384, 201), (16384, 33))
    found += [problem(R=r, D=d, dtypes={"T": "bf16"}) for r, d in odd]
    found += [problem(R=777, D=50257, dtypes={"T": "f16"}), problem(R=64, D=50257), problem(R=4096, D=1537)]
    return tuple(found)


_ROWS_PARAMETERS = (
    Parameter("VECTORS", (1, 2, 4, 8)),
    Parameter("BLOCK", (128, 256)),
    Parameter("RESIDENT", (0, 512, 1024)),
    Parameter("STREAM", (False, True)),
)
# An H200 timed others, too, on problems from 4 MB on: none was 1 % faster. By what else was in L2, STREAM was 4 to
# 6 % slower than a race said.
_ROWS_ON_HOPPER = table("VECTORS BLOCK RESIDENT STREAM", (4, 128, 0, False), (2, 128, 0, False))

CUDA_ROWS = Kernel(
    "cuda_rows",
    "softmax/cuda_rows.cu.j2",
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

_FLAT_PARAMETERS = (
    Parameter("CLUSTER", (1, 2, 4, 8)),
    Parameter("VECTORS", (4, 5, 8, 10)),
    Parameter("THREADS", (256, 320, 512)),
    Parameter("BLOCKS", (2, 3, 4)),
    Parameter("PAUSE", (0, 3000)),
)
# Without others that an H200 measured no problem was 1 % slower.
_FLAT_ORDER = table(
    "CLUSTER VECTORS THREADS BLOCKS PAUSE",
    (1, 8, 512, 2, 0),
    (8, 8, 256, 4, 3000),
    (8, 10, 256, 4, 3000),
    (8, 8, 320, 3, 0),
    (8, 5, 512, 3, 0),
    (4, 8, 512, 2, 0),
    (2, 8, 256, 4, 0),
)

CUDA_FLAT = Kernel(
    "cuda_flat",
    "softmax/cuda_flat.cu.j2",
    backend="nvcc",
    parameters=_FLAT_PARAMETERS,
    constraints=(target("capability") >= 90, among(_FLAT_PARAMETERS, _FLAT_ORDER)),
    requires=WHOLE_PIECES,
    worthwhile=(D >= 4096,),
    order=_FLAT_ORDER,
    follows={"f16": "bf16"},
    compile_seconds=4.0,
    tile={"R": 1, "D": 4 * parameter("CLUSTER") * parameter("VECTORS") * parameter("THREADS")},
)

_SPLIT_PARAMETERS = (Parameter("SPLIT", (4, 16, 64)), Parameter("VECTORS", (2, 4)))
_SPLIT_ON_HOPPER = table("SPLIT VECTORS", (64, 2), (16, 2))

CUDA_SPLIT = Kernel(
    "cuda_split",
    "softmax/cuda_split.cu.j2",
    backend="nvcc",
    parameters=_SPLIT_PARAMETERS,
    constraints=(~HOPPER | among(_SPLIT_PARAMETERS, _SPLIT_ON_HOPPER),),
    requires=WHOLE_PIECES,
    worthwhile=(D >= 16384,),
    order=(
        {"SPLIT": 16, "VECTORS": 4},
        {"SPLIT": 64, "VECTORS": 2},
        {"SPLIT": 4, "VECTORS": 4},
    ),
    follows={"f16": "bf16"},
    compile_seconds=4.0,
)

_PEELED_PARAMETERS = (
    Parameter("CLUSTER", (1, 2, 4, 8)),
    Parameter("VECTORS", (1, 2, 4, 8)),
    Parameter("THREADS", (256, 448, 512)),
)
_PEELED_ORDER = table(
    "CLUSTER VECTORS THREADS",
    (1, 1, 512),
    (1, 2, 512),
    (1, 4, 512),
    (1, 8, 448),
    (2, 8, 512),
    (4, 8, 512),
    (8, 8, 448),
    (8, 4, 256),
    (8, 2, 512),
)

# Rows of any width and alignment.
CUDA_PEELED = Kernel(
    "cuda_peeled",
    "softmax/cuda_peeled.cu.j2",
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
    Kernel("cuda_generic", "softmax/cuda_generic.cu.j2", backend="nvcc", generic=True),
    CUDA_ROWS,
    CUDA_FLAT,
    CUDA_SPLIT,
    CUDA_PEELED,
)


operator = Operator(
    name="softmax",
    documentation="out[r, :] = exp(x[r, :] - max) / sum: softmax over the last dim.",
    dims=("R", "D"),
    tensors=(
        Tensor("x", (R, D), "T", values=normal(4.0)),
        Tensor("out", (R, D), "T", output=True, may_alias=("x",)),
    ),
    reference=reference,
    fold="R",
    flops=5 * R * D,
    dtypes={"T": ("f32", "bf16", "f16")},
    intermediates="f32",
    ranges={"R": (1, 65536), "D": (1, 262144)},
    workload={"cpu": cpu_workload(), "cuda": cuda_workload()},
    checks=(problem(R=3, D=40008),),  # more than the registers of one block hold
    baselines=(Baseline("torch.softmax", "torch", torch_softmax),),
    kernels=(
        Kernel("generic", "softmax/generic.cpp.j2", generic=True, dtypes=CPU_DTYPES),
        Kernel(
            "rows",
            "softmax/rows.cpp.j2",
            dtypes=CPU_DTYPES,
            follows={"f16": "bf16"},
            parameters=(
                Parameter("W", (4, 8, 16)),
                Parameter("ROWS", (1, 2, 4)),
                Parameter("UNROLL", (1, 2, 4)),
                Parameter("METHOD", ("stored", "recompute", "online")),
                Parameter("SERIAL_BELOW", (8192, 65536)),
            ),
            constraints=(
                parameter("W") * 4 == target("vector_bytes"),
                parameter("ROWS") * parameter("UNROLL") == 4,
                (parameter("METHOD") == 0) | ((parameter("ROWS") == 1) & (parameter("SERIAL_BELOW") == 8192)),
            ),
            worthwhile=WITHIN_REACH,
            requires=UNIT_STRIDES,
            order=(
                {"ROWS": 4, "METHOD": "stored", "SERIAL_BELOW": 8192},
                {"ROWS": 1, "METHOD": "stored", "SERIAL_BELOW": 8192},
            ),
        ),
        Kernel(
            "streaming",
            "softmax/streaming.cpp.j2",
            dtypes=CPU_DTYPES,
            follows={"f16": "bf16"},
            parameters=(
                Parameter("W", (4, 8, 16)),
                Parameter("UNROLL", (2, 4)),
                Parameter("METHOD", ("buffered", "recompute", "online")),
                Parameter("PREFETCH", (0, 2048)),
            ),
            constraints=(
                parameter("W") * 4 == target("vector_bytes"),
                (parameter("METHOD") == 0) | ((parameter("UNROLL") == 4) & (parameter("PREFETCH") == 2048)),
            ),
            requires=UNIT_STRIDES,
            worthwhile=BEYOND_L2,
            order=(
                {"UNROLL": 4, "METHOD": "buffered", "PREFETCH": 2048},
                {"UNROLL": 4, "METHOD": "recompute", "PREFETCH": 2048},
            ),
        ),
        *CUDA_KERNELS,
        *TRITON_KERNELS,
    ),
)
