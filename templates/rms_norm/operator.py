"""Root-mean-square norm, with or without a weight, and a residual that is added first and written out."""

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
    present,
    problem,
    table,
    where,
)

from ..common.row_kernels import (
    HOPPER,
    OF_ROWS,
    VECTORS,
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

FUSED = ("weight", "residual", "residual_out")

AXES = {"x": 1, "weight": 0, "residual": 1, "out": 1, "residual_out": 1}
WHOLE_PIECES = whole_pieces(**AXES)
# What a block of `cuda_rows_few` holds in its registers, 1024 pieces of 16 bytes (T is f32 first).
IN_ONE_BLOCK = where(dtype_index("T") == 0, 4096, 8192) >= D
# What is not of whole pieces; of the rest, rows that no block holds, and those of which a warp takes several.
UNEVEN = (sum(~fact for fact in WHOLE_PIECES) > 0) | (D > 16384) | (D <= 128)


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
    for dtype in ("f16", "f32"):
        others = ((1, 131072), (3, 50257), (16384, 777), (16384, 64), (16384, 33))
        found += [problem(R=r, D=d, present=plain, dtypes={"T": dtype}) for r, d in others]
    return (*found, problem(R=256, D=4096, dtypes=bf16))


CUDA_KERNELS = (
    cuda_generic("rms_norm"),
    cuda_rows("rms_norm", (1, 2, 4, 8), WHOLE_PIECES),
    cuda_rows_few("rms_norm", (*WHOLE_PIECES, IN_ONE_BLOCK), ~HOPPER | (VECTORS == 2)),
    cuda_peeled("rms_norm", unit_strides(**AXES), UNEVEN),
)


_TRITON = "rms_norm/triton.py:rms_norm"
_TRITON_AXES = {"x": 1, "residual": 1, "out": 1, "residual_out": 1, "weight": 0}
TRITON_KERNELS = (
    triton_rows(f"{_TRITON}_rows", _TRITON_AXES, 16384, 4, 8, 16),
    triton_tiles(
        f"{_TRITON}_rows",
        _TRITON_AXES,
        4096,
        1024,
        *((8192, 4), (8192, 16), (8192, 8), (16384, 8)),
        on_hopper=parameter("num_warps") != 8,
    ),
    # Rows are read twice, the second time from L2, which they leave first then: an H200 takes 127 us for 16384 rows of
    # 8192 in bf16, as for a copy, instead of 131.
    triton_kernel(
        f"{_TRITON}_long",
        "triton_twice",
        _TRITON_AXES,
        {"END": where(parameter("BLOCK") >= D, parameter("BLOCK"), 0), "HINTS": True},
        listed=table("BLOCK num_warps", (4096, 16), (4096, 8), (2048, 8)),
        constraints=(~HOPPER | (parameter("BLOCK") == 4096),),
        worthwhile=(D >= 3584, R * D >= 33554432),
        tile={"R": 1},
    ),
)


operator = Operator(
    name="rms_norm",
    documentation="s = x + residual; residual_out = s; out = s / sqrt(mean(s^2) + eps) * weight, over the last dim. "
    "A weight or a residual that is not passed is left out.",
    tensors=(
        Tensor("x", (R, D), "T"),
        Tensor("weight", (D,), "T", optional=True),
        Tensor("residual", (R, D), "T", optional=True),
        Tensor("out", (R, D), "T", output=True, may_alias=("x",)),
        Tensor("residual_out", (R, D), "T", output=True, optional=True, may_alias=("residual",)),
    ),
    scalars=(Scalar("eps", "f32", 1e-5, other=0.25),),
    reference=reference,
    flops=4 * R * D + present("residual") * R * D,
    workload={"cpu": cpu_workload(), "cuda": cuda_workload()},
    # more than the registers of one block hold
    checks=(problem(R=3, D=40008, present=["weight"]), problem(R=3, D=40008, present=FUSED), problem(R=3, D=40008)),
    baselines=(Baseline("torch.rms_norm", "torch", torch_rms_norm, supports=both_or_none),),
    kernels=(
        *cpu_kernels(
            "rms_norm",
            {
                "parameters": (Parameter("UNROLL", (2, 4, 8)),),
                "requires": unit_strides(**AXES),
                "order": ({"UNROLL": 4},),
            },
            {
                "parameters": (Parameter("UNROLL", (4, 8)),),
                "requires": unit_strides(**AXES),
                "order": ({"UNROLL": 4},),
            },
        ),
        *CUDA_KERNELS,
        *TRITON_KERNELS,
    ),
    **OF_ROWS,
)
