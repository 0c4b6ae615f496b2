"""Matrix products on GPUs: by CUDA cores, and by the matrix units through mma.sync."""

from __future__ import annotations

from aot_tune.spec import (
    Expr,
    Kernel,
    Parameter,
    alignment,
    among,
    attribute,
    dims,
    parameter,
    stride,
    table,
    target,
)

M, N, K = dims("M N K")

CAPABILITY, SHARED = target("capability"), target("shared_bytes")
MROWS, NT, KC, WM, WN, WK = (parameter(name) for name in ("MROWS", "NT", "KC", "WM", "WN", "WK"))
BM, BN, BK, TM, TN = (parameter(name) for name in ("BM", "BN", "BK", "TM", "TN"))
STAGES, SPLIT, PDL, REDUCE = (parameter(name) for name in ("STAGES", "SPLIT", "PDL", "REDUCE"))

HOPPER: Expr = target("wgmma") == 1
"""Where a kernel has few configs: an H200 measured more, and without those that are not here no product of the workload
was more than 1 % slower, nor more than 3 % without vendors' libraries."""

HOPPER_ONLY: tuple[Expr, ...] = ((SPLIT == 1) | (CAPABILITY >= 90), (PDL == 0) | (CAPABILITY >= 90))
"""Clusters, and blocks that start before the kernel before them has ended."""

ROWS_OF_A: tuple[Expr, ...] = (stride("a", 1) == 1, stride("a", 0) % 8 == 0, alignment("a") >= 16)
COLUMNS_OF_B: tuple[Expr, ...] = (stride("b", 0) == 1, stride("b", 1) % 8 == 0, alignment("b") >= 16)
ROWS_OF_B: tuple[Expr, ...] = (stride("b", 1) == 1, stride("b", 0) % 8 == 0, alignment("b") >= 16)

SKINNY_FITS: Expr = STAGES * WK * KC * (8 * NT * WN + MROWS) * 128 + WK * MROWS * 8 * NT * WN * 4 <= SHARED
MMA_FITS: Expr = STAGES * (BM + BN) * 128 <= SHARED

MMA_PARAMETERS = (
    Parameter("BM", (32, 64, 128)),
    Parameter("BN", (64, 128)),
    Parameter("WM", (2,)),
    Parameter("WN", (2, 4)),
    Parameter("STAGES", (3, 4, 6)),
    Parameter("SPLIT", (1, 2, 4)),
    Parameter("REDUCE", ("cluster", "workspace")),
    Parameter("PDL", (False,)),
)
MMA_CONSTRAINTS: tuple[Expr, ...] = (
    MMA_FITS,
    WN * 32 == BN,  # a warp's part of the tile is 32 columns wide
    # Deep rings where the tile is small and memory is the limit, shallow ones where two blocks should share the room.
    (STAGES == 6) == (BM * BN <= 64 * 64),
    (STAGES == 3) == (BM * BN == 128 * 128),
    # Small problems only: K is shared where there are few tiles.
    (SPLIT == 1) | (BM * BN <= 64 * 128),
    # Clusters (the parameter's first value, 0) add sums of blocks where there are any.
    (SPLIT == 1) | (CAPABILITY >= 90) | (REDUCE == 1),
    (REDUCE == 0) | (SPLIT == 2) | ((SPLIT == 4) & (CAPABILITY < 90)),
    (REDUCE == 0) | (BM == 64),
)
# Where TMA and warpgroups serve most products, tf32 is for few rows and for sizes that they cannot take.
TF32_ON_HOPPER = table("BM BN SPLIT REDUCE", (32, 64, 4, "cluster"), (128, 128, 1, "cluster"))
MMA_ORDER = table(
    "BM BN STAGES SPLIT REDUCE",
    (64, 128, 4, 2, "cluster"),
    (64, 64, 6, 2, "cluster"),
    (128, 128, 3, 1, "cluster"),
    (64, 128, 4, 4, "cluster"),
    (64, 64, 6, 1, "cluster"),
    (128, 64, 4, 1, "cluster"),
    (64, 128, 4, 1, "cluster"),
    (128, 64, 4, 2, "cluster"),
    (32, 128, 6, 4, "cluster"),
    (64, 128, 4, 2, "workspace"),
    (32, 64, 6, 4, "cluster"),
)

