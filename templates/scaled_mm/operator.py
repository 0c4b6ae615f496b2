"""Matrix product of floats of 8 bits, with scales of whole factors, of rows and columns, or of blocks of 128."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from aot_tune.spec import (
    AddTensor,
    Baseline,
    Call,
    Epilogue,
    IntegerSums,
    Kernel,
    Operator,
    Problem,
    Tensor,
    ceildiv,
    dims,
    problem,
    uniform,
)

from .gpu_kernels import BLOCKS, GPU_KERNELS

M, N, K, MA, KA, NB = dims("M N K MA KA NB")

BY_LINES = (KA == 1) & ((MA == 1) | (MA == M)) & ((NB == 1) | (NB == N))

Layers = tuple[tuple[int, int], ...]
"""N and K of each."""
LLAMA_8B: Layers = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
LLAMA_70B: Layers = ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672))
QWEN_7B: Layers = ((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944))
DEEPSEEK_V3: Layers = (
    (2112, 7168),
    (24576, 1536),
    (32768, 512),
    (7168, 16384),
    (18432, 7168),
    (4096, 7168),
    (7168, 2048),
)


def reference(xp: Any, call: Call) -> dict[str, Any]:
    """The definition: factors times their scales, in whole arrays."""
    (m, k), n = call.a.shape, call.b.shape[1]
    scale_a = _spread(xp, _spread(xp, call.scale_a, 0, m), 1, k)
    scale_b = _spread(xp, _spread(xp, call.scale_b, 0, k), 1, n)
    value = xp.matmul(call.a * scale_a, call.b * scale_b)
    return {"out": value if call.bias is None else value + call.bias}


def _spread(xp: Any, scales: Any, axis: int, extent: int) -> Any:
    """Scales along an axis of so many elements; one scale for all is left to be broadcast."""
    if scales.shape[axis] in (1, extent):
        return scales
    spread = xp.repeat(scales, 128, axis=axis)
    return spread[:extent] if axis == 0 else spread[:, :extent]


def torch_scaled_mm(torch: Any, call: Call) -> Callable[[], object]:
    """torch's function, with sums in full precision, into the output."""
    product, dtype = torch.ops.aten._scaled_mm.out, call.out.dtype
    return lambda: product(
        call.a, call.b, call.scale_a, call.scale_b, call.bias, out_dtype=dtype, use_fast_accum=False, out=call.out
    )


def torch_has(given: Problem) -> bool:
    """Whether a torch has the call: b by columns, sizes in whole pieces of 16 bytes, and scales of one kind."""
    dims = given.dims
    blocks = {"b": (1, 0), "scale_a": (1, 0), "scale_b": (1, 0)}
    if given.strides or dims["K"] % 16 or dims["N"] % 16 or given.order.get("b") != blocks["b"]:
        return False
    if BLOCKS.evaluate(dims):  # K blocks are padded to a multiple of 4
        return dict(given.order) == blocks and dims["KA"] % 4 == 0
    whole = dims["MA"] == 1 and dims["NB"] == 1
    lines = dims["MA"] == dims["M"] and dims["NB"] == dims["N"] and given.dtypes.get("T", "bf16") == "bf16"
    return BY_LINES.evaluate(dims) == 1 and (whole or lines)


