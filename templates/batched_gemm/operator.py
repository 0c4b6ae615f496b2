"""Matrix products of many pairs: out[i] = a[i] @ b[i]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aot_tune.spec import Attribute, Baseline, Call, IntegerSums, Operator, Problem, Tensor, dims, minimum, problem

from .kernels import KERNELS

B, M, N, K = dims("B M N K")

TRANSPOSED_B = {"b": (0, 2, 1)}
"""Keys as attention keeps them: K contiguous."""


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition, in whole arrays."""
    return {"out": xp.matmul(call.a, call.b)}


def numpy_matmul(numpy: Any, call: Call) -> Callable[[], object]:
    """numpy's products into the output."""
    return lambda: numpy.matmul(call.a, call.b, out=call.out)


def torch_bmm(torch: Any, call: Call) -> Callable[[], object]:
    """torch's batched product into the output."""
    return lambda: torch.bmm(call.a, call.b, out=call.out)


def cpu_workload() -> tuple[Problem, ...]:
    """Scores and values of attention, of a token alone too; small products in big batches, large ones, odd sizes.

    And gradients, whose a is by columns, and heads beside each other. In f32; some of attention's in bf16.
    """
    found = []
    for heads, queries, keys, width in ((12, 64, 64, 64), (12, 384, 384, 64), (64, 1, 512, 64), (32, 8, 512, 64)):
        found.append(problem(B=heads, M=queries, N=keys, K=width, order=TRANSPOSED_B))
        found.append(problem(B=heads, M=queries, N=width, K=keys))
    for b, m, n, k in ((256, 32, 32, 32), (512, 17, 33, 65), (1, 1000, 1000, 1000), (7, 129, 333, 777)):
        found.append(problem(B=b, M=m, N=n, K=k, order=TRANSPOSED_B))
        found.append(problem(B=b, M=m, N=n, K=k))
    found.append(problem(B=2, M=512, N=2048, K=512, order=TRANSPOSED_B))
    for order in ({"a": (0, 2, 1)}, {"a": (0, 2, 1), **TRANSPOSED_B}):
        found.append(problem(B=12, M=384, N=64, K=384, order=order))
        found.append(problem(B=32, M=3, N=64, K=1024, order=order))
    found.append(problem(B=12, M=256, N=256, K=64, order={"a": (1, 0, 2), "b": (2, 0, 1)}))
    found.append(problem(B=256, M=8, N=33, K=65, order=TRANSPOSED_B, dtypes={"T": "bf16"}))
    for heads, queries, keys, width in ((12, 384, 384, 64), (64, 1, 512, 64)):
        found.append(problem(B=heads, M=queries, N=keys, K=width, order=TRANSPOSED_B, dtypes={"T": "bf16"}))
        found.append(problem(B=heads, M=queries, N=width, K=keys, dtypes={"T": "bf16"}))
    return tuple(found)


def cuda_workload() -> tuple[Problem, ...]:
    """Scores (queries times keys) and values of attention: heads times sequences, lengths, widths of heads."""
    found = []
    for heads, length, width in ((128, 128, 64), (64, 512, 64), (32, 1024, 128)):
        found.append(problem(B=heads, M=length, N=length, K=width, order=TRANSPOSED_B, dtypes={"T": "bf16"}))
        found.append(problem(B=heads, M=length, N=width, K=length, dtypes={"T": "bf16"}))
    for order in (TRANSPOSED_B, None):
        n, k = (512, 64) if order else (64, 512)
        found.append(problem(B=32, M=512, N=n, K=k, order=order, dtypes={"T": "f16"}))
        found.append(problem(B=32, M=512, N=n, K=k, order=order))
        found.append(problem(B=32, M=512, N=n, K=k, order=order, attributes={"math": "tf32"}))
        found.append(problem(B=32, M=1024, N=1023, K=127, order=order, dtypes={"T": "bf16"}))
    found.append(problem(B=16, M=197, N=197, K=64, order=TRANSPOSED_B, dtypes={"T": "bf16"}))
    return tuple(found)


operator = Operator(
    name="batched_gemm",
    documentation="out[i] = a[i] @ b[i]; each b may be stored by rows or by columns.",
    dims=("B", "M", "N", "K"),
    tensors=(
        Tensor("a", (B, M, K), "T"),
        Tensor("b", (B, K, N), "T"),
        Tensor("out", (B, M, N), "T", output=True),
    ),
    dtypes={"T": ("f32", "bf16", "f16")},
    intermediates="f32",
    attributes=(Attribute("math", ("ieee", "tf32"), mode=True),),  # of f32 products: tf32 rounds the factors to 10 bits
    reference=reference,
    exact=IntegerSums(K, thinned="b"),
    flops=2 * B * M * N * K,
    ranges={"B": (1, 1024), "M": (1, 4096), "N": (16, 4096), "K": (16, 4096)},
    # Narrow: as wide as a head of attention, in the result or along the sum.
    regimes={"one row": (M == 1,), "few rows": (M <= 32,), "narrow": (minimum(N, K) <= 128,), "wide": (M > 32,)},
    workload={"cpu": cpu_workload(), "cuda": cuda_workload()},
    baselines=(
        Baseline("numpy.matmul", "numpy", numpy_matmul),
        Baseline("torch.bmm", "torch", torch_bmm),
    ),
    kernels=KERNELS,
)
