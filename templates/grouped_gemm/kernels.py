"""Kernels of products of groups of rows; all four operators have the same sources."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import (
    Config,
    Descriptor,
    Expr,
    Kernel,
    KernelArgument,
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
)

M, C, N, K, E = dims("M C N K E")
BLOCK_M, BLOCK_N, BLOCK_K = (parameter(p) for p in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
_CONFIG = "BLOCK_M BLOCK_N BLOCK_K SWAP CTAS num_warps num_stages"
_TILES = table(
    _CONFIG,
    (128, 256, 64, False, 1, 8, 3),
    (128, 128, 64, False, 1, 8, 4),
    (64, 256, 64, False, 1, 4, 4),
    (64, 128, 64, False, 2, 4, 3),
)
_FEW_ROWS = table(
    _CONFIG,
    (16, 64, 128, True, 1, 4, 8),
    (16, 64, 128, True, 2, 4, 4),
    (16, 128, 128, True, 1, 4, 5),
    (32, 128, 128, True, 1, 4, 4),
    (64, 128, 128, True, 1, 4, 4),
)
_BY_ROWS = table(
    _CONFIG,
    (128, 256, 64, False, 1, 8, 3),
    (64, 128, 64, False, 2, 4, 3),
    (16, 128, 64, True, 1, 4, 8),
)
_SCALED_TILES = table(
    _CONFIG,
    (128, 128, 128, False, 1, 8, 4),
    (64, 128, 128, False, 2, 4, 3),
    (64, 128, 128, True, 2, 4, 3),
)
_SCALED_FEW_ROWS = table(
    _CONFIG,
    (16, 64, 128, True, 1, 4, 8),
    (16, 64, 128, True, 2, 4, 6),
    (16, 128, 128, True, 1, 4, 8),
    (16, 128, 128, True, 2, 4, 4),
    (32, 128, 128, True, 2, 4, 4),
)
_CUTLASS_CONFIG = "TM TN TK CM CN SCHEDULE"
_CUTLASS = table(_CUTLASS_CONFIG, (128, 256, 64, 2, 1, "Cooperative"), (64, 128, 64, 1, 1, "Pingpong"))
_SCALED_CUTLASS = table(_CUTLASS_CONFIG, (128, 128, 128, 1, 2, "Cooperative"), (64, 128, 128, 1, 1, "Pingpong"))


def _triton(name: str, listed: tuple[Config, ...], meant: Expr, *, masked: bool, scaled: bool, along: int) -> Kernel:
    """`along`: the axis of b that is contiguous: 1 is K, 2 is N."""
    rows, room = (2, C) if masked else (1, M)
    sizes, whole = "counts" if masked else "ends", 16 if scaled else 8
    keys = Descriptor("b", (1, BLOCK_N, BLOCK_K), order=(0, 2, 1))
    arguments: dict[str, KernelArgument] = {
        "a": Descriptor("a", (1, BLOCK_M, BLOCK_K) if masked else (BLOCK_M, BLOCK_K)),
        "b": keys if along == 1 else Descriptor("b", (1, BLOCK_K, BLOCK_N)),
        "sizes": sizes,
        "out_expert": stride("out", 0) if masked else 0,
        "out_row": stride("out", rows - 1),
        "M": room,
        "MASKED": masked,
        "BY_COLUMNS": along == 1,
        "scale_a": "scale_a" if scaled else None,
        "scale_b": "scale_b" if scaled else None,
        "scale_a_expert": stride("scale_a", 0) if scaled and masked else 0,
        "scale_a_row": stride("scale_a", rows - 1) if scaled else 0,
        "scale_a_k": stride("scale_a", rows) if scaled else 0,
    }
    for axis, of in enumerate(("expert", "k", "n")):
        arguments[f"scale_b_{of}"] = stride("scale_b", axis) if scaled else 0
    outer = (*(stride("a", axis) for axis in range(rows)), stride("b", 0), stride("b", 3 - along))
    tiles = ceildiv(C, BLOCK_M) * E if masked else ceildiv(M, BLOCK_M) + minimum(E, M)  # or fewer
    shared: dict[str, Any] = {} if scaled else {"follows": {"f16": "bf16"}}
    return Kernel(
        name,
        triton=TritonFunction(
            "grouped_gemm/triton.py:grouped",
            arguments=arguments,
            grid=(minimum(tiles * ceildiv(N, BLOCK_N), parameter("CTAS") * device("multiprocessors")),),
        ),
        backend="triton",
        compile_seconds=5.0,
        listed=listed,
        constraints=(target("capability") >= 90, target("shared_bytes") >= 227 * 1024),
        requires=(
            *(stride(t, axis) == 1 for t, axis in (("a", rows), ("b", along), ("out", rows), (sizes, 0))),
            (room < 2**30) & (N < 2**30) & (K < 2**30) & (E <= 512),
            (E * room * N if masked else (M + 128 * E) * N) < 2**40,  # tiles are counted in 32 bits
            *(s % whole == 0 for s in outer),
            *(s > 0 for s in outer),
            alignment("a") >= 16,
            alignment("b") >= 16,
            K % whole == 0,  # descriptors clip a tile at whole 16 bytes
            N % whole == 0,
            room * N * K * E > 0,
        ),
        worthwhile=(meant,),
        tile={"C" if masked else "M": BLOCK_M, "N": BLOCK_N, "K": BLOCK_K, **({"E": 1} if masked else {})},
        **shared,
    )


def _cutlass(listed: tuple[Config, ...], meant: Expr, *, masked: bool, scaled: bool) -> Kernel:
    """CUTLASS's grouped products. Scales are contiguous, and f8's blocks of b whole."""
    rows, room = (2, C) if masked else (1, M)
    whole = 16 if scaled else 8
    outer = [stride("b", 0), stride("b", 2), stride("out", rows - 1)]
    outer += [stride(t, axis) for t in ("a", "out") for axis in range(rows)]
    contiguous: tuple[Expr, ...] = ()
    if scaled:
        contiguous = (
            stride("scale_a", rows) == 1,
            stride("scale_a", rows - 1) == ceildiv(K, 128),
            stride("scale_b", 2) == 1,
            stride("scale_b", 1) == ceildiv(N, 128),
        )
    return Kernel(
        "cutlass",
        "grouped_gemm/cutlass.cu.j2",
        backend="nvcc",
        dtypes={"T": ("f8e4m3" if scaled else "bf16",)},
        listed=listed,
        constraints=(target("wgmma") == 1,),
        requires=(
            *(stride(t, axis) == 1 for t, axis in (("a", rows), ("b", 1), ("out", rows))),
            *contiguous,
            *(s % whole == 0 for s in outer),
            *(s > 0 for s in outer),
            *(alignment(t) >= 16 for t in ("a", "b", "out")),
            K % whole == 0,
            N % whole == 0,
            (room < 2**31) & (N < 2**31) & (K < 2**31) & (E <= 512),
            room * N * K * E > 0,
        ),
        worthwhile=(meant, (parameter("TM") == 64) | (C >= 1024)) if masked else (meant,),
        tile={"C" if masked else "M": parameter("TM"), "N": parameter("TN"), "K": parameter("TK")},
        cluster={"C" if masked else "M": parameter("CM"), "N": parameter("CN")},
        compile_seconds=45.0,
    )


def kernels(*, masked: bool, scaled: bool) -> tuple[Kernel, ...]:
    """Those of an operator whose experts have rooms for rows (`masked`), and of f8 (`scaled`)."""
    form: dict[str, Any] = {"masked": masked, "scaled": scaled}
    few = C <= 1024 if masked else M <= 64 * E
    many = C >= 256 if masked else M >= 16 * E
    found = [
        Kernel("generic", "grouped_gemm/generic.cpp.j2", generic=True),
        Kernel("cuda_generic", "grouped_gemm/cuda_generic.cu.j2", backend="nvcc", generic=True),
        _triton("triton_tiles", _SCALED_TILES if scaled else _TILES, many, along=1, **form),
        _triton("triton_few_rows", _SCALED_FEW_ROWS if scaled else _FEW_ROWS, few, along=1, **form),
    ]
    listed = _SCALED_CUTLASS if scaled else _CUTLASS
    found.append(_cutlass(listed[1:] if masked and scaled else listed, many, **form))
    if not scaled:
        found.append(_triton("triton_by_rows", _BY_ROWS, E > 0, along=2, **form))
    return tuple(found)
