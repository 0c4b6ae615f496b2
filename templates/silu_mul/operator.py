"""The gate of a SwiGLU layer: out = silu(gate) * up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aot_tune.spec import (
    Baseline,
    Call,
    Operator,
    Parameter,
    Problem,
    Tensor,
    among,
    ceildiv,
    parameter,
    problem,
    table,
)
from aot_tune.spec.reference import activation

from ..common.row_kernels import (
    BEYOND_CACHES,
    BLOCK,
    HOPPER,
    OF_ROWS,
    RESIDENT,
    STREAM,
    VECTORS,
    D,
    R,
    cpu_kernels,
    cuda_generic,
    cuda_kernel,
    triton_kernel,
    unit_strides,
    whole_pieces,
)

AXES = {"gate": 1, "up": 1, "out": 1}
WHOLE_PIECES = whole_pieces(**AXES)
# What is not of whole pieces.
UNEVEN = sum(~fact for fact in WHOLE_PIECES) > 0


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition (Shazeer, arXiv:2002.05202)."""
    return {"out": activation(xp, "silu", call.gate) * call.up}


def torch_silu_mul(torch: Any, call: Call) -> Callable[[], object]:
    """torch's two calls, both through their `.out` forms."""
    silu, mul = torch.ops.aten.silu.out, torch.mul

    def run() -> None:
        silu(call.gate, out=call.out)
        mul(call.out, call.up, out=call.out)

    return run


def cpu_workload() -> tuple[Problem, ...]:
    """Llama-3-8B's layer; one problem in bf16 and one in f16."""
    narrow = [problem(R=256, D=14336, dtypes={"T": t}) for t in ("bf16", "f16")]
    return (*(problem(R=r, D=14336) for r in (1, 16, 64, 256, 1024)), *narrow)


def cuda_workload() -> tuple[Problem, ...]:
    """Layers of Llama-3-8B, Qwen-2.5-7B and an eighth of Llama-3-70B; in bf16, one width in f16 and f32.

    Where one product makes gate and up, they are the halves of its rows. And rows that do not begin with whole pieces
    of 16 bytes.
    """
    rows = (1, 16, 64, 256, 1024, 4096, 16384)
    bf16 = {"T": "bf16"}
    found = [problem(R=r, D=d, dtypes=bf16) for d in (3584, 4096, 14336, 18944) for r in rows]
    for r in (1, 64, 4096):
        halves = {"gate": (2 * 14336, 1), "up": (2 * 14336, 1)}
        found.append(problem(R=r, D=14336, strides=halves, dtypes=bf16))
    found += [problem(R=r, D=14336, dtypes={"T": "f16"}) for r in (1, 16, 256, 1024, 4096)]
    found += [problem(R=r, D=14336) for r in (1, 16, 256, 1024, 4096)]
    odd = ((1, 11009), (64, 11009), (4096, 11009), (777, 50257), (16384, 777), (16384, 33))
    found += [problem(R=r, D=d, dtypes=bf16) for r, d in odd]
    found += [problem(R=4096, D=11009, strides={"gate": (2 * 11009, 1), "up": (2 * 11009, 1)}, dtypes=bf16)]
    found += [problem(R=4096, D=11009, dtypes={"T": "f16"}), problem(R=4096, D=11009)]
    return tuple(found)


_ROWS_PARAMETERS = (
    Parameter("VECTORS", (1, 2, 4)),
    Parameter("BLOCK", (128, 256, 512)),
    Parameter("RESIDENT", (0, 768, 1536)),
    Parameter("STREAM", (False, True)),
)
# An H200 timed others, too, on problems from 4 MB on, and blocks of 128 on all: none was faster.
_ROWS_ON_HOPPER = table("VECTORS BLOCK RESIDENT STREAM", (1, 256, 0, False))

