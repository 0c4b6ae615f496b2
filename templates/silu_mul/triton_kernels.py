"""silu(gate) * up on GPUs by Triton."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import Kernel, TritonFunction, ceildiv, parameter, stride, table

from ..common.row_kernels import EARLY, HOPPER, D, R

_TENSORS = ("gate", "up", "out")
_SHARED: dict[str, Any] = {"backend": "triton", "follows": {"f16": "bf16"}, "compile_seconds": 2.0}

TRITON_ROWS = Kernel(
    "triton_rows",
    triton=TritonFunction(
        "silu_mul/triton.py:silu_mul",
        arguments={f"{t}_row": stride(t, 0) for t in _TENSORS} | {"EARLY": EARLY},
        grid=lambda meta: (R * ceildiv(D, meta["BLOCK"]),),
        launch_pdl=True,
    ),
    listed=table("BLOCK num_warps", (512, 4), (1024, 4), (2048, 8), (2048, 4), (4096, 8)),
    constraints=(~HOPPER | (parameter("BLOCK") <= 256 * parameter("num_warps")),),
    requires=(R * ceildiv(D, 512) < 2**31, *(stride(t, 1) == 1 for t in _TENSORS)),
    **_SHARED,
)

TRITON_KERNELS = (TRITON_ROWS,)
