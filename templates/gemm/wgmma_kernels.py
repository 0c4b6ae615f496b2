"""Products of few rows on Hopper GPUs by its matrix units, with K shared by the blocks of a cluster."""

from __future__ import annotations

from aot_tune.spec import (
    Config,
    Expr,
    Kernel,
    Parameter,
    alignment,
    among,
    dims,
    parameter,
    present,
    stride,
    table,
    target,
)

M, N, K = dims("M N K")
GROUPS, WIDTH, SPLIT, BLOCKS = (parameter(name) for name in ("GROUPS", "WIDTH", "SPLIT", "BLOCKS"))

_SUMS: Expr = 64 * GROUPS * (WIDTH + 8) * 4
_STAGE: Expr = (64 * GROUPS + WIDTH) * 128
_ROOM: Expr = (target("shared_bytes") + 1024) // BLOCKS - 1280 - _SUMS * (SPLIT > 1)


def _wgmma(name: str, groups: int, worthwhile: tuple[Expr, ...], order: tuple[Config, ...]) -> Kernel:
    """For tiles of 64 rows for each of so many warp groups."""
    parameters = (
        Parameter("GROUPS", (groups,)),
        Parameter("WIDTH", tuple(sorted({int(config["WIDTH"]) for config in order}))),
        Parameter("SPLIT", (1, 2, 4, 8)),
        Parameter("EARLY", (1, 2, 4)),
        Parameter("BLOCKS", (1, 2)),
    )
    return Kernel(
        name,
        "gemm/cuda_wgmma.cu.j2",
        backend="nvcc",
        dtypes={"T": ("bf16", "f16")},
        follows={"f16": "bf16"},
        parameters=parameters,
        constraints=(
            target("wgmma") == 1,
            # Two stages in the ring, and as much as the sums of a block.
            (_ROOM >= 2 * _STAGE) & (_ROOM - _STAGE >= _SUMS),
            among(parameters, order),
        ),
        requires=(
            stride("a", 1) == 1,
            stride("b", 0) == 1,
            stride("bias", 0) == 1,
            stride("residual", 1) == 1,
            stride("out", 1) == 1,
            *(s % 8 == 0 for s in (stride("a", 0), stride("b", 1), stride("out", 0))),
            *(s > 0 for s in (stride("a", 0), stride("b", 1), stride("out", 0))),
            *(s < 2**39 for s in (stride("a", 0), stride("b", 1))),  # bytes of it fit into 40 bits
            # Copies end at whole 16 bytes: beyond them they would read what is not the tensor's.
            N % 8 == 0,
            K % 8 == 0,
            (present("residual") == 0) | (stride("residual", 0) % 4 == 0),
            *(alignment(t) >= 16 for t in ("a", "b", "out")),
            *(alignment(t) >= 8 for t in ("bias", "residual")),
            (K > 0) & (M < 2**20) & (N < 2**27) & (K < 2**31),
        ),
        worthwhile=worthwhile,
        order=order,
    )


# Of 518 configs on an H200, those without which a product of the workload was slower. In brackets, sizes N x K.
WGMMA_KERNELS = (
    _wgmma(
        "cuda_wgmma",
        1,
        (M > 8, M <= 64, N >= 64),
        table(
            "WIDTH SPLIT EARLY BLOCKS",
            (48, 2, 1, 2),  # [3072 x 1024, 6144 x 4096]
            (32, 2, 1, 2),  # [4096 x 4096, 3584 x 3584]
            (72, 1, 1, 2),  # [18944 x 3584]
            (64, 4, 1, 2),  # [3584 x 8192]
            (40, 4, 4, 1),  # [1024 x 4096]
            (48, 4, 1, 1),  # [1280 x 8192]
            (56, 1, 1, 2),  # [14336 x 4096]
            (40, 2, 1, 2),  # [4608 x 3584]
            (32, 1, 1, 2),  # [8192 x 3584, 8192 x 1024]
            (120, 4, 1, 1),  # [3584 x 18944]
        ),
    ),
    _wgmma(
        "cuda_wgmma_128",
        2,
        (M > 64, M <= 256, N >= 64),
        table(
            "WIDTH SPLIT EARLY BLOCKS",
            (32, 2, 1, 1),  # [1024 x 1024]
            (88, 4, 1, 1),  # [1280 x 8192]
        ),
    ),
)
