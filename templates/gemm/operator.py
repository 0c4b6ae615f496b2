"""Matrix product with an epilogue: out = activation(a @ b + bias) + residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aot_tune.spec import (
    Attribute,
    Baseline,
    Call,
    IntegerSums,
    Operator,
    Problem,
    Tensor,
    attribute,
    dims,
    present,
)
from aot_tune.spec.reference import activation

from .cpu.cpu_kernels import CPU_KERNELS
from .cuda.cuda_kernels import CUDA_KERNELS
from .cuda.few_rows.even_shares_kernels import THIN_KERNELS
from .cuda.wgmma.bf16x6_kernels import BF16X6_KERNELS
from .cuda.wgmma.wgmma_kernels import WGMMA_KERNELS
from .cutlass.cutlass_kernels import CUTLASS_KERNELS
from .triton.triton_kernels import TRITON_KERNELS
from .vendor.vendor_kernels import ANY_STRIDES, CBLAS, CUBLASLT, EPILOGUE, THEN_EPILOGUE
from .workload import cpu_workload, cuda_workload

M, N, K = dims("M N K")


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
    """torch's product into the output, without an epilogue, in the math mode of the call."""
    if not call.a.is_cuda:
        return lambda: torch.matmul(call.a, call.b, out=call.out)

    def product() -> None:
        torch.backends.cuda.matmul.allow_tf32 = call.math == "tf32"
        torch.matmul(call.a, call.b, out=call.out)

    return product


def has_epilogue(given: Problem) -> bool:
    """Whether a call is more than a product."""
    return bool(given.present) or given.attributes.get("activation", "none") != "none"


operator = Operator(
    name="gemm",
    documentation="out = activation(a @ b + bias) + residual; b may be stored by rows or by columns.",
    dims=("M", "N", "K"),
    tensors=(
        Tensor("a", (M, K), "T"),
        Tensor("b", (K, N), "T", cold=True),
        Tensor("bias", (N,), "T", optional=True),
        Tensor("residual", (M, N), "T", optional=True),
        Tensor("out", (M, N), "T", output=True),
    ),
    dtypes={"T": ("f32", "bf16", "f16")},
    intermediates="f32",
    attributes=(
        Attribute("activation", ("none", "relu", "gelu", "gelu_tanh", "silu")),
        Attribute(
            "math", ("ieee", "tf32"), mode=True
        ),  # of f32 products: ieee keeps all bits of the factors, tf32 ten of them
    ),
    epilogue=EPILOGUE,
    reference=reference,
    exact=IntegerSums(K, thinned="b", requires=(attribute("activation") <= 1,)),  # none and relu
    fold="M",
    flops=2 * M * N * K + present("bias") * M * N + present("residual") * M * N,
    ranges={"M": (1, 16384), "N": (128, 65536), "K": (128, 32768)},
    regimes={"one row": (M == 1,), "few rows": (M <= 64,), "short sums": (K <= 1024,), "many rows": (M > 64,)},
    workload={"cpu": cpu_workload(), "cuda": cuda_workload()},
    baselines=(
        Baseline("numpy.matmul", "numpy", numpy_matmul, partial=has_epilogue),
        Baseline("torch.matmul", "torch", torch_matmul, partial=has_epilogue),
    ),
    kernels=(
        *CPU_KERNELS,
        *CBLAS,
        *CUDA_KERNELS,
        *THIN_KERNELS,
        *WGMMA_KERNELS,
        *BF16X6_KERNELS,
        *CUTLASS_KERNELS,
        *TRITON_KERNELS,
        CUBLASLT,
        *THEN_EPILOGUE,
        ANY_STRIDES,
    ),
)