CUDA_ROWS = cuda_kernel(
    "silu_mul",
    "cuda_rows",
    parameters=_ROWS_PARAMETERS,
    constraints=(
        ~HOPPER | among(_ROWS_PARAMETERS, _ROWS_ON_HOPPER),
        (RESIDENT == 0) | (STREAM == 0),
        # As many threads as have room for two tiles' pieces in their registers.
        (RESIDENT == 0) | ((VECTORS * RESIDENT == 3072) & (BLOCK == 256)),
        (VECTORS <= 2) | (BLOCK <= 256),
        (STREAM == 0) | (BLOCK <= 256),
    ),
    requires=WHOLE_PIECES,
    order=(
        {"VECTORS": 2, "BLOCK": 256, "RESIDENT": 0, "STREAM": False},
        {"VECTORS": 1, "BLOCK": 128, "RESIDENT": 0, "STREAM": False},
        {"VECTORS": 4, "BLOCK": 128, "RESIDENT": 0, "STREAM": False},
        {"VECTORS": 2, "BLOCK": 256, "RESIDENT": 1536, "STREAM": False},
        {"VECTORS": 1, "BLOCK": 256, "RESIDENT": 0, "STREAM": False},
        {"VECTORS": 1, "BLOCK": 256, "RESIDENT": 0, "STREAM": True},
        {"VECTORS": 4, "BLOCK": 256, "RESIDENT": 768, "STREAM": False},
        {"VECTORS": 4, "BLOCK": 256, "RESIDENT": 0, "STREAM": False},
    ),
)

_WAVE_PARAMETERS = (Parameter("VECTORS", (2, 3, 4)), Parameter("RESIDENT", (1024, 1536, 2048)))
_WAVE_ON_HOPPER = table("VECTORS RESIDENT", (2, 2048))

CUDA_WAVE = cuda_kernel(
    "silu_mul",
    "cuda_wave",
    parameters=_WAVE_PARAMETERS,
    constraints=(
        ~HOPPER | among(_WAVE_PARAMETERS, _WAVE_ON_HOPPER),
        # As many loads as there are registers for, and not far fewer.
        VECTORS * RESIDENT <= 4608,
        VECTORS * RESIDENT >= 3072,
    ),
    requires=WHOLE_PIECES,
    worthwhile=(R * D >= 524288, R * D <= 33554432),
    order=(
        {"VECTORS": 3, "RESIDENT": 1536},
        {"VECTORS": 2, "RESIDENT": 2048},
        {"VECTORS": 4, "RESIDENT": 1024},
        {"VECTORS": 2, "RESIDENT": 1536},
        {"VECTORS": 3, "RESIDENT": 1024},
    ),
)

_PEELED_PARAMETERS = (Parameter("VECTORS", (1, 2)), Parameter("BLOCK", (128, 256)))
_PEELED_ORDER = table("VECTORS BLOCK", (1, 256), (2, 256), (2, 128))

# Rows of any width and alignment.
CUDA_PEELED = cuda_kernel(
    "silu_mul",
    "cuda_peeled",
    parameters=_PEELED_PARAMETERS,
    constraints=(among(_PEELED_PARAMETERS, _PEELED_ORDER),),
    requires=unit_strides(**AXES),
    worthwhile=(UNEVEN,),
    order=_PEELED_ORDER,
)

CUDA_KERNELS = (
    cuda_generic("silu_mul"),
    CUDA_ROWS,
    CUDA_WAVE,
    CUDA_PEELED,
)


TRITON_KERNELS = (
    triton_kernel(
        "silu_mul/triton.py:silu_mul",
        "triton_rows",
        AXES,
        {},
        lambda meta: (R * ceildiv(D, meta["BLOCK"]),),
        listed=table("BLOCK num_warps", (512, 4), (1024, 4), (2048, 8), (2048, 4), (4096, 8)),
        constraints=(~HOPPER | (parameter("BLOCK") <= 256 * parameter("num_warps")),),
        requires=(R * ceildiv(D, 512) < 2**31, *unit_strides(**AXES)),
    ),
)


operator = Operator(
    name="silu_mul",
    documentation="out = silu(gate) * up, element by element.",
    tensors=(
        Tensor("gate", (R, D), "T"),
        Tensor("up", (R, D), "T"),
        Tensor("out", (R, D), "T", output=True, may_alias=("gate", "up")),
    ),
    reference=reference,
    flops=5 * R * D,
    workload={
        "cpu": cpu_workload(),
        "cuda": cuda_workload(),
    },
    baselines=(Baseline("torch.silu_mul", "torch", torch_silu_mul),),
    kernels=(
        *cpu_kernels(
            "silu_mul",
            {
                "parameters": (Parameter("UNROLL", (1, 2, 4)),),
                "requires": unit_strides(**AXES),
                "order": ({"UNROLL": 4},),
            },
            {
                "parameters": (Parameter("UNROLL", (2, 4)),),
                "worthwhile": BEYOND_CACHES,  # rows without gaps are one long row
                "requires": unit_strides(**AXES),
                "order": ({"UNROLL": 4},),
            },
        ),
        *CUDA_KERNELS,
        *TRITON_KERNELS,
    ),
    **OF_ROWS,
)