def layer(m: int, n: int, k: int, scales: str, *present: str, dtype: str = "bf16") -> Problem:
    """A linear layer with scales of each "tensor", "row" or "block", laid out as torch and DeepSeek have them."""
    ma, ka, nb = {"tensor": (1, 1, 1), "row": (m, 1, n), "block": (m, -(-k // 128), -(-n // 128))}[scales]
    order = {"b": (1, 0)} | ({"scale_a": (1, 0), "scale_b": (1, 0)} if scales == "block" else {})
    return problem(M=m, N=n, K=k, MA=ma, KA=ka, NB=nb, order=order, present=present, dtypes={"T": dtype})


def cuda_workload() -> tuple[Problem, ...]:
    """Layers of Llama-3-8B and -70B by rows, of Qwen-2.5-7B with one scale, and of DeepSeek-V3 by blocks."""
    layers = [layer(m, n, k, "row") for m in (1, 16, 64, 512, 8192) for n, k in LLAMA_8B]
    layers += [layer(m, n, k, "row") for m in (16, 2048) for n, k in LLAMA_70B]
    layers += [layer(m, n, k, "tensor") for m in (1, 16, 1024) for n, k in QWEN_7B]
    layers += [layer(m, 4608, 3584, "row", "bias") for m in (16, 1024)]
    layers += [layer(m, n, k, "block") for m in (16, 128, 4096) for n, k in DEEPSEEK_V3]
    layers += [layer(m, n, k, "block") for m in (1, 64, 1024) for n, k in DEEPSEEK_V3[1::3]]
    layers += [layer(m, 4096, 4096, scales, dtype="f16") for m in (16, 1024) for scales in ("row", "block")]
    return tuple(layers)


operator = Operator(
    name="scaled_mm",
    documentation="out = (a * scales of a) @ (b * scales of b) + bias. Scales are [1, 1] for a whole factor, [M, 1] "
    "and [1, N] for rows of a and columns of b, or, rounded up, [M, K/128] and [K/128, N/128] for blocks of 1 x 128 "
    "and of 128 x 128; they may have any order. Where shapes are of two of these (K up to 128, or N = 1), both mean "
    "the same. Matrix units add up to 128 products with fewer bits; such sums are added in f32, as by torch._scaled_mm "
    "without use_fast_accum. A NaN in a or b makes its row or column NaN; f8e4m3 has no infinities. Fast kernels want "
    "b by columns, as b = weight.t(), and K % 16 == 0; for many rows also N % 8 == 0.",
    dims=("M", "N", "K", "MA", "KA", "NB"),
    tensors=(
        Tensor("a", (M, K), "f8e4m3"),
        Tensor("b", (K, N), "f8e4m3", cold=True),
        Tensor("scale_a", (MA, KA), "f32", values=uniform(0.25, 1.0)),
        Tensor("scale_b", (KA, NB), "f32", values=uniform(0.25, 1.0)),
        Tensor("bias", (N,), "T", optional=True),
        Tensor("out", (M, N), "T", output=True),
    ),
    dtypes={"T": ("bf16", "f16")},
    intermediates="f32",
    legal=(BY_LINES | BLOCKS,),
    epilogue=Epilogue("out", (AddTensor("bias", (1,)),)),
    reference=reference,
    exact=IntegerSums(K, thinned="b", factors=4),
    tolerance=8.0,  # Hopper's matrix units keep 14 bits of a sum of 128 products
    flops=2 * M * N * K,
    ranges={"M": (1, 16384), "N": (512, 65536), "K": (512, 32768)},
    values={"MA": (1, M), "KA": (1, ceildiv(K, 128)), "NB": (1, N, ceildiv(N, 128))},
    regimes={
        "few rows": (M <= 64, KA == 1),
        "few rows, blocks": (M <= 64, KA > 1),
        "many rows": (M > 64, KA == 1),
        "many rows, blocks": (M > 64, KA > 1),
    },
    workload={
        "cpu": (layer(4, 512, 1024, "row"), layer(48, 384, 512, "block")),
        "cuda": cuda_workload(),
    },
    checks=(
        layer(70, 300, 390, "block"),
        layer(68, 272, 496, "block"),
        layer(5, 136, 1040, "block", "bias"),
        layer(200, 260, 272, "row", "bias"),
        *(
            msgspec.structs.replace(layer(9, 300, 390, "block"), strides={"scale_a": of_a, "scale_b": of_b})
            for of_a, of_b in (((8, 2), (1, 7)), ((-4, 1), (-3, 1)), ((0, 1), (3, 0)), ((1, -9), (0, 1)))
        ),
    ),
    baselines=(Baseline("torch._scaled_mm", "torch", torch_scaled_mm, supports=torch_has),),
    kernels=(
        Kernel("generic", "scaled_mm/generic.cpp.j2", generic=True),
        Kernel("cuda_generic", "scaled_mm/cuda_generic.cu.j2", backend="nvcc", generic=True),
        *GPU_KERNELS,
    ),
)
