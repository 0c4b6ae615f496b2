"""Matrix products on Hopper GPUs by CUTLASS."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import (
    ConfigValue,
    Expr,
    Kernel,
    Parameter,
    alignment,
    among,
    attribute,
    dims,
    maximum,
    parameter,
    present,
    stride,
    table,
    target,
)

M, N, K = dims("M N K")
TM, TN, TK, CM, CN, SCHEDULE, SPLITS, SWIZZLE, RASTER, EARLY = (
    parameter(name) for name in ("TM", "TN", "TK", "CM", "CN", "SCHEDULE", "SPLITS", "SWIZZLE", "RASTER", "EARLY")
)


COOPERATIVE, PINGPONG, SINGLE = (i == SCHEDULE for i in range(3))


def _fits(itemsize: int) -> tuple[Expr, ...]:
    """Three stages, the epilogue's four and the barriers in shared memory, the accumulators in registers."""
    bytes_needed = 3 * (TM + TN) * TK * itemsize + (64 + 64 * COOPERATIVE) * 32 * 4 * itemsize + 2048
    return (
        target("wgmma") == 1,
        bytes_needed * (1 + SINGLE) <= target("shared_bytes"),
        (SCHEDULE != 0) | ((TM >= 128) & (TM * TN <= 256 * 144)),
        (SCHEDULE != 1) | (TM * TN <= 64 * 256),
        (SCHEDULE != 2) | (TM * TN <= 64 * 128),
        (SPLITS == 1) | (COOPERATIVE & (EARLY == 0)),
    )


# Of five that an H200 timed, none was over 0.2 % slower early on a size for which it is the best of them; products of
# few rows have both.
_EARLY_IF_WHOLE = (SPLITS != 1) | (EARLY == 1)


def _requires(b: str = "nk") -> tuple[Expr, ...]:
    """What TMA asks of pointers and strides, B being `b`; an absent tensor counts as row-major and aligned."""
    inner, outer = (0, 1) if b == "nk" else (1, 0)
    return (
        stride("a", 1) == 1,
        stride("b", inner) == 1,
        stride("bias", 0) == 1,
        stride("residual", 1) == 1,
        stride("out", 1) == 1,
        *(s % 8 == 0 for s in (stride("a", 0), stride("b", outer), stride("out", 0))),
        *(s > 0 for s in (stride("a", 0), stride("b", outer), stride("out", 0))),
        # TMA clips a tile at whole 16 bytes: beyond them it would read and write what is not the tensor's.
        N % 8 == 0,
        K % 8 == 0,
        (present("residual") == 0) | ((stride("residual", 0) % 8 == 0) & (stride("residual", 0) > 0)),
        *(alignment(t) >= 16 for t in ("a", "b", "residual", "out")),
        (M < 2**31) & (N < 2**31) & (K < 2**31),
    )


def _parameters(swap: bool, **values: tuple[ConfigValue, ...]) -> tuple[Parameter, ...]:
    space: dict[str, tuple[ConfigValue, ...]] = {
        "SWAP": (swap,),
        "TM": (),
        "TN": (),
        "TK": (64, 128),
        "CM": (1, 2),
        "CN": (1, 2),
        "SCHEDULE": ("cooperative", "pingpong", "single"),
        "STAGES": (0,),
        "SPLITS": (1, 0, -1),
        "SWIZZLE": (1, 2, 4, 8),
        "RASTER": ("heuristic", "along_m", "along_n"),
        "EARLY": (True, False),
        "EPILOGUE": ("full",),
        "B": ("nk",),
    }
    return tuple(Parameter(name, v) for name, v in (space | values).items())


_TILE = {"M": TM, "N": TN, "K": TK}
_CLUSTER = {"M": CM, "N": CN}
_SHARED: dict[str, Any] = {
    "backend": "nvcc",
    "requires": _requires(),
    "dtypes": {"T": ("bf16", "f16")},
    "follows": {"f16": "bf16"},
    "compile_seconds": 40.0,
}

CUTLASS = Kernel(
    "cutlass",
    "gemm/cutlass/cutlass.cu.j2",
    parameters=_parameters(
        False,
        TM=(128, 64, 256),
        TN=(256, 224, 192, 160, 144, 128, 112, 96, 80, 64, 48, 32),
        TK=(64, 128),
        CM=(1, 2),
        CN=(1, 2, 4),
    ),
    constraints=(
        *_fits(2),
        _EARLY_IF_WHOLE,
        CM * CN <= 4,
        # Only where tiles are many does their order matter much.
        ((SWIZZLE == 1) & (RASTER == 0)) | ((SPLITS == 1) & (TM * TN == 128 * 256)),
        TM * TN >= 64 * 32,
    ),
    # Up to 64 rows swapped tiles are faster but where columns are many.
    worthwhile=(M > 16, N >= 64, (M > 64) | (N >= 6144)),
    # Without what is not here no product of the workload was more than 1 % slower on an H200, nor more than 3 % without
    # vendors' libraries. In brackets, sizes M x N of which the tiles fill its 132 multiprocessors nearly whole times.
    order=table(
        "TM TN TK CM CN SCHEDULE SPLITS SWIZZLE RASTER",
        (128, 128, 64, 1, 1, "pingpong", 1, 1, "heuristic"),
        (128, 224, 64, 2, 1, "cooperative", 1, 1, "heuristic"),  # [x 3584, 256 x 14336]
        (128, 64, 64, 1, 1, "cooperative", 1, 1, "heuristic"),  # [1024 x 1024]
        (128, 256, 64, 2, 1, "cooperative", 1, 1, "along_m"),  # [4096 x 4096, 1024 x 4096]
        (128, 128, 64, 1, 1, "cooperative", -1, 1, "heuristic"),  # [few tiles, long K]
        (256, 144, 64, 1, 1, "cooperative", 1, 1, "heuristic"),  # [256 x 18944, 1024 x 4608]
        (128, 80, 64, 2, 1, "cooperative", 1, 1, "heuristic"),  # [1024 x 1280]
    ),
    tile=_TILE,
    cluster=_CLUSTER,
    occupancy=1 + SINGLE,
    split=maximum(SPLITS, 1),
    **_SHARED,
)

