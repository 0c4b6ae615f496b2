"""A composed kernel without a vendor's stage, on an operator whose epilogue adds tensors in every way."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import (
    Activate,
    AddTensor,
    Attribute,
    Call,
    Epilogue,
    Kernel,
    Operator,
    Tensor,
    dims,
    problem,
    table,
)
from aot_tune.spec.reference import activation

B, M, N = dims("B M N")
EPILOGUE = Epilogue(
    "out",
    (
        AddTensor("of_rows", (0, 1)),
        Activate("activation"),
        AddTensor("turned", (2, 1)),
        AddTensor("of_columns", (2,)),
        AddTensor("every", (0, 1, 2)),
    ),
)


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition."""
    value = 2 * call.x
    if call.of_rows is not None:
        value = value + call.of_rows[:, :, None]
    value = activation(xp, call.activation, value)
    if call.turned is not None:
        value = value + call.turned.T
    if call.of_columns is not None:
        value = value + call.of_columns
    if call.every is not None:
        value = value + call.every
    return {"out": value}


operator = Operator(
    name="mixed",
    dims=("B", "M", "N"),
    tensors=(
        Tensor("x", (B, M, N), "T"),
        Tensor("of_rows", (B, M), "T", optional=True),
        Tensor("turned", (N, M), "T", optional=True),
        Tensor("of_columns", (N,), "T", optional=True),
        Tensor("every", (B, M, N), "T", optional=True),
        Tensor("out", (B, M, N), "T", output=True),
    ),
    dtypes={"T": ("f32", "bf16", "f16")},
    intermediates="f32",
    attributes=(Attribute("activation", ("none", "silu")),),
    epilogue=EPILOGUE,
    reference=reference,
    flops=6 * B * M * N,
    workload=(problem(B=2, M=64, N=64),),
    kernels=(
        Kernel("generic", "mixed/generic.cpp.j2", generic=True, dtypes={"T": ("f32",)}),
        Kernel(
            "doubled_then_epilogue",
            "mixed/doubled.cu.j2",
            backend="nvcc",
            stages=("doubled", "epilogue"),
            scratch=B * M * N * 4,
            listed=table("VECTORS", (1,), (3,)),
            worthwhile=(EPILOGUE.applies,),
        ),
    ),
)
