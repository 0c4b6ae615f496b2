"""Products of up to 16 rows on GPUs at memory speed, with cp.async and mma.sync."""

from __future__ import annotations

from aot_tune.spec import Config, Expr, Kernel, Parameter, among, dims, parameter, table, target

from ..cuda_kernels import COLUMNS_OF_B, HOPPER, ROWS_OF_A, ROWS_OF_B

(M,) = dims("M")
CAPABILITY, SHARED = target("capability"), target("shared_bytes")
NT, WN, WK, SPLIT = (parameter(name) for name in ("NT", "WN", "WK", "SPLIT"))
RING, AHEAD = parameter("RING"), parameter("AHEAD")

_PARAMETERS = (
    Parameter("NT", (1, 2, 3, 4, 5)),
    Parameter("WN", (1, 2, 4, 8)),
    Parameter("WK", (1, 2, 4, 8)),
    Parameter("SPLIT", (1, 8)),
    Parameter("AHEAD", (0, 1, 2)),
    Parameter("RING", (96, 80)),
)
_BLOCKS = table(
    "NT WN WK",
    # Up to 8, 16, 24, 40, 80, 160 and 256 columns: at least two stages for 16 rows, mostly three, fit into the ring.
    (1, 1, 8),
    (2, 1, 8),
    (3, 1, 8),
    (5, 1, 4),
    (5, 2, 2),
    (3, 2, 4),
    (5, 4, 1),
    (3, 4, 2),
    (4, 8, 1),
)
_CONSTRAINTS: tuple[Expr, ...] = (
    (SPLIT == 1) | (CAPABILITY >= 90),
    (AHEAD == 0) | (CAPABILITY >= 90),
    among(_PARAMETERS, _BLOCKS),
    RING * 1024 + WK * 64 * (8 * NT * WN + 8) <= SHARED,
    (RING == 96) | (SHARED < 113 * 1024),
    # Where clusters exist, wide blocks are for them, and all but a few overlap.
    (SPLIT == 8) | (WN == 1) | (CAPABILITY < 90),
    (AHEAD != 0) | (WN * WK == 4) | (CAPABILITY < 90),
    (AHEAD != 2) | (WN * WK == 4) | (SPLIT == 1),
    (NT != 1) | ((SPLIT == 1) & (AHEAD != 2)),  # for few columns
)


def _thin(name: str, b: tuple[Expr, ...], rows: tuple[Expr, ...], hopper: int, order: tuple[Config, ...]) -> Kernel:
    """For weights that are kept as `b` says and products worth it by their rows. Hopper has the first of `order`."""
    return Kernel(
        name,
        "gemm/cuda/few_rows/even_shares.cu.j2",
        backend="nvcc",
        dtypes={"T": ("bf16", "f16")},
        follows={"f16": "bf16"},
        parameters=_PARAMETERS,
        constraints=(*_CONSTRAINTS, ~HOPPER | among(_PARAMETERS, order[:hopper])),
        requires=(M <= 64, *ROWS_OF_A, *b),
        worthwhile=rows,
        order=order,
        tile={"M": 16, "N": 8 * NT * WN, "K": 64 * WK},
        occupancy=2,
    )


THIN_KERNELS = (
    _thin(
        "cuda_thin",
        COLUMNS_OF_B,
        (M >= 2, M <= 16),
        3,
        table(
            "NT WN WK SPLIT AHEAD",
            # Blocks by themselves, of which two fill a multiprocessor, were the only ones to win anything on an H200.
            (2, 1, 8, 1, 1),
            (3, 1, 8, 1, 1),
            (1, 1, 8, 1, 1),
            (2, 1, 8, 1, 2),
            (3, 4, 2, 8, 1),
            (3, 2, 4, 8, 1),
            (5, 2, 2, 8, 1),
            (5, 2, 2, 8, 0),
        ),
    ),
    _thin(
        "cuda_thin_kn",
        ROWS_OF_B,
        (M <= 16,),
        4,
        table(
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
    ),
)
