"""The operator `mixed` with an epilogue that computes formulas between its steps."""

from __future__ import annotations

from typing import Any

from aot_tune.spec import AddTensor, Attribute, Call, Compute, Epilogue, Kernel, Operator, Tensor, dims, problem, table
from aot_tune.spec import elementwise as el

B, M, N = dims("B M N")
x = el.value()
EPILOGUE = Epilogue(
    "out",
    (
        Compute(el.where(el.choice("activation", "silu"), el.silu(x), el.maximum(x, el.element("of_rows", 0, 1)))),
        AddTensor("of_columns", (2,)),
        Compute(x * (el.index(2) % 3 - el.index(0)) + el.element("turned", 2, 1)),
        AddTensor("every", (0, 1, 2)),
    ),
)


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition."""
    value, k = 2 * call.x, xp.arange(call.x.shape[2]) % 3 - xp.arange(call.x.shape[0])[:, None, None]
    rows = 0 * value if call.of_rows is None else call.of_rows[:, :, None]
    value = value / (1 + xp.exp(-value)) if call.activation == "silu" else xp.maximum(value, rows)
    value = (value if call.of_columns is None else value + call.of_columns) * k
    value = value if call.turned is None else value + call.turned.T
    return {"out": value if call.every is None else value + call.every}


operator = Operator(
    name="formed",
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
    flops=9 * B * M * N,
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
