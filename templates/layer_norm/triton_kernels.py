"""Layer norm on GPUs by Triton."""

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
        arguments={**_SHARED_ARGUMENTS, "BLOCK_R": 1, "BLOCK_D": next_power_of_2(D)},
        grid=(R,),
        launch_pdl=True,
    ),
    listed=table("num_warps", (2,), (4,), (8,), (16,)),
    constraints=(~HOPPER | (parameter("num_warps") <= 8),),
    worthwhile=(D > 512, D <= 16384),
    tile={"R": 1},
    **_SHARED,
)


def _tiles(name: str, widest: int, *configs: tuple[int, int]) -> Kernel:
    """Rows of up to `widest` elements, two or more to a program; a config is its elements and warps."""
    return Kernel(
        name,
        triton=TritonFunction(
            "layer_norm/triton.py:layer_norm_rows",
            arguments={
                **_SHARED_ARGUMENTS,
                "BLOCK_R": maximum(parameter("ELEMENTS") // next_power_of_2(D), 1),
                "BLOCK_D": next_power_of_2(D),
            },
            grid=lambda meta: (ceildiv(R, meta["BLOCK_R"]),),
            launch_pdl=True,
        ),
        listed=table("ELEMENTS num_warps", *configs),
        constraints=(~HOPPER | (parameter("ELEMENTS") == 2048) | (parameter("num_warps") == 8),),
        worthwhile=(widest >= D, R >= 1024),
        **_SHARED,
    )


TRITON_TILES = _tiles("triton_tiles", 4096, (8192, 4), (8192, 8))
TRITON_TILES_SMALL = _tiles("triton_tiles_small", 1024, (2048, 4), (4096, 4))

# Rows are read twice, the second time from L2, which they leave first then: 126.9 us for 16384 rows of 4096 in f32, as
# for a copy, where the best of the others takes 128.7.
TRITON_TWICE = Kernel(
    "triton_twice",
    triton=TritonFunction(
        "layer_norm/triton.py:layer_norm_twice",
        arguments={**_SHARED_ARGUMENTS, "BLOCKS": parameter("BLOCK") >= D},
        grid=(R,),
        launch_pdl=True,
    ),
    listed=table("BLOCK num_warps", (4096, 16), (4096, 8)),
    worthwhile=((D >= 8192) | ((D >= 3584) & (R * D >= 33554432)),),
    tile={"R": 1},
    **_SHARED,
)

TRITON_KERNELS = (TRITON_ROWS, TRITON_TILES, TRITON_TILES_SMALL, TRITON_TWICE)
