"""Matrix products on GPUs by Triton."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import (
    Buffer,
    Descriptor,
    Expr,
    Kernel,
    KernelArgument,
    TritonFunction,
    alignment,
    attribute,
    ceildiv,
    device,
    dims,
    minimum,
    parameter,
    present,
    stride,
    table,
    target,
    where,
)

M, N, K = dims("M N K")
BLOCK_M, BLOCK_N, BLOCK_K, SPLIT = (parameter(p) for p in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "SPLIT"))
OUT_COLUMNS = where(parameter("HALVES"), BLOCK_N // 2, BLOCK_N)
TILES = ceildiv(M, BLOCK_M) * ceildiv(N, BLOCK_N)


def _rows(b_inner: int) -> tuple[Expr, ...]:
    """Contiguous rows of everything but b, whose axis `b_inner` is; as many programs and rows as Triton can count."""
    return (
        stride("a", 1) == 1,
        stride("b", b_inner) == 1,
        stride("bias", 0) == 1,
        stride("residual", 1) == 1,
        stride("out", 1) == 1,
        (M < 2**30) & (N < 2**30) & (K < 2**30) & (M * N < 2**36),
    )


def _tiles(b_inner: int) -> tuple[Expr, ...]:
    """What tensor descriptors ask of addresses and strides; they have no empty tensors."""
    outer = (stride("a", 0), stride("b", 1 - b_inner), stride("out", 0))
    return (
        *_rows(b_inner),
        *(s % 8 == 0 for s in outer),
        *(s > 0 for s in outer),
        N % 8 == 0,  # they clip a tile at whole 16 bytes
        K % 8 == 0,
        *(alignment(t) >= 16 for t in ("a", "b", "out")),
        M * N * K > 0,
    )


_COMMON: dict[str, KernelArgument] = {"residual_row": stride("residual", 0), "ACTIVATION": attribute("activation")}


def _steps(b_inner: int) -> dict[str, KernelArgument]:
    steps = {"a_row": stride("a", 0), "b_step": stride("b", 1 - b_inner), "out_row": stride("out", 0)}
    return {**_COMMON, **steps, "BY_COLUMNS": b_inner == 0}


def _by_host(b_inner: int) -> TritonFunction:
    b = Descriptor("b", (BLOCK_N, BLOCK_K), order=(1, 0)) if b_inner == 0 else Descriptor("b", (BLOCK_K, BLOCK_N))
    return TritonFunction(
        "gemm/triton/functions.py:gemm_tma",
        arguments={
            **_COMMON,
            "a": Descriptor("a", (BLOCK_M, BLOCK_K)),
            "b": b,
            "out": Descriptor("out", (BLOCK_M, OUT_COLUMNS)),
            "BY_COLUMNS": b_inner == 0,
        },
        grid=(minimum(TILES, device("multiprocessors")),),
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
    triton=_by_host(0),
    listed=table(
        _TILED,
        (64, 64, 128, 8, False, 4, 5),
        (64, 128, 128, 8, False, 4, 4),
        (128, 256, 64, 8, True, 8, 3),
        (128, 128, 64, 8, False, 8, 5),
    ),
    constraints=_HOPPER,
    requires=_tiles(0),
    worthwhile=(M > 64, N >= 64),
    tile=_TILE,
    **_SHARED,
)

TRITON_TMA_KN = Kernel(
    "triton_tma_kn",
    triton=_by_host(1),
    listed=table(
        _TILED,
        (128, 128, 64, 8, False, 8, 4),
        (128, 256, 64, 8, True, 8, 3),
        (64, 64, 128, 8, False, 4, 5),
    ),
    constraints=_HOPPER,
    requires=_tiles(1),
    worthwhile=(M > 64, N >= 64),
    tile=_TILE,
    **_SHARED,
)

NEAR, FAR = parameter("NEAR"), parameter("FAR")

TRITON_WIDE = Kernel(
    "triton_wide_tma",
    triton=TritonFunction(
        "gemm/triton/functions.py:gemm_wide_tma",
        arguments={
            **_COMMON,
            "a": Descriptor("a", (BLOCK_M, BLOCK_K)),
            "b": Descriptor("b", (NEAR, BLOCK_K), order=(1, 0)),
            "b_far": Descriptor("b", (FAR, BLOCK_K), order=(1, 0)),
            "out": Descriptor("out", (BLOCK_M, where(parameter("HALVES"), NEAR // 2, NEAR))),
            "out_far": Descriptor("out", (BLOCK_M, FAR)),
        },
        grid=(minimum(ceildiv(M, BLOCK_M) * ceildiv(N, NEAR + FAR), device("multiprocessors")),),
    ),
    # In brackets, sizes M x N of which the tiles fill an H200's 132 multiprocessors nearly whole times.
    listed=table(
        "BLOCK_M NEAR FAR BLOCK_K GROUP HALVES num_warps num_stages",
        (128, 256, 64, 64, 8, True, 8, 3),  # [4096 x 1280]
        (128, 256, 32, 64, 8, True, 8, 3),  # [1024 x 4608]
        (64, 128, 64, 64, 8, False, 4, 6),  # [1024 x 1280]
    ),
    constraints=_HOPPER,
    requires=_tiles(0),
    worthwhile=(M > 256, N >= 64),
    tile={"M": BLOCK_M, "N": NEAR + FAR, "K": BLOCK_K},
    **_SHARED,
)

TRITON_TF32 = Kernel(
    "triton_tf32",
    triton=_by_host(0),
    listed=table(
        _TILED,
        (128, 128, 32, 8, False, 8, 3),
        (64, 128, 32, 8, False, 4, 5),
    ),
    constraints=_HOPPER,
    requires=(attribute("math") == 1, *_tiles(0)),
    worthwhile=(M > 64, N >= 64),
    tile=_TILE,
    **_SHARED | {"dtypes": {"T": ("f32",)}, "follows": {}},
)

TRITON_SPECIALIZED = Kernel(
    "triton_specialized",
    triton=TritonFunction(
        "gemm/triton/functions.py:gemm_specialized",
        arguments=_steps(0),
        grid=(minimum(TILES, device("multiprocessors")),),
    ),
    listed=table(
        _TILED,
        (128, 256, 64, 8, False, 4, 3),
    ),
    constraints=(*_HOPPER, target("capability") < 100),
    requires=_tiles(0),
    # With a residual, Triton 3.6 makes code that reads some of its rows wrongly, which verification refuses.
    worthwhile=(M > 1024, N >= 64, present("residual") == 0),
    tile=_TILE,
    **_SHARED,
)


def _split(b_inner: int) -> TritonFunction:
    return TritonFunction(
        "gemm/triton/functions.py:gemm_split",
        arguments={
            **_steps(b_inner),
            "partial": Buffer("f32", TILES * SPLIT * BLOCK_M * BLOCK_N),
            "arrived": Buffer("i32", TILES, zero=True),
        },
        grid=(TILES * SPLIT,),
    )


_SPLITS = "BLOCK_M BLOCK_N BLOCK_K SPLIT num_warps num_stages"

TRITON_SPLIT = Kernel(
    "triton_split",
    triton=_split(0),
    listed=table(
        _SPLITS,
        (16, 64, 128, 4, 4, 5),
        (64, 64, 128, 4, 4, 4),
        (128, 128, 64, 4, 8, 4),
    ),
    constraints=(target("capability") != 90,),  # no product was faster on an H200
    requires=_rows(0),
    worthwhile=(M > 1, M <= 256, N >= 64, K >= 1024),
    tile=_TILE,
    split=SPLIT,
    **_SHARED,
)

TRITON_SPLIT_KN = Kernel(
    "triton_split_kn",
    triton=_split(1),
    listed=table(_SPLITS, (16, 64, 64, 4, 4, 5), (64, 64, 64, 4, 4, 4)),
    requires=_rows(1),
    worthwhile=(M > 1, M <= 256, N >= 64, K >= 1024),
    tile=_TILE,
    split=SPLIT,
    **_SHARED,
)

TRITON_KERNELS = (
    TRITON_TMA,
    TRITON_TMA_KN,
    TRITON_WIDE,
    TRITON_TF32,
    TRITON_SPECIALIZED,
    TRITON_SPLIT,
    TRITON_SPLIT_KN,
)
