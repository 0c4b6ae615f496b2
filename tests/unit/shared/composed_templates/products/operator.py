"""Batches of products with an epilogue: the composed kernel of gemm, in batches."""

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
    ceildiv,
    dims,
    problem,
    table,
)
from aot_tune.spec.reference import activation

B, M, N, K = dims("B M N K")
EPILOGUE = Epilogue("out", (AddTensor("bias", (0, 2)), Activate("activation")))


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition."""
    value = xp.matmul(call.a, call.b)
    if call.bias is not None:
        value = value + call.bias[:, None, :]
    return {"out": activation(xp, call.activation, value)}


operator = Operator(
    name="products",
    dims=("B", "M", "N", "K"),
    tensors=(
        Tensor("a", (B, M, K), "T"),
        Tensor("b", (B, K, N), "T"),
        Tensor("bias", (B, N), "T", optional=True),
        Tensor("out", (B, M, N), "T", output=True),
    ),
    dtypes={"T": ("f32", "bf16", "f16")},
    intermediates="f32",
    attributes=(Attribute("activation", ("none", "gelu")), Attribute("math", ("ieee", "tf32"))),
    epilogue=EPILOGUE,
    reference=reference,
    flops=2 * B * M * N * K,
    workload=(problem(B=2, M=8, N=8, K=8),),
    kernels=(
        Kernel("generic", "products/generic.cpp.j2", generic=True, dtypes={"T": ("f32",)}),
        Kernel(
            "cublaslt_then_epilogue",
            "products/then_epilogue.cu.j2",
            backend="nvcc",
            stages=("cublaslt", "epilogue"),
            scratch=B * M * (ceildiv(N, 8) * 8) * 4,
            listed=table("SCRATCH VECTORS", (True, 2)),
            worthwhile=(EPILOGUE.applies,),
        ),
    ),
)
