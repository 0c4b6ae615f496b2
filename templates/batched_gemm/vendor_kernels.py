"""Batches of matrix products of vendors' libraries."""

from __future__ import annotations

from collections.abc import Mapping

from aot_tune.spec import (
    Expr,
    Kernel,
    Parameter,
    Problem,
    alignment,
    attribute,
    dims,
    dtype_index,
    row_major,
    stride,
    table,
)

B, M, N, K = dims("B M N K")


def product(problem: Problem) -> Mapping[str, object]:
    """A problem whose layout the guards allow, as `aot_tune.vendor.cublaslt` takes it."""
    extents = problem.dims
    answer: dict[str, object] = {
        "m": extents["M"],
        "n": extents["N"],
        "k": extents["K"],
        "batch": extents["B"],
        "dtype": problem.dtypes.get("T", "f32"),
        "math": problem.attributes.get("math", "ieee"),
    }
    for name, letter, axes in (("a", "a", "BMK"), ("b", "b", "BKN"), ("out", "d", "BMN")):
        shape = [extents[axis] for axis in axes]
        batch, row, column = problem.strides.get(name) or row_major(shape, problem.order.get(name))
        by_columns = not (column == 1 and row >= shape[2])
        answer[f"next_{letter}"] = batch
        answer[f"ld{letter}"] = column if by_columns else row
        if name != "out":
            answer[f"{name}_by_columns"] = by_columns
    return answer


def _whole(tensor: str, rows: Expr, columns: Expr) -> Expr:
    """Whether rows, or columns, of matrices are whole pieces of 16 bytes, of 8 elements at most."""
    batch, row, column = stride(tensor, 0), stride(tensor, 1), stride(tensor, 2)
    by_rows = (column == 1) & (row >= columns) & (row % 8 == 0) & (columns % 8 == 0)
    by_columns = (row == 1) & (column >= rows) & (column % 8 == 0) & (rows % 8 == 0)
    return (by_rows | by_columns) & (batch >= 0) & (batch % 8 == 0) & (alignment(tensor) >= 16)


WHOLE = _whole("a", M, K) & _whole("b", K, N) & _whole("out", M, N) & (stride("out", 0) >= N) & (stride("out", 2) == 1)
"""What the library's fast kernels ask for, with results by rows."""

COPIED = ((dtype_index("T") != 0) | (attribute("math") == 1)) & (M >= 128) & (N >= 128) & (K >= 128)
COPIED &= B * M * N * K >= 500_000_000
"""Where copies pay that are whole, as `gemm/vendor/any_strides.h.j2` has it: then the library's own way is out."""


CUBLASLT = Kernel(
    "cublaslt",
    "batched_gemm/cublaslt.cpp.j2",
    backend="cublaslt",
    parameters=(Parameter("ALGO", (-1,)),),  # the library's own choice; its algorithms come beside it
    algorithms=product,
    follows={"f16": "bf16"},
    worthwhile=(WHOLE | ~COPIED,),
    requires=(
        (stride("a", 2) == 1) & (stride("a", 1) >= K) | (stride("a", 1) == 1) & (stride("a", 2) >= M),
        (stride("b", 2) == 1) & (stride("b", 1) >= N) | (stride("b", 1) == 1) & (stride("b", 2) >= K),
        stride("out", 2) == 1,
        stride("out", 1) >= N,
        # One matrix may serve all products; results of two have to be apart.
        stride("a", 0) >= 0,
        stride("b", 0) >= 0,
        stride("out", 0) >= N,
        *(alignment(t) >= 16 for t in ("a", "b", "out")),
        B < 2**31,
    ),
)


# Where the others take nothing, or the library what is slow to read: any strides and addresses, by copies where needed.
ANY_STRIDES = Kernel(
    "cublaslt_any",
    "batched_gemm/any_strides.cu.j2",
    backend="nvcc",
    stages=("copies", "cublaslt"),
    listed=table("PACK WORK", (128, 500), (64, 500)),
    follows={"f16": "bf16"},
    requires=(B < 2**31,),
    worthwhile=(~WHOLE,),
    fills_in=True,
)
