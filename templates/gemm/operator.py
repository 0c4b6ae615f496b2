"""Matrix product with an epilogue: out = activation(a @ b + bias) + residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aot_tune.spec import (
    Activate,
    AddTensor,
    Attribute,
    Baseline,
    Call,
    Epilogue,
    Kernel,
    Operator,
    Problem,
    Tensor,
    dims,
    present,
    problem,
)
from aot_tune.spec.reference import activation

M, N, K = dims("M N K")

TRANSPOSED_B = {"b": (1, 0)}
"""Weights as linear layers keep them: rows of b's memory are columns of the product."""


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition, in whole arrays."""
    value = xp.matmul(call.a, call.b)
    if call.bias is not None:
        value = value + call.bias
    value = activation(xp, call.activation, value)
    if call.residual is not None:
        value = value + call.residual
    return {"out": value}


def numpy_matmul(numpy: Any, call: Call) -> Callable[[], object]:
    """numpy's product into the output, without an epilogue."""
    return lambda: numpy.matmul(call.a, call.b, out=call.out)


def torch_matmul(torch: Any, call: Call) -> Callable[[], object]:
    """torch's product into the output, without an epilogue."""
    return lambda: torch.matmul(call.a, call.b, out=call.out)


def workload() -> tuple[Problem, ...]:
    """Layers of Llama-3-8B, BERT-base and MobileNet's pointwise convolutions, cut to what two cores tune in minutes."""
    found = []
    for m in (1, 16, 64, 256):
        found.append(problem(M=m, N=4096, K=4096, order=TRANSPOSED_B))  # Llama-3-8B attention output
    for m in (1, 16):
        found.append(problem(M=m, N=14336, K=4096, order=TRANSPOSED_B, attributes={"activation": "silu"}))  # gate
        found.append(problem(M=m, N=4096, K=14336, order=TRANSPOSED_B, present=["residual"]))  # down
        found.append(problem(M=m, N=4096, K=4096))
    for m in (1, 16, 64, 256, 1024):
        found.append(problem(M=m, N=768, K=768, order=TRANSPOSED_B, present=["bias"]))  # BERT-base attention
    for m in (16, 256):
        gelu = {"activation": "gelu"}
        found.append(problem(M=m, N=3072, K=768, order=TRANSPOSED_B, present=["bias"], attributes=gelu))
        found.append(problem(M=m, N=768, K=3072, order=TRANSPOSED_B, present=["bias", "residual"]))
    relu = {"activation": "relu"}
    for m, n, k in ((3136, 128, 64), (784, 256, 256), (196, 512, 512), (49, 1024, 1024)):  # MobileNet
        found.append(problem(M=m, N=n, K=k, order=TRANSPOSED_B, present=["bias"], attributes=relu))
    return tuple(found)


operator = Operator(
    name="gemm",
    documentation="out = activation(a @ b + bias) + residual; b may be stored by rows or by columns.",
    dims=("M", "N", "K"),
    tensors=(
        Tensor("a", (M, K)),
        Tensor("b", (K, N), cold=True),
        Tensor("bias", (N,), optional=True),
        Tensor("residual", (M, N), optional=True),
        Tensor("out", (M, N), output=True),
    ),
    attributes=(Attribute("activation", ("none", "relu", "gelu", "gelu_tanh", "silu")),),
    epilogue=Epilogue("out", (AddTensor("bias", (1,)), Activate("activation"), AddTensor("residual", (0, 1)))),
    reference=reference,
    flops=2 * M * N * K + present("bias") * M * N + present("residual") * M * N,
    workload=workload(),
    baselines=(
        Baseline("numpy.matmul", "numpy", numpy_matmul),
        Baseline("torch.matmul", "torch", torch_matmul),
    ),
    kernels=(Kernel("generic", "gemm/generic.cpp.j2", generic=True),),
)
