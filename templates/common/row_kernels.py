"""What operators of rows share: tensors of R rows, of D elements that are reduced or mapped together."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import (
    Config,
    Expr,
    Kernel,
    Parameter,
    TritonFunction,
    alignment,
    among,
    ceildiv,
    dims,
    maximum,
    next_power_of_2,
    parameter,
    stride,
    table,
    target,
)

R, D = dims("R D")
VECTORS, BLOCK, RESIDENT, STREAM = (parameter(name) for name in ("VECTORS", "BLOCK", "RESIDENT", "STREAM"))
CLUSTER, THREADS = parameter("CLUSTER"), parameter("THREADS")

OF_ROWS: dict[str, Any] = {
    "dims": ("R", "D"),
    "fold": "R",
    "dtypes": {"T": ("f32", "bf16", "f16")},
    "intermediates": "f32",
    "ranges": {"R": (1, 65536), "D": (32, 262144)},
    "regimes": {"one row": (R == 1,), "few rows": (R <= 256,), "many rows": (R > 256,)},
}
"""Arguments that the operators have in common."""

HOPPER: Expr = target("capability") == 90
"""Where kernels have few configs: an H200 measured more, and without the others no problem was 1 % slower."""

EARLY: Expr = target("capability") >= 90
"""Where GPUs have launches of kernels that begin before the one in front of them has ended."""

BEYOND_CACHES = (R * D >= 3145728,)
"""Elements: streaming stores have nothing to offer where the output stays in a cache."""

WHOLE_LINES: Expr = (D % 32 == 0) | (D >= 1024)
"""They want to fill cache lines: rows begin and end with them, or have many."""

FULL_VECTORS: Expr = parameter("W") * 4 == target("vector_bytes")


def unit_strides(**axes: int) -> tuple[Expr, ...]:
    """Elements follow each other along the given axis of each tensor: kernels read and write whole vectors."""
    return tuple(stride(tensor, axis) == 1 for tensor, axis in axes.items())


def whole_pieces(**axes: int) -> tuple[Expr, ...]:
    """Every row is a whole number of pieces of 16 bytes, which CUDA kernels read and write. Axes are of elements."""
    rows = (tensor for tensor, axis in axes.items() if axis == 1)
    aligned = (alignment(tensor) >= 16 for tensor in axes)
    return (*unit_strides(**axes), D % 8 == 0, *(stride(tensor, 0) % 8 == 0 for tensor in rows), *aligned)


def cpu_kernels(operator: str, rows: dict[str, Any], streaming: dict[str, Any]) -> tuple[Kernel, ...]:
    """The generic kernel, `rows` for rows in a cache, and `streaming` for more; these with their own arguments."""
    dtypes = {"dtypes": OF_ROWS["dtypes"]}
    vectors = Parameter("W", (4, 8, 16))

    def kernel(name: str, parameters: tuple[Parameter, ...], **more: Any) -> Kernel:
        of_vectors = {"constraints": (FULL_VECTORS,), "follows": {"f16": "bf16"}, "parameters": (vectors, *parameters)}
        return Kernel(name, f"{operator}/{name}.cpp.j2", **(dtypes | of_vectors | more))

    return (
        Kernel("generic", f"{operator}/generic.cpp.j2", generic=True, **dtypes),
        kernel("rows", **rows),
        kernel("streaming", **{"worthwhile": (*BEYOND_CACHES, WHOLE_LINES), **streaming}),
    )


def cuda_kernel(operator: str, name: str, template: str = "", **more: Any) -> Kernel:
    """A kernel in CUDA, by default with the template of its name."""
    shared = {"backend": "nvcc", "follows": {"f16": "bf16"}, "compile_seconds": 4.0}
    return Kernel(name, f"{operator}/{template or name}.cu.j2", **(shared | more))


def cuda_generic(operator: str) -> Kernel:
    """The kernel for any strides and alignment."""
    return Kernel("cuda_generic", f"{operator}/cuda_generic.cu.j2", backend="nvcc", generic=True)


def cuda_rows(operator: str, vectors: tuple[int, ...], requires: tuple[Expr, ...]) -> Kernel:
    """Rows that blocks or warps hold in registers, in up to so many `vectors` of a thread."""
    parameters = (
        Parameter("VECTORS", vectors),
        Parameter("BLOCK", (128, 256)),
        Parameter("RESIDENT", (0, 512, 1024)),
        Parameter("STREAM", (False, True)),
    )
    # An H200 timed others, too, on problems from 4 MB on: one was 2 % faster on one of them. STREAM was up to 10 %
    # faster where a call takes as much as L2 holds, and by what else was there 3 to 6 % slower than a race said.
    on_hopper = table("VECTORS BLOCK RESIDENT STREAM", (4, 128, 0, False), (2, 128, 0, False))
    order = table(
        "VECTORS BLOCK RESIDENT STREAM",
        (4, 128, 0, False),
        (2, 128, 0, False),
        (1, 128, 0, False),
        (4, 128, 512, False),
        (2, 128, 1024, False),
        (4, 128, 0, True),
        (8, 128, 0, False),
        (4, 256, 0, False),
    )
    return cuda_kernel(
        operator,
        "cuda_rows",
        parameters=parameters,
        constraints=(
            ~HOPPER | among(parameters, on_hopper),
            (BLOCK == 128) | ((STREAM == 0) & (RESIDENT == 0)),
            (RESIDENT == 0) | (STREAM == 0),
            # As many threads as have room for two rows' pieces in their registers.
            (RESIDENT == 0) | (VECTORS * RESIDENT == 2048),
        ),
        requires=requires,
        worthwhile=(D <= 32768,),
        order=tuple(config for config in order if config["VECTORS"] in vectors),
        tile={"R": 1, "D": 128 * VECTORS},
    )


def cuda_rows_few(operator: str, requires: tuple[Expr, ...], *constraints: Expr) -> Kernel:
    """Few rows, which take as long as their weights need from memory. These come while the kernel before is at work.

    In one race on an H200 a row of 4096 in f16 took 1.18 us instead of 1.31.
    """
    return cuda_kernel(
        operator,
        "cuda_rows_few",
        "cuda_rows",
        parameters=(
            Parameter("VECTORS", (1, 2)),
            Parameter("BLOCK", (128,)),
            Parameter("RESIDENT", (0,)),
            Parameter("STREAM", (False,)),
            Parameter("AHEAD", (True,)),
        ),
        constraints=(EARLY, *constraints),
        requires=requires,
        worthwhile=(R <= 256,),
        tile={"R": 1, "D": 128 * VECTORS},
    )


PEELED_NORM = table(
    "CLUSTER VECTORS THREADS",
    (1, 1, 512),
    (1, 2, 512),
    (1, 4, 384),
    (2, 4, 512),
    (2, 8, 384),
    (4, 8, 384),
    (8, 4, 512),
    (8, 8, 384),
    (8, 2, 256),
    (8, 1, 512),
)


def cuda_peeled(
    operator: str, requires: tuple[Expr, ...], uneven: Expr, order: tuple[Config, ...] = PEELED_NORM
) -> Kernel:
    """Rows of any width and alignment, in clusters."""
    parameters = (
        Parameter("CLUSTER", (1, 2, 4, 8)),
        Parameter("VECTORS", (1, 2, 4, 8)),
        Parameter("THREADS", tuple(sorted({config["THREADS"] for config in order}))),
    )
    return cuda_kernel(
        operator,
        "cuda_peeled",
        parameters=parameters,
        constraints=(among(parameters, order), (CLUSTER == 1) | EARLY),
        requires=requires,
        worthwhile=(uneven,),
        order=order,
        compile_seconds=8.0,
        tile={"R": 1, "D": 4 * VECTORS * THREADS},
        cluster={"D": CLUSTER},
    )


def triton_kernel(
    function: str, name: str, axes: dict[str, int], arguments: dict[str, Any], grid: Any = (R,), **more: Any
) -> Kernel:
    """A kernel by Triton, whose function takes the step between rows of each tensor that has rows, and EARLY."""
    steps = {f"{tensor}_row": stride(tensor, 0) for tensor, axis in axes.items() if axis == 1}
    told = {**steps, "EARLY": EARLY, **arguments}
    shared: dict[str, Any] = {
        "triton": TritonFunction(function, arguments=told, grid=grid, launch_pdl=True),
        "backend": "triton",
        "requires": (R < 2**31, *unit_strides(**axes)),
        "follows": {"f16": "bf16"},
        "compile_seconds": 2.0,
    }
    return Kernel(name, **(shared | more))


def triton_rows(function: str, axes: dict[str, int], widest: int, *warps: int, **more: Any) -> Kernel:
    """A row of a program, whole, of up to `widest` elements; with so many warps."""
    arguments = {"BLOCK_R": 1, "BLOCK_D": next_power_of_2(D)}
    listed = table("num_warps", *((count,) for count in warps))
    worthwhile = (D > 512, widest >= D)
    return triton_kernel(
        function, "triton_rows", axes, arguments, listed=listed, worthwhile=worthwhile, tile={"R": 1}, **more
    )


def triton_tiles(
    function: str,
    axes: dict[str, int],
    widest: int,
    least: int,
    *configs: tuple[int, int],
    on_hopper: Expr,
    name: str = "triton_tiles",
) -> Kernel:
    """Rows of up to `widest` elements, at least so many, several to a program; a config is its elements and warps."""
    arguments = {
        "BLOCK_R": maximum(parameter("ELEMENTS") // next_power_of_2(D), 1),
        "BLOCK_D": next_power_of_2(D),
    }
    return triton_kernel(
        function,
        name,
        axes,
        arguments,
        lambda meta: (ceildiv(R, meta["BLOCK_R"]),),
        listed=table("ELEMENTS num_warps", *configs),
        constraints=(~HOPPER | on_hopper,),
        worthwhile=(widest >= D, least <= R),
    )
