"""Softmax over the last dim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aot_tune.spec import Baseline, Call, Operator, Parameter, Problem, Tensor, among, normal, parameter, problem, table

from ..common.row_kernels import (
    EARLY,
    FULL_VECTORS,
    HOPPER,
    OF_ROWS,
    D,
    R,
    cpu_kernels,
    cuda_generic,
    cuda_kernel,
    cuda_peeled,
    cuda_rows,
    triton_rows,
    triton_tiles,
    unit_strides,
    whole_pieces,
)

AXES = {"x": 1, "out": 1}
WHOLE_PIECES = whole_pieces(**AXES)
# Four rows at once are more streams than memory likes where no cache holds them.
WITHIN_CACHES = ((parameter("ROWS") < 4) | (R * D < 4194304),)
# What is not of whole pieces; of the rest, rows of which a warp takes several.
UNEVEN = (sum(~fact for fact in WHOLE_PIECES) > 0) | (D <= 128)


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
    for dtype in ("f16", "f32"):
        others = ((1, 262144), (1, 675), (64, 13121), (4096, 777), (16384, 64), (16384, 33))
        found += [problem(R=r, D=d, dtypes={"T": dtype}) for r, d in others]
    return tuple(found)


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

CUDA_FLAT = cuda_kernel(
    "softmax",
    "cuda_flat",
    parameters=_FLAT_PARAMETERS,
    constraints=(EARLY, among(_FLAT_PARAMETERS, _FLAT_ORDER)),
    requires=WHOLE_PIECES,
    worthwhile=(D >= 4096,),
    order=_FLAT_ORDER,
    tile={"R": 1, "D": 4 * parameter("CLUSTER") * parameter("VECTORS") * parameter("THREADS")},
)

_SPLIT_PARAMETERS = (Parameter("SPLIT", (4, 16, 64)), Parameter("VECTORS", (2, 4)))
_SPLIT_ON_HOPPER = table("SPLIT VECTORS", (64, 2), (16, 2))

CUDA_SPLIT = cuda_kernel(
    "softmax",
    "cuda_split",
    parameters=_SPLIT_PARAMETERS,
    constraints=(~HOPPER | among(_SPLIT_PARAMETERS, _SPLIT_ON_HOPPER),),
    requires=WHOLE_PIECES,
    worthwhile=(D >= 16384,),
    order=(
        {"SPLIT": 16, "VECTORS": 4},
        {"SPLIT": 64, "VECTORS": 2},
        {"SPLIT": 4, "VECTORS": 4},
    ),
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

CUDA_KERNELS = (
    cuda_generic("softmax"),
    cuda_rows("softmax", (1, 2, 4, 8), WHOLE_PIECES),
    CUDA_FLAT,
    CUDA_SPLIT,
    cuda_peeled("softmax", unit_strides(**AXES), UNEVEN, _PEELED_ORDER),
)


_TRITON = "softmax/triton.py:softmax_rows"
TRITON_KERNELS = (
    triton_rows(_TRITON, AXES, 32768, 4, 8, 16, 32, constraints=(~HOPPER | (parameter("num_warps") <= 8),)),
    triton_tiles(_TRITON, AXES, 1024, 64, (2048, 4), (4096, 4), (8192, 8), on_hopper=parameter("ELEMENTS") == 2048),
)


operator = Operator(
    name="softmax",
    documentation="out[r, :] = exp(x[r, :] - max) / sum: softmax over the last dim.",
    tensors=(
        Tensor("x", (R, D), "T", values=normal(4.0)),
        Tensor("out", (R, D), "T", output=True, may_alias=("x",)),
    ),
    reference=reference,
    flops=5 * R * D,
    workload={"cpu": cpu_workload(), "cuda": cuda_workload()},
    checks=(problem(R=3, D=40008),),  # more than the registers of one block hold
    baselines=(Baseline("torch.softmax", "torch", torch_softmax),),
    kernels=(
        *cpu_kernels(
            "softmax",
            {
                "parameters": (
                    Parameter("ROWS", (1, 2, 4)),
                    Parameter("UNROLL", (1, 2, 4)),
                ),
                "constraints": (FULL_VECTORS, parameter("ROWS") * parameter("UNROLL") == 4),
                "worthwhile": WITHIN_CACHES,
                "requires": unit_strides(**AXES),
                "order": ({"ROWS": 4}, {"ROWS": 1}),
            },
            {
                "parameters": (
                    Parameter("UNROLL", (2, 4)),
                    Parameter("METHOD", ("buffered", "recompute")),
                ),
                "constraints": (FULL_VECTORS, (parameter("METHOD") == 0) | (parameter("UNROLL") == 4)),
                "requires": unit_strides(**AXES),
                "order": ({"UNROLL": 4, "METHOD": "buffered"}, {"UNROLL": 4, "METHOD": "recompute"}),
            },
        ),
        *CUDA_KERNELS,
        *TRITON_KERNELS,
    ),
    **OF_ROWS,
)