SIMT_PARAMETERS = (
    Parameter("BM", (16, 32, 64, 128)),
    Parameter("BN", (64, 128)),
    Parameter("BK", (16, 32)),
    Parameter("TM", (4, 8)),
    Parameter("TN", (4, 8)),
    Parameter("STAGES", (3, 4)),
    Parameter("SPLIT", (1, 2, 4, 8)),
)
# There it is for sizes that `cuda_bf16x6` cannot take.
SIMT_ON_HOPPER = table("BM BN SPLIT", (128, 128, 1), (64, 128, 4))
SIMT_CONSTRAINTS: tuple[Expr, ...] = (
    ~HOPPER | among(SIMT_PARAMETERS, SIMT_ON_HOPPER),
    (SPLIT == 1) | (CAPABILITY >= 90),
    STAGES * (BM + BN) * (BK + 4) * 4 <= SHARED,
    SPLIT * BM <= 256,
    # 128 or 256 threads: warps of 4 x 8 threads fill the tile.
    (BM * BN == 128 * TM * TN) | (BM * BN == 256 * TM * TN),
    (TM == 8) == (BM * BN >= 64 * 128),
    (TN == 8) == (BM * BN >= 64 * 128),
    (BK == 32) == (BM <= 32),
    (STAGES == 3) == (BM >= 64),
)
SIMT_ORDER = table(
    "BM BN SPLIT",
    (128, 128, 1),
    (64, 128, 1),
    (128, 128, 2),
    (64, 128, 2),
    (64, 64, 2),
    (32, 64, 4),
    (64, 128, 4),
    (64, 64, 4),
    (32, 64, 8),
    (64, 64, 1),
)

# What TMA cannot take: it clips a tile at whole 16 bytes, beyond them it would read and write what is not the tensor's.
RAGGED: Expr = (N % 8 != 0) | (K % 8 != 0) | (stride("out", 0) % 8 != 0) | (alignment("out") < 16)


def _mma(name: str, dtypes: tuple[str, ...], requires: tuple[Expr, ...], hopper: Expr, *worthwhile: Expr) -> Kernel:
    """By the matrix units, from 16 rows on. `hopper` says which configs there are on which GPUs."""
    return Kernel(
        name,
        "gemm/cuda/mma/mma.cu.j2",
        backend="nvcc",
        dtypes={"T": dtypes},
        parameters=MMA_PARAMETERS,
        constraints=(hopper, *MMA_CONSTRAINTS),
        requires=requires,
        worthwhile=(M >= 16, *worthwhile),
        order=MMA_ORDER,
        tile={"M": BM, "N": BN, "K": 32},
        split=SPLIT,
    )


def _halves(b: tuple[Expr, ...], plain: str, ragged: str) -> tuple[Kernel, ...]:
    """Weights kept as `b` says: for all products where there is nothing faster, else for those that TMA cannot take."""
    requires, dtypes = (*ROWS_OF_A, *b), ("bf16", "f16")
    return _mma(plain, dtypes, requires, ~HOPPER), _mma(ragged, dtypes, requires, HOPPER, RAGGED)


def _simt(name: str, b: tuple[Expr, ...]) -> Kernel:
    """By CUDA cores, with weights kept as `b` says."""
    return Kernel(
        name,
        "gemm/cuda/simt/simt.cu.j2",
        backend="nvcc",
        dtypes={"T": ("f32",)},
        parameters=SIMT_PARAMETERS,
        constraints=SIMT_CONSTRAINTS,
        requires=(K < 2147483648, *ROWS_OF_A, *b),
        worthwhile=(M >= 8, attribute("math") == 0),
        order=SIMT_ORDER,
        tile={"M": BM, "N": BN, "K": BK},
        split=SPLIT,
    )


