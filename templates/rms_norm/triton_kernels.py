"""Root-mean-square norm on GPUs by Triton."""

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
    where,
)

from ..common.row_kernels import EARLY, HOPPER, D, R

_ROWS = ("x", "residual", "out", "residual_out")
_SHARED_ARGUMENTS = {f"{t}_row": stride(t, 0) for t in _ROWS} | {"EARLY": EARLY}
_SHARED: dict[str, Any] = {
    "backend": "triton",
    "requires": (R < 2**31, *(stride(t, 1) == 1 for t in _ROWS), stride("weight", 0) == 1),
    "follows": {"f16": "bf16"},
    "compile_seconds": 2.0,
}

TRITON_ROWS = Kernel(
    "triton_rows",
    triton=TritonFunction(
        "rms_norm/triton.py:rms_norm_rows",
        arguments={**_SHARED_ARGUMENTS, "BLOCK_R": 1, "BLOCK_D": next_power_of_2(D)},
        grid=(R,),
        launch_pdl=True,
    ),
    listed=table("num_warps", (4,), (8,), (16,)),
    worthwhile=(D > 512, D <= 16384),
    tile={"R": 1},
    **_SHARED,
)

TRITON_TILES = Kernel(
    "triton_tiles",
    triton=TritonFunction(
        "rms_norm/triton.py:rms_norm_rows",
        arguments={
            **_SHARED_ARGUMENTS,
            "BLOCK_R": maximum(parameter("ELEMENTS") // next_power_of_2(D), 1),
            "BLOCK_D": next_power_of_2(D),
        },
        grid=lambda meta: (ceildiv(R, meta["BLOCK_R"]),),
        launch_pdl=True,
    ),
    listed=table("ELEMENTS num_warps", (8192, 4), (8192, 16), (8192, 8), (16384, 8)),
    constraints=(~HOPPER | (parameter("num_warps") != 8),),
    worthwhile=(D <= 4096, R >= 1024),
    **_SHARED,
)

# Rows are read twice, the second time from L2, which they leave first then: an H200 takes 127 us for 16384 rows of 8192
# in bf16, as for a copy, instead of 131.
TRITON_TWICE = Kernel(
    "triton_twice",
    triton=TritonFunction(
        "rms_norm/triton.py:rms_norm_long",
        arguments={**_SHARED_ARGUMENTS, "END": where(parameter("BLOCK") >= D, parameter("BLOCK"), 0), "HINTS": True},
        grid=(R,),
        launch_pdl=True,
    ),
    listed=table("BLOCK num_warps", (4096, 16), (4096, 8), (2048, 8)),
    constraints=(~HOPPER | (parameter("BLOCK") == 4096),),
    worthwhile=(D >= 3584, R * D >= 33554432),
    tile={"R": 1},
    **_SHARED,
)

TRITON_KERNELS = (TRITON_ROWS, TRITON_TILES, TRITON_TWICE)
