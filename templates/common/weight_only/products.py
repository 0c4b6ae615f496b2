"""What products with weights of 4 and 8 bits share: tensors, workloads, baselines and kernels.

Each operator has a format, which its templates set before they include those of `common/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aot_tune.spec import (
    AddTensor,
    Baseline,
    Buffer,
    Call,
    Config,
    Epilogue,
    Expr,
    Kernel,
    Problem,
    Tensor,
    TritonFunction,
    alignment,
    attribute,
    ceildiv,
    device,
    dims,
    maximum,
    minimum,
    parameter,
    problem,
    stride,
    table,
    target,
    uniform,
    where,
)

M, N, K, G = dims("M N K G")

GROUPS: tuple[Expr, ...] = (G >= 1, K % maximum(G, 1) == 0)
"""Groups are equally long."""

VALUES = {"G": (maximum(K // 128, 1),)}
EXPECTED: tuple[Expr, ...] = (K % 128 == 0,)

A = Tensor("a", (M, K), "T")
BIAS = Tensor("bias", (N,), "T", optional=True)
OUT = Tensor("out", (M, N), "T", output=True)
SCALES = Tensor("scales", (G, N), "T", values=uniform(0.25, 1.0))

ROUNDED = "\nWith more than 16 rows, elements of w may be rounded to a's dtype first, as where w is kept unpacked."

OF_PRODUCTS: dict[str, Any] = {
    "dims": ("M", "N", "K", "G"),
    "dtypes": {"T": ("f32", "bf16", "f16")},
    "intermediates": "f32",
    "epilogue": Epilogue("out", (AddTensor("bias", (1,)),)),
    "fold": "M",
    "flops": 2 * M * N * K,
    "ranges": {"M": (1, 4096), "N": (1024, 32768), "K": (1024, 32768)},
    "regimes": {"one row": (M == 1,), "few rows": (M <= 16,), "many rows": (M > 16,)},
}
"""Arguments that the operators have in common."""


def product(xp: Any, call: Call, weight: Any) -> dict[str, Any]:
    """The rest of each reference: the product with the [K, N] weight."""
    value = xp.matmul(call.a, weight)
    return {"out": value if call.bias is None else value + call.bias}


def scaled(numbers: Any, scales: Any, zeros: Any = None) -> Any:
    """(numbers - zeros) * scales: whole numbers [K, N], whose groups along K have a scale and a zero each [G, N]."""
    groups, width = scales.shape
    of_groups = numbers.reshape((groups, numbers.shape[0] // groups, width))
    if zeros is not None:
        of_groups = of_groups - zeros[:, None]
    # Not in the dtype that numpy has for products of integers and floats.
    exact = of_groups.astype(scales.dtype) if hasattr(of_groups, "astype") else of_groups.to(scales.dtype)
    return (exact * scales[:, None]).reshape(numbers.shape)


def baselines(weight_of: Callable[[Any, Call], Any]) -> tuple[Baseline, ...]:
    """The product alone: the weight was unpacked beforehand, into the dtype of `a`."""

    def torch_product(torch: Any, call: Call) -> Callable[[], object]:
        weight = weight_of(torch, call).to(call.a.dtype).t().contiguous().t()  # as linear layers keep it
        if call.bias is not None:
            return lambda: torch.addmm(call.bias, call.a, weight, out=call.out)
        return lambda: torch.matmul(call.a, weight, out=call.out)

    return (Baseline("torch.matmul, weight kept beside", "torch", torch_product, partial=_always),)


def _always(given: Problem) -> bool:
    """The baseline rounds the weight to the dtype of `a`, which operators do not."""
    del given
    return True


def workload(group: int = 0, **layout: Any) -> dict[str, tuple[Problem, ...]]:
    """Layers of Llama-3-8B and Qwen-2.5-7B in bf16, some in f16; two small ones on CPUs. If `group` is 0, G is 1."""
    layers = ((6144, 4096), (28672, 4096), (4096, 14336), (4608, 3584), (3584, 18944))

    def layer(m: int, n: int, k: int, dtype: str, *present: str, length: int = group) -> Problem:
        return problem(M=m, N=n, K=k, G=k // (length or k), dtypes={"T": dtype}, present=present, **layout)

    some = [(m, n, k) for i, (n, k) in enumerate(layers) for m in (1, 16, (64, 32)[i % 2], 1024)]
    cuda = [layer(m, n, k, "bf16", *["bias"] * (n == 4608)) for m, n, k in some]
    cuda += [layer(m, 4096, 4096, "f16") for m in (1, 16, 1024)]
    if group == 128:  # short groups are for another kernel
        cuda += [layer(m, 4096, 4096, "bf16", length=32) for m in (1, 16)]
    return {"cpu": (layer(1, 1024, 2048, "f32"), layer(16, 1024, 1024, "bf16", "bias")), "cuda": tuple(cuda)}


def checks(weight: str, padded: tuple[int, int]) -> tuple[Problem, ...]:
    """Groups of several lengths, and other strides. `padded`: the strides of a weight with gaps; N = 192, K = 512."""
    found = []
    for group in (32, 64, 128):
        for m, dtype in ((1, "bf16"), (5, "f16"), (37, "bf16")):
            found.append(problem(M=m, N=192, K=4 * group, G=4, dtypes={"T": dtype}))
    rows, others = {"a": (520, 1), "out": (200, 1), weight: padded}, {"a": (-1024, 2), "out": (-192, 1), "bias": (3,)}
    for strides, present in ((rows, ()), (others, ("bias",))):
        for m, dtype in ((3, "f32"), (40, "f32"), (1, "bf16"), (20, "bf16")):
            found.append(problem(M=m, N=192, K=512, G=4, strides=strides, present=present, dtypes={"T": dtype}))
    return tuple(found)


THIN = table(
    "TILES WARPS SPLIT WIDTH",
    (1, 8, 1, 32),
    (1, 8, 2, 32),
    (1, 8, 4, 32),
    (1, 4, 4, 32),
    (1, 4, 8, 32),
    (2, 8, 1, 32),
    (2, 4, 2, 32),
    (2, 4, 4, 32),
)
"""Configs of the thin kernel for formats of which a block takes 32 columns."""


def kernels(
    weight: str,
    form: str,
    *,
    thin_requires: tuple[Expr, ...],
    thin: tuple[Config, ...] = THIN,
    step: int,
    scales: str = "scales",
    zeros: str | None = None,
) -> tuple[Kernel, ...]:
    """The kernels of a format.

    Args:
        weight, scales, zeros: names of tensors.
        form: the format's name in templates.
        thin_requires: what the thin kernel asks of the weight, its scales and its zeros.
        thin: configs of the thin kernel.
        step: how many elements along K are read at a time there, by a warp, and have one group.
    """
    dense: tuple[Expr, ...] = (stride("a", 1) == 1, stride("a", 0) % 8 == 0, alignment("a") >= 16)
    return (
        Kernel("generic", f"{form}_mm/generic.cpp.j2", generic=True),
        Kernel("cuda_generic", f"{form}_mm/generic.cu.j2", generic=True),
        Kernel(
            "cuda_thin",
            f"{form}_mm/thin.cu.j2",
            dtypes={"T": ("bf16", "f16")},
            follows={"f16": "bf16"},
            listed=thin,
            constraints=((parameter("SPLIT") == 1) | (target("capability") >= 90),),
            requires=(
                8 * parameter("TILES") >= M,
                M * K >= 1,
                N % parameter("WIDTH") == 0,
                (N < 2**30) & (K < 2**20),
                (K // G) % step == 0,
                *dense,
                *thin_requires,
            ),
            worthwhile=((parameter("TILES") == 1) | (M > 8),),
            tile={"M": 8 * parameter("TILES"), "N": parameter("WIDTH"), "K": step},
            split=parameter("SPLIT"),
        ),
        _triton(weight, form, scales, zeros, step),
        Kernel(
            "cublaslt_of_unpacked",
            f"{form}_mm/unpacked.cu.j2",
            backend="nvcc",
            stages=("unpack", "cublaslt"),
            scratch=K * N * 2,
            dtypes={"T": ("bf16", "f16")},
            follows={"f16": "bf16"},
            requires=(
                *(stride(t, 1) == 1 for t in ("a", "out")),
                stride("a", 0) >= K,
                stride("out", 0) >= N,
                stride("bias", 0) == 1,
                *(alignment(t) >= 16 for t in ("a", "out", "bias")),
                (K // G) % 8 == 0,
                K * N < 2**31,
                M * N * K > 0,
            ),
            worthwhile=(M > 16,),
        ),
    )


# PER programs of a multiprocessor run at once, as registers allow. Many rows unpack the weight first: most are for few.
_LISTED = table(
    "BLOCK_M BLOCK_N BLOCK_K PER num_warps num_stages",
    (32, 64, 128, 3, 4, 3),
    (64, 128, 64, 2, 4, 3),
    (16, 64, 128, 4, 4, 3),
    (32, 128, 64, 3, 4, 4),
    (64, 64, 64, 3, 4, 4),
    (16, 64, 64, 6, 4, 4),
    (16, 64, 32, 6, 4, 4),
    (128, 128, 64, 1, 8, 3),
)


def _triton(weight: str, form: str, scales: str, zeros: str | None, step: int) -> Kernel:
    """By matrix units: tiles become whole numbers (nf4: 16-bit floats); the sums of each step are scaled afterwards."""
    block_m, block_n, block_k, per = (parameter(p) for p in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "PER"))
    tiles, along = ceildiv(M, block_m) * ceildiv(N, block_n), int(form == "nf4")
    # As many parts of each tile as run at once, if each has some steps.
    parts = maximum(minimum(per * device("multiprocessors") // tiles, K // (4 * block_k)), 1)
    arguments: Mapping[str, Any] = {
        "weight": weight,
        "scales": scales,
        "zeros": zeros,
        "partial": Buffer("f32", where(parts > 1, tiles * parts * block_m * block_n, 0)),
        "arrived": Buffer("i32", where(parts > 1, tiles, 0), zero=True),
        "a_row": stride("a", 0),
        "out_row": stride("out", 0),
        "weight_k": stride(weight, along),
        "weight_n": stride(weight, 1 - along),
        "scales_row": stride(scales, along),
        "scales_column": stride(scales, 1 - along),
        "zeros_row": stride(zeros, 0) if zeros else 0,
        "in_group": K // G // block_k,
        "FORMAT": form,
        "less": 1 - attribute("checkpoint") if form == "gptq" else 0,
    }
    placed = (weight, scales, *([zeros] if zeros else []))
    return Kernel(
        "triton",
        backend="triton",
        triton=TritonFunction("common/weight_only/triton.py:multiply", arguments, grid=(tiles, parts)),
        dtypes={"T": ("bf16", "f16")},
        follows={"f16": "bf16"},
        compile_seconds=6.0,
        listed=_LISTED,
        requires=(
            stride("a", 1) == 1,
            stride("bias", 0) == 1,
            stride("out", 1) == 1,
            *((stride(zeros, 1) == 1,) if zeros else ()),
            K // G % block_k == 0,
            (M < 2**30) & (N < 2**30) & (K < 2**30),
            # Places have 32 bits.
            *((stride(t, 0) >= 0) & (stride(t, 1) >= 0) for t in placed),
            *((stride(t, 0) + stride(t, 1)) * maximum(N, K) < 2**31 for t in placed),
            M * N * K > 0,
        ),
        # For a few rows, only where the thin kernel does not take the groups. Low tiles, where two have all rows.
        worthwhile=(
            (M > 4) | (K // G % step != 0),
            block_m < 2 * maximum(M, 9),
            (2 * block_m >= M) | (block_m >= 64),
            (block_k >= 64) | (K // G % 64 != 0),
        ),
        tile={"M": block_m, "N": block_n, "K": block_k},
        split=8,  # about
        occupancy=per,
    )
