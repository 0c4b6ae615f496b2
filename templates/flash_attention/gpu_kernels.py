"""Attention on GPUs: by Triton, in a kernel for each width of heads (64, 128, 256, and parts of these), and by CUDA."""

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
    present,
    stride,
    table,
    target,
    where,
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
_BESIDE = ("mask", "bias")
MASKED = (present("mask") == 1) | (present("bias") == 1)


def _beside(group: Expr | int) -> dict[str, Expr]:
    """The strides of masks, 0 of one that there is not, so that nothing depends on what sizes it would have.

    And whether queries differ in their elements, those of `group` heads that are together in a block.
    """
    found = {}
    for tensor in _BESIDE:
        given = present(tensor) == 1
        for axis, name in enumerate((*_AXES, "key")):
            found[f"{tensor}_{name}"] = where(given, stride(tensor, axis), 0)
        differ = (stride(tensor, 2) != 0) & (M > 1) | (stride(tensor, 1) != 0) & (group != 1)
        found[f"{tensor.upper()}_ROWS"] = where(given & differ, 1, 0)
    return found


# Contiguous columns, sizes that 32 bits hold, and something to compute.
ROWS: tuple[Expr, ...] = (
    *(stride(t, 3) == 1 for t in _TENSORS),
    (B * H * M < 2**30) & (N < 2**30) & (H * HK < 2**30),
    B * H * HK * M * N > 0,
    # Offsets within a block have 32 bits.
    *((present(t) == 0) | (stride(t, 3) < 2**24) & (stride(t, 3) > -(2**24)) for t in _BESIDE),
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
_SPLIT_CONFIG = "BLOCK_M BLOCK_N SPLIT num_warps num_stages"
_HOPPER = (target("capability") >= 90, target("shared_bytes") >= 227 * 1024)


def _of_width(width: int) -> tuple[Expr, ...]:
    return (width >= D, (0 if width == 64 else width // 2) < D)


def _tma(width: int, hopper: Expr, configs: tuple[Config, ...], name: str = "", calls: tuple[Expr, ...] = ()) -> Kernel:
    """With descriptors that the host makes; columns beyond D are zeros."""
    rows: dict[str, KernelArgument] = {t: Descriptor(t, (1, 1, BLOCK_M, width)) for t in ("q", "out")}
    keys = {t: Descriptor(t, (1, 1, BLOCK_N, width)) for t in ("k", "v")}
    return Kernel(
        f"triton_tma_{name}{width}",
        triton=TritonFunction(
            "flash_attention/triton.py:attention_tma",
            arguments={**rows, **keys, **_beside(1), "CAUSAL": CAUSAL, "BLOCK_D": width},
            grid=GRID,
        ),
        listed=configs,
        constraints=(*_HOPPER, ~HOPPER | hopper),
        requires=(*BLOCKS, *_of_width(width), *calls),
        tile=_TILE,
        **_SHARED,
    )


def _parts(width: int, rest: int, configs: tuple[Config, ...]) -> Kernel:
    """With descriptors, for heads of width + rest columns at most."""
    arguments: dict[str, KernelArgument] = {"CAUSAL": CAUSAL, "BLOCK_D": width, "REST": rest, **_beside(1)}
    for name, block in (("q", BLOCK_M), ("k", BLOCK_N), ("v", BLOCK_N), ("out", BLOCK_M)):
        arguments[name] = Descriptor(name, (1, 1, block, width))
        arguments[f"{name}_rest"] = Descriptor(name, (1, 1, block, rest))
    return Kernel(
        f"triton_tma_{width + rest}",
        triton=TritonFunction("flash_attention/triton.py:attention_tma_parts", arguments=arguments, grid=GRID),
        listed=configs,
        constraints=_HOPPER,
        requires=(*BLOCKS, width + rest >= D, width < D),
        tile=_TILE,
        **_SHARED,
    )


def _pointers(width: int, hopper: Expr, configs: tuple[Config, ...]) -> Kernel:
    return Kernel(
        f"triton_{width}",
        triton=TritonFunction(
            "flash_attention/triton.py:attention",
            arguments={**_STRIDES, **_beside(1), "CAUSAL": CAUSAL, "WHOLE": width == D, "BLOCK_D": width},
            grid=GRID,
        ),
        listed=configs,
        constraints=(~HOPPER | hopper,),
        requires=(*NEAR, *_of_width(width)),
        tile=_TILE,
        **_SHARED,
    )


def _split(width: int, configs: tuple[Config, ...]) -> Kernel:
    """For few queries: the keys of a block of them are shared among SPLIT programs.

    Few heads of keys make few blocks, which take more programs each until all multiprocessors have some.
    """
    tiles = ceildiv(M * (H // HK), BLOCK_M) * B * HK
    return Kernel(
        f"triton_split_{width}",
        triton=TritonFunction(
            "flash_attention/triton.py:attention_split",
            arguments={
                **_STRIDES,
                **_beside(H // HK),
                "CAUSAL": CAUSAL,
                "WHOLE": width == D,
                "BLOCK_D": width,
                "partial": Buffer("f32", tiles * SPLIT * BLOCK_M * (width + 2)),
                "arrived": Buffer("i32", tiles, zero=True),
            },
            grid=(tiles * SPLIT,),
        ),
        listed=configs,
        constraints=(~HOPPER | ((BLOCK_M == 64) & ((BLOCK_N == 64) | (width != 128))) | (BLOCK_M == 16),),
        requires=(*NEAR, *_of_width(width), H % HK == 0, M <= 1024),
        worthwhile=(M <= 256, N >= 1024),
        tile=_TILE,
        split=SPLIT,
        **_SHARED,
    )


# Keys are read once for all heads that share them, and divided evenly among the multiprocessors. It may pay wherever
# prompts' kernels have fewer blocks than there are multiprocessors.
FEW_QUERIES = Kernel(
    "cuda_few_queries",
    "flash_attention/few_queries.cu.j2",
    backend="nvcc",
    dtypes={"T": ("bf16", "f16")},
    constraints=_HOPPER,
    requires=(
        *ROWS,
        # What is copied is whole pieces of 16 bytes. Queries are read in pairs.
        *((s % 8 == 0) & (s > 0) & (s < 2**39) for s in (stride(t, axis) for t in ("k", "v") for axis in range(3))),
        *(alignment(t) >= 16 for t in ("k", "v")),
        *(stride("q", axis) % 2 == 0 for axis in range(3)),
        alignment("q") >= 4,
        (D % 8 == 0) & (D <= 256),
        (H % HK == 0) & (B * HK * N < 2**35),
    ),
    worthwhile=((M * (H // HK) <= 256) | (B * H * M <= 2**14),),
    compile_seconds=10.0,
)

GPU_KERNELS = (
    _tma(64, BLOCK_M == 64, table(_CONFIG, (128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3))),
    _tma(
        128,
        parameter("num_stages") == 3,
        table(_CONFIG, (128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 3), (64, 64, 4, 2)),
        calls=(~MASKED,),
    ),
    # Blocks of masks are in shared memory, too: with three stages of 128 keys there is no room for them.
    _tma(128, BLOCK_M == 128, table(_CONFIG, (128, 128, 8, 2), (128, 64, 8, 3), (64, 64, 4, 2)), "masked_", (MASKED,)),
    _tma(256, (BLOCK_M == 128) & (BLOCK_N == 64), table(_CONFIG, (128, 64, 8, 2), (128, 32, 8, 3), (64, 32, 4, 2))),
    _pointers(64, BLOCK_M == 128, table(_CONFIG, (128, 64, 8, 3), (64, 64, 4, 3))),
    _pointers(128, BLOCK_N == 64, table(_CONFIG, (128, 64, 8, 2), (128, 32, 8, 3), (64, 32, 4, 3))),
    _pointers(256, BLOCK_M == 64, table(_CONFIG, (64, 32, 8, 2))),
    _parts(64, 32, table(_CONFIG, (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3))),
    _parts(128, 32, table(_CONFIG, (128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 2))),
    _parts(128, 64, table(_CONFIG, (128, 64, 8, 2), (64, 64, 4, 2))),
    _split(64, table(_SPLIT_CONFIG, (16, 128, 16, 4, 3), (16, 128, 32, 4, 3), (64, 64, 8, 4, 3))),
    _split(
        128,
        table(
            _SPLIT_CONFIG,
            # 128 queries of 32 heads that share 8: all programs of these run at once, and there is least to add.
            (64, 64, 4, 4, 3),
            (64, 32, 4, 4, 3),
            (128, 64, 8, 8, 3),
            # A few queries of the same heads, and one: as many programs as keep all multiprocessors at reading.
            (64, 64, 16, 4, 3),
            (16, 64, 16, 4, 3),
            (16, 64, 32, 4, 3),
            (16, 64, 64, 4, 3),
        ),
    ),
    _split(256, table(_SPLIT_CONFIG, (16, 32, 16, 4, 3), (16, 32, 32, 4, 3), (64, 32, 8, 4, 2))),
    FEW_QUERIES,
)
