"""Matrix products on GPUs by Triton."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import (
    Config,
    Descriptor,
    Expr,
    Kernel,
    TritonFunction,
    alignment,
    attribute,
    ceildiv,
    device,
    dims,
    minimum,
    parameter,
    stride,
    table,
    target,
    where,
)

M, N, K = dims("M N K")
BLOCK_M, BLOCK_N, BLOCK_K = (parameter(p) for p in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))

_ROWS: tuple[Expr, ...] = (
    stride("a", 1) == 1,
    stride("b", 0) == 1,
    stride("bias", 0) == 1,
    stride("residual", 1) == 1,
    stride("out", 1) == 1,
)
"""Contiguous rows of everything but b, which has contiguous columns."""

_OUTER = (stride("a", 0), stride("b", 1), stride("out", 0))
_TILES: tuple[Expr, ...] = (
    *_ROWS,
    (M < 2**30) & (N < 2**30) & (K < 2**30) & (M * N < 2**36),  # as many programs and rows as Triton can count
    *(s % 8 == 0 for s in _OUTER),
    *(s > 0 for s in _OUTER),
    N % 8 == 0,  # they clip a tile at whole 16 bytes
    K % 8 == 0,
    *(alignment(t) >= 16 for t in ("a", "b", "out")),
    M * N * K > 0,
)
"""What tensor descriptors ask of addresses and strides; they have no empty tensors."""

_TMA = TritonFunction(
    "gemm/triton/functions.py:gemm_tma",
    arguments={
        "residual_row": stride("residual", 0),
        "ACTIVATION": attribute("activation"),
        "a": Descriptor("a", (BLOCK_M, BLOCK_K)),
        "b": Descriptor("b", (BLOCK_N, BLOCK_K), order=(1, 0)),
        "out": Descriptor("out", (BLOCK_M, where(parameter("HALVES"), BLOCK_N // 2, BLOCK_N))),
        "BY_COLUMNS": True,
    },
    grid=(minimum(ceildiv(M, BLOCK_M) * ceildiv(N, BLOCK_N), device("multiprocessors")),),
)

_SHARED: dict[str, Any] = {
    "backend": "triton",
    "dtypes": {"T": ("bf16", "f16")},
    "follows": {"f16": "bf16"},
    "compile_seconds": 6.0,
}
_TILE = {"M": BLOCK_M, "N": BLOCK_N, "K": BLOCK_K}
_TILED = "BLOCK_M BLOCK_N BLOCK_K GROUP HALVES num_warps num_stages"
_HOPPER = (target("capability") >= 90, target("shared_bytes") >= 227 * 1024)

TRITON_TMA = Kernel(
    "triton_tma",
    triton=_TMA,
    listed=table(
        _TILED,
        (64, 64, 128, 8, False, 4, 5),
        (64, 128, 128, 8, False, 4, 4),
        (128, 256, 64, 8, True, 8, 3),
        (128, 128, 64, 8, False, 8, 5),
    ),
    constraints=_HOPPER,
    requires=_TILES,
    worthwhile=(M > 64, N >= 64),
    tile=_TILE,
    **_SHARED,
)

TRITON_TF32 = Kernel(
    "triton_tf32",
    triton=_TMA,
    listed=table(
        _TILED,
        (128, 128, 32, 8, False, 8, 3),
        (64, 128, 32, 8, False, 4, 5),
    ),
    constraints=_HOPPER,
    requires=(attribute("math") == 1, *_TILES),
    worthwhile=(M > 64, N >= 64),
    tile=_TILE,
    **_SHARED | {"dtypes": {"T": ("f32",)}, "follows": {}},
)

# Without others that an H200 measured no product was 1 % slower.
_GEMV_LIST = table(
    "BLOCK_N BLOCK_K UNROLL TURN num_warps",
    (1, 512, 2, True, 1),
    (2, 256, 2, True, 1),
    (2, 2048, 1, False, 8),
    (4, 512, 1, True, 4),
)

# Of 17 configs on an H200, the fastest with 3584 and with 4096 columns, and one that is good with both.
_GEMV_LIST_F32 = table(
    "BLOCK_N BLOCK_K UNROLL TURN num_warps",
    (2, 256, 2, True, 1),
    (1, 256, 4, True, 1),
    (1, 256, 2, True, 1),
)


def _gemv(name: str, dtypes: tuple[str, ...], listed: tuple[Config, ...]) -> Kernel:
    """Products of one row. Those of f32 are IEEE's in either math mode."""
    return Kernel(
        name,
        triton=TritonFunction(
            "gemm/triton/functions.py:gemv",
            arguments={
                "a_row": stride("a", 0),
                "b_column": stride("b", 1),
                "residual_row": stride("residual", 0),
                "out_row": stride("out", 0),
                "ACTIVATION": attribute("activation"),
                "EARLY": target("capability") >= 90,
            },
            grid=(ceildiv(N, BLOCK_N), M),
            launch_pdl=True,
        ),
        backend="triton",
        dtypes={"T": dtypes},
        follows={"f16": "bf16"} if "f16" in dtypes else {},
        compile_seconds=3.0,
        listed=listed,
        requires=(*_ROWS, (M < 2**16) & (N < 2**30) & (K < 2**30)),
        worthwhile=(M == 1,),
        tile={"M": 1, "N": BLOCK_N, "K": parameter("BLOCK_K")},
    )


TRITON_KERNELS = (
    TRITON_TMA,
    TRITON_TF32,
    _gemv("triton_gemv", ("bf16", "f16"), _GEMV_LIST),
    _gemv("triton_gemv_f32", ("f32",), _GEMV_LIST_F32),
)
