"""Kernels of batched matrix products; those for GPUs share their sources with `gemm`."""

from __future__ import annotations

from aot_tune.spec import Expr, Kernel, Parameter, alignment, among, attribute, dims, parameter, stride, table, target

from .cpu.cpu_kernels import CPU_KERNELS
from .cutlass_kernels import CUTLASS_KERNELS
from .vendor_kernels import ANY_STRIDES, CUBLASLT

B, K = dims("B K")
BM, BN, WN, STAGES, TM = (parameter(name) for name in ("BM", "BN", "WN", "STAGES", "TM"))
SHARED = target("shared_bytes")

HOPPER: Expr = target("wgmma") == 1
"""Where a kernel has few configs: an H200 measured more, and no batch of the workload was slower without the others."""

ROWS_OF_A: tuple[Expr, ...] = (
    stride("a", 2) == 1,
    stride("a", 1) % 8 == 0,
    stride("a", 0) % 8 == 0,
    alignment("a") >= 16,
)
COLUMNS_OF_B: tuple[Expr, ...] = (
    stride("b", 1) == 1,
    stride("b", 2) % 8 == 0,
    stride("b", 0) % 8 == 0,
    alignment("b") >= 16,
)
ROWS_OF_B: tuple[Expr, ...] = (
    stride("b", 2) == 1,
    stride("b", 1) % 8 == 0,
    stride("b", 0) % 8 == 0,
    alignment("b") >= 16,
)
ROWS_OF_OUT: tuple[Expr, ...] = (stride("out", 2) == 1,)
"""Results by columns are written an element at a time: others are several times as fast."""

GRID = (B <= 65535,)
"""The batch is the third dim of the grid."""

MMA_PARAMETERS = (
    Parameter("BM", (64, 128)),
    Parameter("BN", (64, 128)),
    Parameter("WM", (2,)),
    Parameter("WN", (2, 4)),
    Parameter("STAGES", (2, 3, 4)),
)
MMA_ON_HOPPER = table("BM BN STAGES", (128, 128, 3), (64, 64, 4))
MMA_CONSTRAINTS: tuple[Expr, ...] = (
    ~HOPPER | among(MMA_PARAMETERS, MMA_ON_HOPPER),
    WN * 32 == BN,
    STAGES * (BM + BN) * 128 <= SHARED,
    (STAGES == 4) <= (BM + BN < 256),
)
MMA_ORDER = (
    {"BM": 128, "BN": 128, "STAGES": 2},
    {"BM": 128, "BN": 64, "STAGES": 3},
    {"BM": 64, "BN": 128, "STAGES": 2},
    {"BM": 128, "BN": 128, "STAGES": 3},
    {"BM": 64, "BN": 64, "STAGES": 4},
    {"BM": 128, "BN": 64, "STAGES": 2},
)

SIMT_PARAMETERS = (
    Parameter("BM", (64, 128)),
    Parameter("BN", (64, 128)),
    Parameter("BK", (16,)),
    Parameter("TM", (4, 8)),
    Parameter("TN", (4, 8)),
    Parameter("STAGES", (2, 3)),
    Parameter("SPLIT", (1,)),
)
SIMT_ON_HOPPER = table("BM BN STAGES", (128, 64, 3), (128, 128, 3))
SIMT_CONSTRAINTS: tuple[Expr, ...] = (
    ~HOPPER | among(SIMT_PARAMETERS, SIMT_ON_HOPPER),
    parameter("TN") == TM,
    (TM == 8) == (BM * BN >= 64 * 128),
    (STAGES == 3) | (BM * BN == 128 * 128),
)


def _mma(name: str, dtypes: tuple[str, ...], *requires: Expr) -> Kernel:
    """By the matrix units."""
    return Kernel(
        name,
        "batched_gemm/cuda_mma.cu.j2",
        backend="nvcc",
        dtypes={"T": dtypes},
        parameters=MMA_PARAMETERS,
        constraints=MMA_CONSTRAINTS,
        requires=(*GRID, *requires),
        order=MMA_ORDER,
        worthwhile=ROWS_OF_OUT,
        tile={"B": 1, "M": BM, "N": BN, "K": 32},
    )


def _simt(name: str, b: tuple[Expr, ...]) -> Kernel:
    """By CUDA cores, with weights kept as `b` says."""
    return Kernel(
        name,
        "batched_gemm/cuda_simt.cu.j2",
        backend="nvcc",
        dtypes={"T": ("f32",)},
        parameters=SIMT_PARAMETERS,
        constraints=SIMT_CONSTRAINTS,
        requires=(*GRID, K < 2147483648, *ROWS_OF_A, *b),
        worthwhile=(attribute("math") == 0,),
        tile={"B": 1, "M": BM, "N": BN, "K": parameter("BK")},
    )


KERNELS = (
    *CPU_KERNELS,
    Kernel("cuda_generic", "batched_gemm/cuda_generic.cu.j2", backend="nvcc", generic=True),
    _mma("cuda_mma", ("bf16", "f16"), *ROWS_OF_A, *COLUMNS_OF_B),
    _mma("cuda_mma_kn", ("bf16", "f16"), *ROWS_OF_A, *ROWS_OF_B),
    _mma("cuda_tf32", ("f32",), attribute("math") == 1, *ROWS_OF_A, *COLUMNS_OF_B),
    _simt("cuda_simt", COLUMNS_OF_B),
    _simt("cuda_simt_kn", ROWS_OF_B),
    *CUTLASS_KERNELS,
    CUBLASLT,
    ANY_STRIDES,
)
