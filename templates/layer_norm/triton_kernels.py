"""Layer norm on GPUs by Triton."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import (
    Kernel,
    TritonFunction,
    ceildiv,
    dims,
    maximum,
    next_power_of_2,
    parameter,
    stride,
    table,
    target,
)

R, D = dims("R D")

# Where kernels have few configs: an H200 measured more, and without the others no problem was 1 % slower.
HOPPER = target("capability") == 90

_STRIDES = {"x_row": stride("x", 0), "out_row": stride("out", 0)}
_SHARED: dict[str, Any] = {
    "backend": "triton",
    "requires": (
        R < 2**31,
        stride("x", 1) == 1,
        stride("weight", 0) == 1,
        stride("bias", 0) == 1,
        stride("out", 1) == 1,
    ),
    "follows": {"f16": "bf16"},
    "compile_seconds": 2.0,
}

TRITON_ROWS = Kernel(
    "triton_rows",
    triton=TritonFunction(
        "layer_norm/triton.py:layer_norm_rows",
        arguments={**_STRIDES, "BLOCK_R": 1, "BLOCK_D": next_power_of_2(D)},
        grid=(R,),
    ),
    listed=table("num_warps", (2,), (4,), (8,), (16,)),
    constraints=(~HOPPER | (parameter("num_warps") <= 8),),
    worthwhile=(D > 512, D <= 16384),
    **_SHARED,
)

TRITON_TILES = Kernel(
    "triton_tiles",
    triton=TritonFunction(
        "layer_norm/triton.py:layer_norm_rows",
        arguments={
            **_STRIDES,
            "BLOCK_R": maximum(parameter("ELEMENTS") // next_power_of_2(D), 1),
            "BLOCK_D": next_power_of_2(D),
        },
        grid=lambda meta: (ceildiv(R, meta["BLOCK_R"]),),
    ),
    listed=table("ELEMENTS num_warps", (4096, 4), (8192, 4), (8192, 8)),
    constraints=(~HOPPER | (parameter("ELEMENTS") == 4096),),
    worthwhile=(D <= 2048, R >= 1024),
    **_SHARED,
)

TRITON_LONG = Kernel(
    "triton_long",
    triton=TritonFunction("layer_norm/triton.py:layer_norm_long", arguments=_STRIDES, grid=(R,)),
    listed=table("BLOCK num_warps", (4096, 8), (8192, 16), (16384, 32)),
    constraints=(~HOPPER | (parameter("num_warps") == 16),),
    worthwhile=(D >= 8192,),
    **_SHARED,
)

TRITON_KERNELS = (TRITON_ROWS, TRITON_TILES, TRITON_LONG)
