"""Scaled matrix products on GPUs: by Triton on matrix units for floats of 8 bits, and by cuBLASLt."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import (
    Buffer,
    Descriptor,
    Expr,
    Kernel,
    KernelArgument,
    Problem,
    TritonFunction,
    alignment,
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

M, N, K, MA, KA, NB = dims("M N K MA KA NB")
BLOCK_M, BLOCK_N, SPLIT = (parameter(p) for p in ("BLOCK_M", "BLOCK_N", "SPLIT"))

BLOCKS: Expr = (MA == M) & (ceildiv(K, 128) == KA) & (ceildiv(N, 128) == NB)
LINES: Expr = (KA == 1) & ((NB == 1) | (NB == N))
"""Scales of blocks; of rows and columns, or of whole factors. What is both may be taken for either."""

_ROWS: tuple[Expr, ...] = (
    stride("a", 1) == 1,
    stride("b", 0) == 1,
    stride("bias", 0) == 1,
    stride("out", 1) == 1,
    (M < 2**30) & (N < 2**30) & (K < 2**30) & (M * N < 2**36),  # as many programs and rows as Triton can count
    M * N * K > 0,
)
_TMA: tuple[Expr, ...] = (
    *_ROWS,
    *(s % 16 == 0 for s in (stride("a", 0), stride("b", 1))),
    *(s > 0 for s in (stride("a", 0), stride("b", 1))),
    K % 16 == 0,
    *(alignment(t) >= 16 for t in ("a", "b")),
)
"""What tensor descriptors ask of addresses and strides."""
_TMA_OUT: tuple[Expr, ...] = (stride("out", 0) % 8 == 0, stride("out", 0) > 0, N % 8 == 0, alignment("out") >= 16)

_BLOCKS_OF_ROWS: tuple[Expr, ...] = (
    M % 4 == 0,  # by descriptors, as the factors
    (stride("scale_a", 0) == 1) & ((KA == 1) | (stride("scale_a", 1) == M)),
)
"""How CUTLASS and cuBLASLt want a's scales of blocks: those of rows beside each other."""

_SCALES: dict[str, KernelArgument] = {
    "a_row": where(MA == 1, 0, stride("scale_a", 0)),
    "a_block": stride("scale_a", 1),
    "b_block": stride("scale_b", 0),
    "b_column": where(NB == 1, 0, stride("scale_b", 1)),
}
_FACTORS = {"a": Descriptor("a", (BLOCK_M, 128)), "b": Descriptor("b", (BLOCK_N, 128), order=(1, 0))}
_EARLY = target("capability") >= 90

_SHARED: dict[str, Any] = {"backend": "triton", "follows": {"f16": "bf16"}, "compile_seconds": 4.0}
_HOPPER = (target("capability") >= 90, target("shared_bytes") >= 227 * 1024)
_OF_WAY = (("", False, LINES), ("_blocks", True, BLOCKS))
"""Names, BLOCKS and guards of the two ways to scale."""


def _tiles(name: str, blocks: bool, way: Expr) -> Kernel:
    """Persistent, for many rows."""
    return Kernel(
        f"triton_tma{name}",
        triton=TritonFunction(
            "scaled_mm/triton.py:scaled_tma",
            arguments={**_SCALES, **_FACTORS, "out": Descriptor("out", (BLOCK_M, BLOCK_N)), "BLOCKS": blocks},
            grid=(minimum(ceildiv(M, BLOCK_M) * ceildiv(N, BLOCK_N), device("multiprocessors")),),
        ),
        listed=table(
            "BLOCK_M BLOCK_N GROUP num_warps num_stages",
            (128, 128, 8, 8, 4),
            (64, 128, 8, 4, 5),
            (128, 64, 8, 4, 5),
            (64, 64, 8, 4, 6),
        ),
        constraints=_HOPPER,
        requires=(way, *_TMA, *_TMA_OUT),
        worthwhile=(M > 32,),
        tile={"M": BLOCK_M, "N": BLOCK_N, "K": 128},
        **_SHARED,
    )


_FEW = table(
    "BLOCK_M BLOCK_N STEPS SPLIT num_warps num_stages",
    (16, 64, 1, 1, 4, 8),
    (64, 64, 1, 1, 4, 8),
    (16, 128, 1, 1, 8, 6),
    (64, 128, 1, 1, 8, 6),
    (64, 32, 1, 1, 4, 8),
    (16, 64, 2, 1, 4, 4),
    (16, 128, 2, 1, 8, 3),
    (64, 32, 2, 1, 4, 4),
    (16, 64, 1, 4, 4, 8),
    (16, 64, 1, 8, 4, 6),
    (64, 64, 1, 4, 4, 6),
    (64, 64, 1, 2, 4, 8),
    (16, 64, 2, 2, 4, 4),
)


