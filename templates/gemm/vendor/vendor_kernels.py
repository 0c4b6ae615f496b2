"""Matrix products of vendors' libraries."""

from __future__ import annotations

from collections.abc import Mapping

from aot_tune.spec import (
    Activate,
    AddTensor,
    Epilogue,
    Expr,
    Kernel,
    Parameter,
    Problem,
    alignment,
    attribute,
    ceildiv,
    dims,
    dtype_index,
    parameter,
    present,
    stride,
    table,
)

M, N, K = dims("M N K")

NONE, RELU, GELU_TANH = 0, 1, 3
"""Indices of the operator's attribute `activation`."""

TF32 = 1
"""Index of the operator's attribute `math`."""

ACTIVATION: Expr = attribute("activation")

EPILOGUE = Epilogue("out", (AddTensor("bias", (1,)), Activate("activation"), AddTensor("residual", (0, 1))))

FACTORS: tuple[Expr, ...] = (
    (stride("a", 1) == 1) & (stride("a", 0) >= K) | (stride("a", 0) == 1) & (stride("a", 1) >= M),
    (stride("b", 1) == 1) & (stride("b", 0) >= N) | (stride("b", 0) == 1) & (stride("b", 1) >= K),
)


def _whole(tensor: str, rows: Expr, columns: Expr) -> Expr:
    """Whether a matrix's rows, or its columns, are whole pieces of 16 bytes, of 8 elements at most."""
    row, column = stride(tensor, 0), stride(tensor, 1)
    by_rows = (column == 1) & (row >= columns) & (row % 8 == 0) & (columns % 8 == 0)
    by_columns = (row == 1) & (column >= rows) & (column % 8 == 0) & (rows % 8 == 0)
    return (by_rows | by_columns) & (alignment(tensor) >= 16)


WHOLE = _whole("a", M, K) & _whole("b", K, N) & _whole("out", M, N) & (stride("out", 1) == 1)
"""What the library's fast kernels ask for, with the result by rows."""

COPIED = ((dtype_index("T") != 0) | (attribute("math") == TF32)) & (M >= 128) & (N >= 128) & (K >= 128)
COPIED &= M * N * K >= 500_000_000
"""Where copies pay that are whole, as `gemm/vendor/any_strides.h.j2` has it: then the library's own way is out."""


def product(problem: Problem) -> Mapping[str, object] | None:
    """A problem as `aot_tune.vendor.cublaslt` takes it; None where strides are given outright."""
    if problem.strides or "a" in problem.order:
        return None
    return {
        "m": problem.dims["M"],
        "n": problem.dims["N"],
        "k": problem.dims["K"],
        "dtype": problem.dtypes.get("T", "f32"),
        "math": problem.attributes.get("math", "ieee"),
        "b_by_columns": problem.order.get("b") == (1, 0),
        "activation": problem.attributes.get("activation", "none"),
        "bias": "bias" in problem.present,
        "residual": "residual" in problem.present,
    }


CUBLASLT = Kernel(
    "cublaslt",
    "gemm/vendor/cublaslt.cpp.j2",
    backend="cublaslt",
    parameters=(Parameter("ALGO", (-1,)),),  # the library's own choice; its algorithms come beside it
    algorithms=product,
    follows={"f16": "bf16"},
    worthwhile=(WHOLE | ~COPIED,),
    requires=(
        *FACTORS,
        stride("out", 1) == 1,
        stride("out", 0) >= N,
        stride("residual", 1) == 1,
        stride("residual", 0) >= N,
        stride("bias", 0) == 1,
        *(alignment(t) >= 16 for t in ("a", "b", "out", "residual", "bias")),
        # There is no SiLU and no GELU by erf, and the residual (beta * C) is added before the activation.
        (ACTIVATION == NONE) | (((ACTIVATION == RELU) | (ACTIVATION == GELU_TANH)) & (present("residual") == 0)),
        # Its GELU is exact enough for 16-bit results only: 4e-6 off in f32.
        (ACTIVATION != GELU_TANH) | (dtype_index("T") != 0),
    ),
)

# What users write where the library has no such epilogue: its product, then one elementwise kernel. Any bias and
# residual will do.
THEN_EPILOGUE = (
    Kernel(
        "cublaslt_then_epilogue",
        "gemm/vendor/then_epilogue.cu.j2",
        backend="nvcc",
        stages=("cublaslt", "epilogue"),
        listed=table("SCRATCH VECTORS", (False, 1), (False, 2)),
        follows={"f16": "bf16"},
        requires=(
            *FACTORS,
            stride("out", 1) == 1,
            stride("out", 0) >= N,
            *(alignment(t) >= 16 for t in ("a", "b", "out")),
        ),
        worthwhile=(EPILOGUE.applies, WHOLE | ~COPIED),
    ),
    Kernel(
        "cublaslt_f32_then_epilogue",
        "gemm/vendor/then_epilogue.cu.j2",
        backend="nvcc",
        stages=("cublaslt", "epilogue"),
        scratch=M * (ceildiv(N, 8) * 8) * 4,
        dtypes={"T": ("bf16", "f16")},
        listed=table("SCRATCH VECTORS", (True, 2)),
        follows={"f16": "bf16"},
        requires=(*FACTORS, *(alignment(t) >= 16 for t in ("a", "b"))),
        worthwhile=(EPILOGUE.applies, WHOLE | ~COPIED),
    ),
)


def no_algorithms(problem: Problem) -> None:
    """A CBLAS tells of no algorithms: it chooses."""
    del problem


_BY_ROWS = (*FACTORS, stride("out", 1) == 1, stride("out", 0) >= N)

# The CBLAS of the process, on CPUs: alone, and as users would write the rest.
CBLAS = (
    Kernel(
        "cblas",
        "gemm/vendor/cblas.cpp.j2",
        backend="cblas",
        dtypes={"T": ("f32",)},
        listed=table("EPILOGUE", (False,)),
        algorithms=no_algorithms,
        requires=(*_BY_ROWS, ACTIVATION == NONE, (present("bias") == 0) & (present("residual") == 0)),
    ),
    Kernel(
        "cblas_then_epilogue",
        "gemm/vendor/cblas.cpp.j2",
        backend="cblas",
        stages=("cblas", "epilogue"),
        dtypes={"T": ("f32",)},
        listed=table("EPILOGUE", (True,)),
        requires=_BY_ROWS,
        worthwhile=(EPILOGUE.applies,),
    ),
)


# Where the others take nothing, or the library what is slow to read: any strides and addresses, by copies where needed.
ANY_STRIDES = Kernel(
    "cublaslt_any",
    "gemm/vendor/any_strides.cu.j2",
    backend="nvcc",
    stages=("copies", "cublaslt", "epilogue"),
    listed=table("PACK WORK VECTORS", (128, 500, 2), (64, 500, 2)),
    follows={"f16": "bf16"},
    # Of floats copies take twice as long, and what they save is half as much.
    worthwhile=(~WHOLE, (dtype_index("T") != 0) | (parameter("PACK") >= 128)),
    fills_in=True,
)
