"""Matrix products of few rows on GPUs, laid evenly on multiprocessors (cuda_thin.cu.j2)."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import Expr, Kernel, Parameter, among, dims, parameter, table, target

from .operands import COLUMNS_OF_B, ROWS_OF_A, ROWS_OF_B

M, N, K = dims("M N K")
CAPABILITY, SHARED = target("capability"), target("shared_bytes")
NT, WN, WK, SPLIT = (parameter(name) for name in ("NT", "WN", "WK", "SPLIT"))
RING, AHEAD = parameter("RING"), parameter("AHEAD")

THIN_PARAMETERS = (
    Parameter("NT", (2, 3, 4, 5)),
    Parameter("WN", (1, 2, 4, 8)),
    Parameter("WK", (1, 2, 4, 8)),
    Parameter("SPLIT", (1, 8)),
    Parameter("AHEAD", (0, 1, 2)),
    Parameter("RING", (96, 80)),
)
THIN_BLOCKS = table(
    "NT WN WK",
    # Up to 16, 24, 40, 80, 160 and 256 columns: at least two stages for 16 rows, mostly three, fit into the ring.
    (2, 1, 8),
    (3, 1, 8),
    (5, 1, 4),
    (5, 2, 2),
    (3, 2, 4),
    (5, 4, 1),
    (3, 4, 2),
    (4, 8, 1),
)
THIN_CONSTRAINTS: tuple[Expr, ...] = (
    (SPLIT == 1) | (CAPABILITY >= 90),
    (AHEAD == 0) | (CAPABILITY >= 90),
    among(THIN_PARAMETERS, THIN_BLOCKS),
    RING * 1024 + WK * 64 * (8 * NT * WN + 8) <= SHARED,
    (RING == 96) | (SHARED < 113 * 1024),
    # Where clusters exist, wide blocks are for them, and all but a few overlap.
    (SPLIT == 8) | (WN == 1) | (CAPABILITY < 90),
    (AHEAD != 0) | (WN * WK == 4) | (CAPABILITY < 90),
    (AHEAD != 2) | (WN * WK == 4) | (SPLIT == 1),
)
_THIN: dict[str, Any] = {
    "template": "gemm/cuda_thin.cu.j2",
    "backend": "nvcc",
    "dtypes": {"T": ("bf16", "f16")},
    "follows": {"f16": "bf16"},
    "parameters": THIN_PARAMETERS,
    "constraints": THIN_CONSTRAINTS,
}


def _thin_rows(*rows: tuple[int, ...]) -> dict[str, Any]:
    """The same template with more rows of A in a block, by configs, best guess first. For devices with clusters.

    RING and a block's sums take up to 113 KiB where two blocks are to share a multiprocessor, else up to 227 KiB.
    """
    listed = table("ROWS NT WN WK RING AHEAD SPLIT", *((*row, 8) for row in rows))
    return {
        **_THIN,
        "parameters": (),
        "listed": listed,
        "order": listed,
        "constraints": (CAPABILITY >= 90, SHARED >= 227 * 1024),
    }


FEW_TILES: tuple[Expr, ...] = (N * K <= 20_000_000,)
"""Larger products keep libraries at the speed of memory."""
FEW_SUMS: tuple[Expr, ...] = (M * N * K <= 1_200_000_000,)
"""Beyond, tiles that copy A once for several blocks win."""

CUDA_THIN_KERNELS = (
    Kernel(
        "cuda_thin_gemv",
        requires=(M <= 64, *ROWS_OF_A, *COLUMNS_OF_B),
        worthwhile=(M == 1,),
        order=table(
            "NT WN WK SPLIT AHEAD",
            (2, 1, 8, 1, 1),
            (2, 1, 8, 1, 2),
            (5, 2, 2, 8, 1),
            (3, 1, 8, 1, 1),
            (5, 1, 4, 8, 1),
            (5, 1, 4, 1, 1),
            (3, 1, 8, 1, 2),
            (5, 4, 1, 8, 1),
        ),
        **_THIN,
    ),
    Kernel(
        "cuda_thin",
        requires=(M <= 64, *ROWS_OF_A, *COLUMNS_OF_B),
        worthwhile=(M >= 2, M <= 16),
        order=table(
            "NT WN WK SPLIT AHEAD",
            # Blocks by themselves, of which two fill a multiprocessor, were best in 13 of 28 problems on an H200, and
            # none of the others in any.
            (2, 1, 8, 1, 1),
            (3, 1, 8, 1, 1),
            (2, 1, 8, 1, 2),
            (3, 4, 2, 8, 1),
            (3, 2, 4, 8, 1),
            (5, 2, 2, 8, 1),
            (5, 2, 2, 8, 0),
            (5, 1, 4, 1, 1),
        ),
        **_THIN,
    ),
    Kernel(
        "cuda_thin_kn",
        requires=(M <= 64, *ROWS_OF_A, *ROWS_OF_B),
        worthwhile=(M <= 16,),
        order=table(
            "NT WN WK SPLIT AHEAD",
            (5, 4, 1, 8, 1),
            (5, 2, 2, 8, 1),
            (3, 4, 2, 8, 1),
            (4, 8, 1, 8, 1),
            (5, 2, 2, 8, 2),
            (5, 4, 1, 8, 0),
            (5, 1, 4, 1, 1),
            (3, 2, 4, 8, 1),
        ),
        **_THIN,
    ),
    Kernel(
        "cuda_thin_rows_32",
        requires=(M <= 64, *ROWS_OF_A, *COLUMNS_OF_B),
        worthwhile=(M > 16, M <= 32, *FEW_TILES),
        **_thin_rows(
            (32, 4, 4, 1, 92, 1),
            (32, 4, 8, 1, 78, 1),
            (32, 2, 4, 2, 94, 1),
            (32, 4, 4, 1, 92, 2),
        ),
    ),
    Kernel(
        "cuda_thin_rows",
        requires=(M <= 64, *ROWS_OF_A, *COLUMNS_OF_B),
        worthwhile=(M > 16, *FEW_TILES),
        **_thin_rows(
            (64, 4, 4, 1, 78, 1),
            (64, 4, 8, 1, 152, 1),
            (64, 2, 4, 1, 94, 1),
            (64, 2, 4, 2, 188, 1),
            (64, 2, 8, 1, 78, 1),
            (64, 2, 4, 2, 76, 1),
            (64, 4, 4, 2, 152, 1),
            (64, 3, 4, 1, 86, 1),
            (64, 4, 4, 1, 78, 2),
            (64, 3, 4, 2, 160, 1),
        ),
    ),
    Kernel(
        "cuda_thin_rows_256",
        requires=(M <= 256, *ROWS_OF_A, *COLUMNS_OF_B),
        worthwhile=(M > 64, *FEW_SUMS),
        **_thin_rows(
            (128, 4, 4, 1, 128, 1),
            (128, 2, 4, 1, 74, 1),
            (64, 4, 4, 1, 78, 1),
            (128, 2, 8, 1, 128, 1),
            (64, 4, 8, 1, 152, 1),
            (128, 3, 4, 1, 168, 1),
            (128, 2, 4, 2, 144, 1),
        ),
    ),
    Kernel(
        "cuda_thin_rows_kn",
        requires=(M <= 256, *ROWS_OF_A, *ROWS_OF_B),
        worthwhile=(M > 16, *FEW_TILES, *FEW_SUMS),
        **_thin_rows(
            (64, 4, 4, 1, 78, 1),
            (64, 4, 8, 1, 152, 1),
            (64, 2, 4, 2, 76, 1),
            (64, 4, 4, 2, 156, 1),
            (128, 4, 4, 1, 128, 1),
            (32, 4, 4, 1, 92, 1),
        ),
    ),
)
