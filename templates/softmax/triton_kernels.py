"""Softmax on GPUs by Triton."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import (
    Kernel,
    TritonFunction,
    ceildiv,
    maximum,
    next_power_of_2,
    parameter,
    stride,
    table,
)

from ..common.row_kernels import EARLY, HOPPER, D, R

_SHARED_ARGUMENTS = {"x_row": stride("x", 0), "out_row": stride("out", 0), "EARLY": EARLY}
_SHARED: dict[str, Any] = {
    "backend": "triton",
    "requires": (R < 2**31, stride("x", 1) == 1, stride("out", 1) == 1),
    "follows": {"f16": "bf16"},
    "compile_seconds": 2.0,
}

TRITON_ROWS = Kernel(
    "triton_rows",
    triton=TritonFunction(
        "softmax/triton.py:softmax_rows",
        arguments={**_SHARED_ARGUMENTS, "BLOCK_R": 1, "BLOCK_D": next_power_of_2(D)},
        grid=(R,),
        launch_pdl=True,
    ),
    listed=table("num_warps", (4,), (8,), (16,), (32,)),
    constraints=(~HOPPER | (parameter("num_warps") <= 8),),
    worthwhile=(D > 512, D <= 32768),
    tile={"R": 1},
    **_SHARED,
)

TRITON_TILES = Kernel(
    "triton_tiles",
    triton=TritonFunction(
        "softmax/triton.py:softmax_rows",
        arguments={
            **_SHARED_ARGUMENTS,
            "BLOCK_R": maximum(parameter("ELEMENTS") // next_power_of_2(D), 1),
            "BLOCK_D": next_power_of_2(D),
        },
        grid=lambda meta: (ceildiv(R, meta["BLOCK_R"]),),
        launch_pdl=True,
    ),
    listed=table("ELEMENTS num_warps", (2048, 4), (4096, 4), (8192, 8)),
    constraints=(~HOPPER | (parameter("ELEMENTS") == 2048),),
    worthwhile=(D <= 1024, R >= 64),
    **_SHARED,
)

TRITON_KERNELS = (TRITON_ROWS, TRITON_TILES)
