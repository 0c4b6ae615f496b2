"""Products of few rows on Hopper GPUs by its matrix units, with K shared by the blocks of a cluster."""

from __future__ import annotations

from aot_tune.spec import (
    Config,
    Expr,
    Kernel,
    Parameter,
    alignment,
    among,
    attribute,
    dims,
    parameter,
    present,
    stride,
    table,
    target,
)

M, N, K = dims("M N K")
GROUPS, WIDTH, SPLIT, BLOCKS, LATE = (parameter(name) for name in ("GROUPS", "WIDTH", "SPLIT", "BLOCKS", "LATE"))

_SUMS: Expr = 64 * GROUPS * (WIDTH + 8) * 4
_STAGE: Expr = (64 * GROUPS + WIDTH) * 128
_ROOM: Expr = (target("shared_bytes") + 1024) // BLOCKS - 1280 - _SUMS * ((SPLIT > 1) & ~LATE)
# Two stages in the ring, and as much as the sums of a block; with what others send it, where that comes late.
_FITS: Expr = (_ROOM >= 2 * _STAGE) & (_ROOM - _STAGE >= _SUMS + LATE * (_SUMS - _SUMS // SPLIT))


def copied(size: int) -> tuple[Expr, ...]:
    """What copies of boxes, and a store of four columns at a time, ask of a call with elements of `size` bytes."""
    whole = 16 // size
    return (
        stride("a", 1) == 1,
        stride("b", 0) == 1,
        stride("bias", 0) == 1,
        stride("residual", 1) == 1,
        stride("out", 1) == 1,
        *(s % whole == 0 for s in (stride("a", 0), stride("b", 1), stride("out", 0))),
        *(s > 0 for s in (stride("a", 0), stride("b", 1), stride("out", 0))),
        *(s < 2**40 // size for s in (stride("a", 0), stride("b", 1))),  # bytes of it fit into 40 bits
        # Copies end at whole 16 bytes: beyond them they would read what is not the tensor's.
        N % whole == 0,
        K % whole == 0,
        (present("residual") == 0) | (stride("residual", 0) % 4 == 0),
        *(alignment(t) >= 16 for t in ("a", "b", "out")),
        *(alignment(t) >= 4 * size for t in ("bias", "residual")),  # four columns at a time
        (K > 0) & (M < 2**20) & (N < 2**27) & (K < 2**31),
    )


def _wgmma(
    name: str,
    groups: int,
    worthwhile: tuple[Expr, ...],
    order: tuple[Config, ...],
    *,
    floats: bool = False,
    pair: bool = False,
) -> Kernel:
    """For tiles of 64 rows for each of so many warp groups, of 16-bit elements or of `floats` as TF32."""
    size = 4 if floats else 2
    parameters = (
        Parameter("GROUPS", (groups,)),
        Parameter("WIDTH", tuple(sorted({int(config["WIDTH"]) for config in order}))),
        Parameter("SPLIT", (1, 2, 4, 8)),
        Parameter("EARLY", (1, 2, 4)),
        Parameter("BLOCKS", (1, 2)),
        Parameter("LATE", (False, True)),
        Parameter("PAIR", (pair,)),
    )
    return Kernel(
        name,
        "gemm/cuda/wgmma/wgmma_few_rows.cu.j2",
        backend="nvcc",
        dtypes={"T": ("f32",) if floats else ("bf16", "f16")},
        follows={} if floats else {"f16": "bf16"},
        parameters=parameters,
        constraints=(
            target("wgmma") == 1,
            (SPLIT > 1) | ~LATE,
            _FITS,
            among(parameters, order),
        ),
        requires=(*((attribute("math") == 1,) if floats else ()), *copied(size)),
        worthwhile=worthwhile,
        order=order,
        tile={"M": 64 * GROUPS, "N": WIDTH, "K": 128 // size},
        split=SPLIT,
        occupancy=parameter("BLOCKS"),
    )


# Of 518 configs on an H200, those without which a product of the workload was slower. In brackets, sizes N x K.
WGMMA_KERNELS = (
    _wgmma(
        "cuda_wgmma",
        1,
        (M > 8, M <= 64, N >= 64),
        table(
            "WIDTH SPLIT EARLY BLOCKS LATE",
            (48, 2, 1, 2, False),  # [3072 x 1024, 6144 x 4096]
            (32, 2, 1, 2, False),  # [4096 x 4096, 3584 x 3584]
            (72, 1, 1, 2, False),  # [18944 x 3584]
            (64, 4, 1, 2, False),  # [3584 x 8192]
            (40, 4, 4, 1, False),  # [1024 x 4096]
            (48, 4, 1, 1, True),  # 64 x [1280 x 8192]
            (88, 8, 1, 2, True),  # 16 x [1280 x 8192]
            (56, 1, 1, 2, False),  # [14336 x 4096]
            (40, 2, 1, 2, False),  # [4608 x 3584]
            (32, 1, 1, 2, False),  # [8192 x 3584, 8192 x 1024]
            (120, 4, 1, 1, False),  # [3584 x 18944]
            (64, 2, 1, 1, False),  # [4096 x 14336]
        ),
    ),
    _wgmma(
        "cuda_wgmma_128",
        2,
        (M > 64, M <= 256, N >= 64),
        table(
            "WIDTH SPLIT EARLY BLOCKS LATE",
            (32, 2, 1, 1, False),  # [1024 x 1024]
            (88, 4, 1, 1, False),  # [1280 x 8192]
        ),
    ),
    _wgmma(
        "cuda_wgmma_tf32",
        1,
        (M <= 64, N >= 64),
        table(
            "WIDTH SPLIT EARLY BLOCKS LATE",
            (32, 2, 1, 2, False),  # 16 x [4096]
            (64, 4, 1, 2, False),  # 1 to 64 x [3584]
            (72, 4, 1, 2, False),  # 1 to 64 x [4096]
        ),
        floats=True,
    ),
    _wgmma(
        "cuda_wgmma_tf32_128",
        2,
        (M > 128, M <= 256, N >= 64),  # below, half of a pair has no rows
        table(
            "WIDTH SPLIT EARLY BLOCKS LATE",
            # An H200 runs 30 or 31 clusters of four at a time, not 33.
            (144, 2, 1, 1, True),  # 256 x [4096]: 29
            (120, 2, 1, 1, False),  # 256 x [3584]: 30
            (128, 2, 1, 1, True),  # the same on an H100: 28
        ),
        floats=True,
        pair=True,
    ),
)


# Tiles of many rows, of which the kernel chooses one for each product.
WGMMA_KERNELS += (
    Kernel(
        "cuda_tiles",
        "gemm/cuda/wgmma/tiles.cu.j2",
        backend="nvcc",
        dtypes={"T": ("bf16", "f16")},
        follows={"f16": "bf16"},
        constraints=(target("wgmma") == 1,),
        requires=(
            *copied(2),
            stride("out", 0) % 8 == 0,
            (present("residual") == 0) | ((stride("residual", 0) % 8 == 0) & (stride("residual", 0) > 0)),
            alignment("residual") >= 16,
        ),
        worthwhile=(M > 64, N >= 64),
        compile_seconds=20.0,
    ),
)