def _few(name: str, blocks: bool, way: Expr, split: bool) -> Kernel:
    """For few rows: b passes by once, in blocks of columns that are the rows of the instructions."""
    tiles = ceildiv(N, BLOCK_N)
    apart: dict[str, KernelArgument] = {
        "partial": Buffer("f32", tiles * SPLIT * BLOCK_M * BLOCK_N) if split else None,
        "arrived": Buffer("i32", tiles, zero=True) if split else None,
    }
    return Kernel(
        f"triton_few{'_split' if split else ''}{name}",
        triton=TritonFunction(
            "scaled_mm/triton.py:scaled_few",
            arguments={
                **_SCALES,
                **_FACTORS,
                **apart,
                "out_line": stride("out", 0),
                "BLOCKS": blocks,
                "EARLY": _EARLY,
            },
            grid=(tiles, SPLIT if split else 1),
            launch_pdl=True,
        ),
        # Without blocks, each product of several steps would wait for the one before.
        listed=tuple(c for c in _FEW if (int(c["SPLIT"]) > 1) == split and (blocks or c["STEPS"] == 1)),
        constraints=_HOPPER,
        requires=(way, *_TMA, M <= BLOCK_M),
        worthwhile=(M <= 64, (BLOCK_M == 16) | (BLOCK_N < 64) | (M > 16), *((N <= 16384,) if split else ())),
        tile={"M": BLOCK_M, "N": BLOCK_N, "K": 128},
        **({"split": SPLIT} if split else {}),
        **_SHARED,
    )


THIN = Kernel(
    "cuda_thin",
    "scaled_mm/thin.cu.j2",
    backend="nvcc",
    follows={"f16": "bf16"},
    listed=table("WN WK", (1, 8), (2, 4), (4, 2)),
    constraints=(target("capability") >= 89,),
    requires=(
        M <= 16,
        N < 2**30,
        stride("a", 1) == 1,
        stride("b", 0) == 1,
        stride("a", 0) % 16 == 0,
        stride("b", 1) % 16 == 0,
        K % 16 == 0,
        *(alignment(t) >= 16 for t in ("a", "b")),
    ),
    worthwhile=(K >= 512,),
    tile={"M": 16, "N": 16 * parameter("WN"), "K": 128 * parameter("WK")},
)


CUTLASS = Kernel(
    "cutlass_blocks",
    "scaled_mm/cutlass.cu.j2",
    backend="nvcc",
    dtypes={"T": ("bf16",)},
    listed=table("TM TN CM CN SCHEDULE", (128, 128, 2, 1, "Cooperative"), (64, 128, 1, 1, "Pingpong")),
    constraints=(target("wgmma") == 1,),
    requires=(
        BLOCKS,
        *_BLOCKS_OF_ROWS,
        (stride("scale_b", 0) == 1) & ((NB == 1) | (stride("scale_b", 1) == KA)),
        *(alignment(t) >= 16 for t in ("scale_a", "scale_b", "bias")),
        *_TMA,
        *_TMA_OUT,
    ),
    worthwhile=(M > 64,),
    tile={"M": parameter("TM"), "N": parameter("TN"), "K": 128},
    cluster={"M": parameter("CM"), "N": parameter("CN")},
    compile_seconds=45.0,
)


def no_algorithms(problem: Problem) -> None:
    """The library chooses: its algorithms for floats of 8 bits are not asked for one by one."""
    del problem


_CUBLASLT: dict[str, tuple[Expr, ...]] = {
    "": ((MA == 1) & (KA == 1) & (NB == 1),),
    "_rows": (LINES, MA == M, NB == N, stride("scale_a", 0) == 1, stride("scale_b", 1) == 1),
    "_blocks": (
        BLOCKS,
        *_BLOCKS_OF_ROWS,
        (stride("scale_b", 0) == 1) & ((NB == 1) | (stride("scale_b", 1) == ceildiv(KA, 4) * 4)),
    ),
}
"""Scales as the library has them: blocks of rows beside each other, those of K padded to a multiple of 4. It may have
one way and not another, so each is a kernel."""


def _cublaslt(name: str, way: tuple[Expr, ...]) -> Kernel:
    return Kernel(
        f"cublaslt{name}",
        "scaled_mm/cublaslt.cpp.j2",
        backend="cublaslt",
        listed=table("ALGO", (-1,)),
        algorithms=no_algorithms,
        follows={"f16": "bf16"},
        constraints=(target("capability") >= 89,),
        requires=(
            *way,
            *_TMA,
            *(s >= K for s in (stride("a", 0), stride("b", 1))),
            N % 16 == 0,
            stride("out", 0) >= N,
            stride("out", 0) % 8 == 0,
            *(alignment(t) >= 16 for t in ("scale_a", "scale_b", "bias", "out")),
        ),
    )


GPU_KERNELS = (
    THIN,
    CUTLASS,
    *(_cublaslt(*way) for way in _CUBLASLT.items()),
    *(_tiles(*way) for way in _OF_WAY),
    *(_few(*way, split=split) for way in _OF_WAY for split in (False, True)),
)
