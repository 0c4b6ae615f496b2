"""Products of floats on Hopper GPUs by bf16 matrix units, to the precision of floats."""

from __future__ import annotations

from aot_tune.spec import Config, Expr, Kernel, Parameter, among, attribute, dims, parameter, table, target

from .wgmma_kernels import copied

M, N = dims("M N")

_TILES = "GROUPS WIDTH SPLIT EARLY BLOCKS"

_PARAMETERS = (
    Parameter("GROUPS", (1, 2)),
    Parameter("WIDTH", (64, 112, 128)),
    Parameter("SPLIT", (1, 2, 4)),
    Parameter("EARLY", (1,)),
    Parameter("BLOCKS", (1, 2)),
)


def _bf16x6(name: str, worthwhile: tuple[Expr, ...], order: tuple[Config, ...]) -> Kernel:
    return Kernel(
        name,
        "gemm/cuda/wgmma/bf16x6.cu.j2",
        backend="nvcc",
        dtypes={"T": ("f32",)},
        parameters=_PARAMETERS,
        constraints=(target("wgmma") == 1, among(_PARAMETERS, order)),
        requires=(attribute("math") == 0, *copied(4), M * N < 2**36),
        worthwhile=worthwhile,
        order=order,
        tile={"M": 64 * parameter("GROUPS"), "N": parameter("WIDTH"), "K": 64},
        split=parameter("SPLIT"),
        occupancy=parameter("BLOCKS"),
    )


# Of 17 configs on an H200 and an H100, those that were the fastest with a size. In brackets, sizes M x N.
BF16X6_KERNELS = (
    _bf16x6(
        "cuda_bf16x6",
        (M > 64, N >= 64),
        table(
            _TILES,
            (2, 128, 1, 1, 1),  # [1024 x 4096]
            (2, 112, 1, 1, 1),  # [1024 x 3584]
            (2, 128, 2, 1, 1),  # [256 x 4096, 256 x 3584]
        ),
    ),
    _bf16x6(
        "cuda_bf16x6_thin",
        (M > 1, M <= 64, N >= 64),
        table(
            _TILES,
            (1, 64, 2, 1, 2),  # [64 x 4096]
            (1, 64, 4, 1, 2),  # [64 x 3584]
        ),
    ),
)
