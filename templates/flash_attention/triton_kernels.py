"""Attention on GPUs by Triton, in a kernel for each width of heads: 64, 128 and 256."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import (
    Buffer,
    Config,
    Descriptor,
    Expr,
    Kernel,
    KernelArgument,
    TritonFunction,
    alignment,
    attribute,
    ceildiv,
    dims,
    parameter,
    stride,
    table,
    target,
)

B, H, HK, M, N, D = dims("B H HK M N D")
CAUSAL = attribute("causal")
BLOCK_M, BLOCK_N, SPLIT = (parameter(name) for name in ("BLOCK_M", "BLOCK_N", "SPLIT"))
GRID = (ceildiv(M, BLOCK_M) * B * H,)

_TILE = {"B": 1, "H": 1, "M": BLOCK_M, "N": BLOCK_N}

_TENSORS = ("q", "k", "v", "out")
_AXES = ("batch", "head", "row")
_OUTER = tuple(stride(t, axis) for t in _TENSORS for axis in range(3))
_STRIDES = {f"{t}_{name}": stride(t, axis) for t in _TENSORS for axis, name in enumerate(_AXES)}

# Contiguous columns, sizes that 32 bits hold, and something to compute.
ROWS: tuple[Expr, ...] = (
    *(stride(t, 3) == 1 for t in _TENSORS),
    (B * H * M < 2**30) & (N < 2**30) & (H * HK < 2**30),
    B * H * HK * M * N > 0,
)
BLOCKS: tuple[Expr, ...] = (
    *ROWS,
    *(s % 8 == 0 for s in _OUTER),
    *(s > 0 for s in _OUTER),
    D % 8 == 0,  # descriptors clip a block at whole 16 bytes
    *(alignment(t) >= 16 for t in _TENSORS),
)
# Offsets within a block have 32 bits.
NEAR: tuple[Expr, ...] = (*ROWS, *((stride(t, 2) < 2**24) & (stride(t, 2) > -(2**24)) for t in ("k", "v")))

_SHARED: dict[str, Any] = {
    "backend": "triton",
    "dtypes": {"T": ("bf16", "f16")},
    "follows": {"f16": "bf16"},
    "compile_seconds": 4.0,
}
# Where kernels have few configs: an H200 measured more, and without the others no problem was 1 % slower. Those with
# pointers are for what descriptors cannot take there.
HOPPER = target("capability") == 90
_CONFIG = "BLOCK_M BLOCK_N num_warps num_stages"
_HOPPER = (target("capability") >= 90, target("shared_bytes") >= 227 * 1024)


def _of_width(width: int) -> tuple[Expr, ...]:
    return (width >= D, (0 if width == 64 else width // 2) < D)


def _tma(width: int, hopper: Expr, configs: tuple[Config, ...]) -> Kernel:
    """With descriptors that the host makes; columns beyond D are zeros."""
    rows: dict[str, KernelArgument] = {t: Descriptor(t, (1, 1, BLOCK_M, width)) for t in ("q", "out")}
    keys = {t: Descriptor(t, (1, 1, BLOCK_N, width)) for t in ("k", "v")}
    return Kernel(
        f"triton_tma_{width}",
        triton=TritonFunction(
            "flash_attention/triton.py:attention_tma",
            arguments={**rows, **keys, "CAUSAL": CAUSAL, "BLOCK_D": width},
            grid=GRID,
        ),
        listed=configs,
        constraints=(*_HOPPER, ~HOPPER | hopper),
        requires=(*BLOCKS, *_of_width(width)),
        tile=_TILE,
        **_SHARED,
    )


def _pointers(width: int, hopper: Expr, configs: tuple[Config, ...]) -> Kernel:
    return Kernel(
        f"triton_{width}",
        triton=TritonFunction(
            "flash_attention/triton.py:attention",
            arguments={**_STRIDES, "CAUSAL": CAUSAL, "WHOLE": width == D, "BLOCK_D": width},
            grid=GRID,
        ),
        listed=configs,
        constraints=(~HOPPER | hopper,),
        requires=(*NEAR, *_of_width(width)),
        tile=_TILE,
        **_SHARED,
    )


def _split(width: int, configs: tuple[Config, ...]) -> Kernel:
    """For few queries: the keys of a block of them are shared among SPLIT programs."""
    tiles = ceildiv(M * (H // HK), BLOCK_M) * B * HK
    return Kernel(
        f"triton_split_{width}",
        triton=TritonFunction(
            "flash_attention/triton.py:attention_split",
            arguments={
                **_STRIDES,
                "CAUSAL": CAUSAL,
                "WHOLE": width == D,
                "BLOCK_D": width,
                "partial": Buffer("f32", tiles * SPLIT * BLOCK_M * (width + 2)),
                "arrived": Buffer("i32", tiles, zero=True),
            },
            grid=(tiles * SPLIT,),
        ),
        listed=configs,
        constraints=(~HOPPER | ((BLOCK_M == 64) & (BLOCK_N == 64) & (SPLIT == 4)) | (BLOCK_M == 16),),
        requires=(*NEAR, *_of_width(width), H % HK == 0, M <= 1024),
        worthwhile=(M <= 256, N >= 1024),
        tile=_TILE,
        split=SPLIT,
        **_SHARED,
    )


TRITON_KERNELS = (
    _tma(64, BLOCK_M == 64, table(_CONFIG, (128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3))),
    _tma(
        128,
        parameter("num_stages") == 3,
        table(_CONFIG, (128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 3), (64, 64, 4, 2)),
    ),
    _tma(256, (BLOCK_M == 128) & (BLOCK_N == 64), table(_CONFIG, (128, 64, 8, 2), (128, 32, 8, 3), (64, 32, 4, 2))),
    _pointers(64, BLOCK_M == 128, table(_CONFIG, (128, 64, 8, 3), (64, 64, 4, 3))),
    _pointers(128, BLOCK_N == 64, table(_CONFIG, (128, 64, 8, 2), (128, 32, 8, 3), (64, 32, 4, 3))),
    _pointers(256, BLOCK_M == 64, table(_CONFIG, (64, 32, 8, 2))),
    _split(
        128,
        table(
            "BLOCK_M BLOCK_N SPLIT num_warps num_stages",
            # 128 queries of 32 heads that share 8: all programs of these run at once, and there is least to add.
            (64, 64, 4, 4, 3),
            (64, 32, 4, 4, 3),
            (128, 64, 4, 8, 3),
            (64, 64, 8, 4, 3),
            (128, 64, 8, 8, 3),
            (16, 64, 16, 4, 3),
        ),
    ),
)