_SKINNY_PARAMETERS = (
    Parameter("MROWS", (8, 16)),
    Parameter("NT", (1, 2)),
    Parameter("WN", (4, 8)),
    Parameter("WK", (1, 2)),
    Parameter("KC", (1, 2)),
    Parameter("STAGES", (4, 6)),
    Parameter("SPLIT", (1, 2, 4)),
    Parameter("PDL", (False, True)),
)
_SKINNY_ON_HOPPER = table(
    "MROWS NT WN WK STAGES SPLIT PDL",
    (16, 2, 4, 2, 4, 4, False),
    (16, 2, 4, 2, 6, 2, True),
)

CUDA_KERNELS = (
    Kernel("cuda_generic", "gemm/cuda/generic.cu.j2", backend="nvcc", generic=True),
    Kernel(
        "cuda_one_row",
        "gemm/cuda/few_rows/one_row.cu.j2",
        backend="nvcc",
        dtypes={"T": ("f32", "bf16", "f16")},
        follows={"f16": "bf16"},
        requires=((stride("a", 1) == 1) & (stride("b", 0) == 1), (M < 2**16) & (N < 2**30) & (K < 2**30)),
        worthwhile=(M == 1,),
    ),
    Kernel(  # in 16 bits `cuda_thin` is faster
        "cuda_skinny",
        "gemm/cuda/few_rows/weights_by_columns.cu.j2",
        backend="nvcc",
        dtypes={"T": ("f32",)},
        parameters=_SKINNY_PARAMETERS,
        constraints=(
            ~HOPPER | among(_SKINNY_PARAMETERS, _SKINNY_ON_HOPPER),
            *HOPPER_ONLY,
            SKINNY_FITS,
            WN * WK == 8,
            NT * KC == 2,
            (NT == 2) | (WN == 4),
            (MROWS == 16) | ((WN == 4) & (STAGES == 4) & (SPLIT <= 2) & (PDL == 0)),
            (PDL == 0) | ((STAGES == 6) & (NT == 2) & (WN == 4) & (SPLIT <= 2)),
        ),
        worthwhile=(M >= 2, M <= 16),
        order=table(
            "MROWS NT WN WK KC STAGES SPLIT PDL",
            (16, 2, 4, 2, 1, 6, 2, False),
            (16, 2, 8, 1, 1, 6, 4, False),
            (16, 2, 4, 2, 1, 4, 1, False),
            (16, 1, 4, 2, 2, 4, 1, False),
            (16, 2, 4, 2, 1, 4, 2, False),
            (16, 2, 8, 1, 1, 4, 2, False),
            (16, 2, 4, 2, 1, 6, 2, True),
            (16, 2, 4, 2, 1, 4, 4, False),
            (16, 1, 4, 2, 2, 4, 2, False),
            (8, 1, 4, 2, 2, 4, 1, False),
            (8, 2, 4, 2, 1, 4, 2, False),
        ),
        requires=(M <= 64, *ROWS_OF_A, *COLUMNS_OF_B),
        # Warps share columns and K; in f32, a step is 32 of it.
        tile={"M": MROWS, "N": 8 * NT * WN, "K": 32 * KC * WK},
        split=SPLIT,
    ),
    *_halves(COLUMNS_OF_B, "cuda_mma", "cuda_mma_ragged"),
    *_halves(ROWS_OF_B, "cuda_mma_kn", "cuda_mma_kn_ragged"),
    _mma(
        "cuda_tf32",
        ("f32",),
        (attribute("math") == 1, *ROWS_OF_A, *COLUMNS_OF_B),
        ~HOPPER | among(MMA_PARAMETERS, TF32_ON_HOPPER),
    ),
    _simt("cuda_simt", COLUMNS_OF_B),
    _simt("cuda_simt_kn", ROWS_OF_B),
)