# Few rows: the tiles' longer side is along N.
_FEW = table(
    "TN SCHEDULE EARLY",
    (16, "single", True),
    (16, "pingpong", True),
    (32, "pingpong", False),  # [64 x 4096 x 14336: 1.14 times as fast as if early]
    (32, "pingpong", True),
)

_SPACE_OF_FEW = _parameters(
    True,
    TM=(64,),
    TN=(16, 32),
    TK=(128,),
    CM=(1,),
    CN=(1,),
    SPLITS=(1,),
    SWIZZLE=(1,),
    RASTER=("heuristic",),
)

CUTLASS_SWAPPED = Kernel(
    "cutlass_swapped",
    "gemm/cutlass/cutlass.cu.j2",
    parameters=_SPACE_OF_FEW,
    constraints=(*_fits(2), among(_SPACE_OF_FEW, _FEW)),
    worthwhile=(M > 4, M <= 128, N >= 64),
    order=_FEW,
    tile={"M": TN, "N": TM, "K": TK},
    cluster={"M": CN, "N": CM},
    occupancy=1 + SINGLE,
    **_SHARED,
)

_TF32 = table(
    "TM TN CM CN SCHEDULE",
    (128, 128, 2, 1, "pingpong"),
    (128, 256, 2, 1, "cooperative"),
    (128, 224, 2, 1, "cooperative"),  # [1024 x 3584, 4096 x 3584]
)

_SPACE_OF_TF32 = _parameters(
    False,
    TM=(128,),
    TN=(256, 224, 128),
    TK=(32,),
    CM=(2,),
    CN=(1,),
    SPLITS=(1,),
    SWIZZLE=(1,),
    RASTER=("heuristic",),
)

CUTLASS_TF32 = Kernel(
    "cutlass_tf32",
    "gemm/cutlass/cutlass.cu.j2",
    parameters=_SPACE_OF_TF32,
    constraints=(*_fits(4), _EARLY_IF_WHOLE, among(_SPACE_OF_TF32, _TF32)),
    worthwhile=(M > 16, N >= 64),
    order=_TF32,
    tile=_TILE,
    cluster=_CLUSTER,
    occupancy=1 + SINGLE,
    **_SHARED
    | {
        "requires": (attribute("math") == 1, *(r for r in _requires())),
        "dtypes": {"T": ("f32",)},
        "follows": {},
    },
)

# The same by f16, of which Hopper makes twice as many: worth it where that saves more than making the halves costs, six
# bytes of traffic for each element of both factors. An H200 took 295 us for 4096 x 4096 x 4096 and a residual, not 401,
# about as long for 1024 rows, longer for 512; where a row does not fit, 1254.
_HALVES = table(
    "TN",
    (256,),  # [1024 x 4096, 4096 x 4096]
    (224,),  # [1024 x 3584, 4096 x 3584]
)

_SPACE_OF_HALVES = (
    *_parameters(
        False,
        TM=(128,),
        TN=(256, 224),
        TK=(64,),
        CM=(2,),
        CN=(1,),
        SCHEDULE=("cooperative",),
        SPLITS=(1,),
        SWIZZLE=(1,),
        RASTER=("heuristic",),
        EARLY=(True,),
    ),
    Parameter("HALVES", (True,)),
)

CUTLASS_TF32_HALVES = Kernel(
    "cutlass_tf32_halves",
    "gemm/cutlass/cutlass.cu.j2",
    parameters=_SPACE_OF_HALVES,
    constraints=(target("wgmma") == 1,),
    worthwhile=(M * N >= 640 * (M + N), K >= 512),
    order=_HALVES,
    tile=_TILE,
    cluster=_CLUSTER,
    occupancy=1 + SINGLE,
    **_SHARED
    | {
        "requires": (attribute("math") == 1, M + N < 2**31 - 4, *_requires()),
        "dtypes": {"T": ("f32",)},
        "follows": {},
        "compile_seconds": 60.0,
    },
)

# Weights that are kept by rows: their tiles reach the matrix units transposed, which tf32 cannot.
_ROWS = table(
    "TM TN TK CM CN SCHEDULE SPLITS",
    (64, 128, 128, 2, 1, "pingpong", 1),
    (128, 128, 64, 2, 1, "pingpong", 1),
    (128, 256, 64, 2, 1, "cooperative", 1),
)

_SPACE_OF_ROWS = _parameters(
    False,
    TM=(128, 64),
    TN=(256, 128),
    SPLITS=(1,),
    SWIZZLE=(1,),
    RASTER=("heuristic",),
    B=("kn",),
)

CUTLASS_KN = Kernel(
    "cutlass_kn",
    "gemm/cutlass/cutlass.cu.j2",
    parameters=_SPACE_OF_ROWS,
    constraints=(*_fits(2), _EARLY_IF_WHOLE, among(_SPACE_OF_ROWS, _ROWS)),
    worthwhile=(M >= 64, N >= 64),
    order=_ROWS,
    tile=_TILE,
    cluster=_CLUSTER,
    occupancy=1 + SINGLE,
    **_SHARED | {"requires": _requires("kn")},
)

CUTLASS_KERNELS: tuple[Kernel, ...] = (
    CUTLASS,
    CUTLASS_SWAPPED,
    CUTLASS_KN,
    CUTLASS_TF32,
    CUTLASS_TF32_HALVES,
)
