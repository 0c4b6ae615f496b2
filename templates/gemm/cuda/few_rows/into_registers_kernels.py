"""Products of one row on GPUs whose weights go straight from memory into registers."""

from __future__ import annotations

from aot_tune.spec import (
    Config,
    Kernel,
    Parameter,
    TritonFunction,
    among,
    attribute,
    ceildiv,
    dims,
    parameter,
    stride,
    table,
    target,
)

from ..cuda_kernels import COLUMNS_OF_B, ROWS_OF_A

M, N, K = dims("M N K")
BLOCK_N, EARLY = parameter("BLOCK_N"), parameter("EARLY")

_ORDER = table(
    "WARPS NT DEPTH EARLY CACHE",
    (4, 2, 4, True, "first"),
    (4, 1, 4, True, "first"),
    (8, 2, 4, False, "once"),
    (4, 1, 8, False, "once"),
)

_PARAMETERS = (
    Parameter("WARPS", (4, 8)),
    Parameter("NT", (1, 2)),
    Parameter("DEPTH", (4, 8)),
    Parameter("EARLY", (False, True)),
    Parameter("CACHE", ("once", "first")),
)

CUDA_DIRECT = Kernel(
    "cuda_direct_gemv",
    "gemm/cuda/few_rows/into_registers.cu.j2",
    backend="nvcc",
    dtypes={"T": ("bf16", "f16")},
    follows={"f16": "bf16"},
    parameters=_PARAMETERS,
    constraints=(
        among(_PARAMETERS, _ORDER),
        (EARLY == 0) | (target("capability") >= 90),
        # No product was faster with others on an H200.
        ((EARLY == 1) & (parameter("NT") == 2)) | (target("wgmma") == 0),
    ),
    requires=(M <= 64, *ROWS_OF_A, *COLUMNS_OF_B, K % 8 == 0),  # pieces of 16 bytes exist whole, or not
    worthwhile=(M == 1,),  # with 16 rows, of which each block reads all, `cuda_thin` was faster everywhere
    order=_ORDER,
    tile={"M": 1, "N": 8 * parameter("NT"), "K": 64 * parameter("WARPS")},
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
    """Products of one row by Triton. Those of f32 are IEEE's in either math mode."""
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
        requires=(
            stride("a", 1) == 1,
            stride("b", 0) == 1,
            stride("bias", 0) == 1,
            stride("residual", 1) == 1,
            stride("out", 1) == 1,
            (M < 2**16) & (N < 2**30) & (K < 2**30),
        ),
        worthwhile=(M == 1,),
        tile={"M": 1, "N": BLOCK_N, "K": parameter("BLOCK_K")},
    )


DIRECT_KERNELS = (
    CUDA_DIRECT,
    _gemv("triton_gemv", ("bf16", "f16"), _GEMV_LIST),
    _gemv("triton_gemv_f32", ("f32",), _GEMV_LIST_F32),
)
