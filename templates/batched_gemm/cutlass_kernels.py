"""Batches of matrix products on Hopper GPUs by CUTLASS."""

from __future__ import annotations

from aot_tune.spec import (
    Config,
    ConfigValue,
    Expr,
    Kernel,
    Parameter,
    alignment,
    among,
    dims,
    parameter,
    stride,
    table,
    target,
)

B, M, N, K = dims("B M N K")

COLUMNS = "TM TN TK CM CN SCHEDULE"
# In brackets, B x M x N of which the tiles fill 132 multiprocessors nearly whole times.
OF_COLUMNS = table(
    COLUMNS,
    (128, 128, 64, 1, 1, "pingpong"),  # [128 x 128 x 128, 64 x 512 x 512]
    (128, 128, 64, 2, 1, "pingpong"),  # [32 x 1024 x 1024]
    (64, 128, 64, 1, 1, "single"),
)

# The same with another epilogue, for short products. Of eight tiles on an H200, those without which 42 random
# batches were slower; in brackets, B x M x N x K where each was the fastest.
DIRECT = table(
    COLUMNS,
    (64, 64, 64, 1, 1, "single"),  # [7 x 896 x 64 x 128]
    (128, 64, 64, 1, 1, "pingpong"),  # [80 x 2039 x 64 x 64]
    (128, 128, 64, 1, 1, "pingpong"),  # [107 x 128 x 1280 x 64]
)


def _requires(b: str) -> tuple[Expr, ...]:
    """What TMA asks of pointers and strides; `b` as in the template."""
    inner, outer = (1, 2) if b == "nk" else (2, 1)
    strides = [stride(t, 0) for t in ("a", "b", "out")]
    strides += [stride("a", 1), stride("b", outer), stride("out", 1)]
    return (
        stride("a", 2) == 1,
        stride("b", inner) == 1,
        stride("out", 2) == 1,
        *(s % 8 == 0 for s in strides),
        *(s > 0 for s in strides),
        # TMA clips a tile at whole 16 bytes: beyond them it would read and write what is not the tensor's.
        N % 8 == 0,
        K % 8 == 0,
        *(alignment(t) >= 16 for t in ("a", "b", "out")),
        *(extent < 2**31 for extent in (B, M, N, K)),
        # A block of its own for every product, where blocks do not persist.
        B <= 65535,
    )


def _kernel(name: str, b: str, rows: tuple[Config, ...], epilogue: str = "plain") -> Kernel:
    one: dict[str, ConfigValue] = {
        "SWAP": False,
        "STAGES": 0,
        "SPLITS": 1,
        "SWIZZLE": 1,
        "RASTER": "heuristic",
        "EARLY": True,
        "EPILOGUE": epilogue,
        "B": b,
    }
    parameters = [Parameter(n, tuple(dict.fromkeys(row[n] for row in rows))) for n in COLUMNS.split()]
    parameters += [Parameter(n, (value,)) for n, value in one.items()]
    return Kernel(
        name,
        "batched_gemm/cutlass.cu.j2",
        backend="nvcc",
        dtypes={"T": ("bf16", "f16")},
        parameters=tuple(parameters),
        constraints=(target("wgmma") == 1, among(tuple(parameters), rows)),
        requires=_requires(b),
        worthwhile=(M >= 64, N >= 64),
        order=rows,
        tile={"B": 1, "M": parameter("TM"), "N": parameter("TN"), "K": parameter("TK")},
        cluster={"M": parameter("CM"), "N": parameter("CN")},
        follows={"f16": "bf16"},
        compile_seconds=25.0 if epilogue == "direct" else 40.0,
    )


CUTLASS_KERNELS: tuple[Kernel, ...] = (
    _kernel("cutlass", "nk", OF_COLUMNS),
    _kernel("cutlass_direct", "nk", DIRECT, "direct"),
    _kernel("cutlass_direct_kn", "kn", DIRECT, "direct"),
)
