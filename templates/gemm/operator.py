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
    Config,
    ConfigValue,
    Epilogue,
    Expr,
    Kernel,
    Operator,
    Parameter,
    Problem,
    Tensor,
    dims,
    minimum,
    parameter,
    present,
    problem,
    stride,
    target,
)
from aot_tune.spec.reference import activation

M, N, K = dims("M N K")
VW, MR, NR, NV, KR, KU, PACK_A = (parameter(name) for name in ("VW", "MR", "NR", "NV", "KR", "KU", "PACK_A"))
BYTES, REGISTERS = target("vector_bytes"), target("registers")

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


VECTORS = Parameter("VW", (16, 8, 4))
"""Floats per vector."""

NATIVE: Expr = BYTES == VW * 4
NATIVE_OR_HALF: Expr = (BYTES == VW * 4) | (BYTES == VW * 8)

DOT_FITS: Expr = MR * NR + minimum(MR, NR) + 1 <= REGISTERS
"""The accumulators, the vectors of the shorter side and one of the longer side; the rest is read as operands."""

TILE_FITS: tuple[Expr, ...] = (
    NATIVE_OR_HALF,
    # Without fused multiply-add (vectors of 16 bytes), a product needs a register of its own.
    MR * NV + NV + 1 + (BYTES == 16) <= REGISTERS,
    MR * NV * 2 >= REGISTERS,
    (KU == 1) | (BYTES > 16),
    # One address register per row of A.
    (PACK_A == 1) | (MR <= 8),
)


def table(names: str, *rows: tuple[ConfigValue, ...]) -> tuple[Config, ...]:
    """Configs as the rows of a table."""
    return tuple(dict(zip(names.split(), row, strict=True)) for row in rows)


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
    kernels=(
        Kernel("generic", "gemm/generic.cpp.j2", generic=True),
        Kernel(
            "skinny_nk",
            "gemm/dot.cpp.j2",
            parameters=(
                VECTORS,
                Parameter("MR", (1, 2)),
                Parameter("NR", (4, 6, 8)),
                Parameter("KC", (2048, 16384)),
                Parameter("MC", (4,)),
                Parameter("NC", (48,)),
                Parameter("PF", (0,)),
                Parameter("PACK_A", (False,)),
                Parameter("SPLIT", ("n",)),
            ),
            constraints=(NATIVE, DOT_FITS),
            requires=(stride("a", 1) == 1, stride("b", 0) == 1, stride("out", 1) == 1),
            worthwhile=(M <= 3,),
            order=table(
                "MR NR KC",
                (1, 8, 2048),
                (1, 6, 16384),
                (1, 8, 16384),
                (1, 4, 16384),
                (2, 8, 16384),
                (2, 4, 16384),
            ),
        ),
        Kernel(
            "skinny_kn",
            "gemm/skinny_kn.cpp.j2",
            parameters=(
                VECTORS,
                Parameter("MR", (1, 2, 4)),
                Parameter("KR", (4, 6, 8)),
                Parameter("NC", (1024, 65536)),
                Parameter("PF", (0, 1)),
                Parameter("SPLIT", ("k", "n")),
            ),
            constraints=(NATIVE, MR * KR + (MR > 1) * KR + 2 <= REGISTERS),
            requires=(stride("b", 1) == 1, stride("out", 1) == 1),
            worthwhile=(M <= 8,),
            order=table(
                "MR KR NC PF SPLIT",
                (1, 8, 65536, 0, "k"),
                (1, 6, 65536, 0, "k"),
                (1, 4, 65536, 0, "k"),
                (4, 4, 1024, 0, "k"),
                (2, 4, 1024, 0, "k"),
                (1, 8, 65536, 0, "n"),
            ),
        ),
        Kernel(
            "dot",
            "gemm/dot.cpp.j2",
            parameters=(
                VECTORS,
                Parameter("MR", (3, 4, 5)),
                Parameter("NR", (3, 4, 5, 6)),
                Parameter("KC", (512, 1024)),
                Parameter("MC", (16, 64, 128)),
                Parameter("NC", (48, 192)),
                Parameter("PF", (0, 1, 2)),
                Parameter("PACK_A", (True, False)),
                Parameter("SPLIT", ("n", "m")),
            ),
            constraints=(NATIVE_OR_HALF, DOT_FITS, MR * NR * 2 >= REGISTERS),
            requires=(stride("a", 1) == 1, stride("b", 0) == 1, stride("out", 1) == 1),
            worthwhile=(M >= 3,),
            order=table(
                "VW MR NR KC MC NC PF PACK_A SPLIT",
                (16, 4, 6, 512, 16, 48, 2, True, "n"),
                (16, 4, 6, 1024, 128, 192, 1, True, "n"),
                (16, 4, 6, 1024, 128, 192, 1, True, "m"),
                (16, 4, 6, 1024, 64, 192, 2, True, "n"),
                (16, 4, 6, 512, 64, 192, 2, True, "n"),
                (16, 4, 6, 1024, 64, 192, 2, False, "n"),
                (8, 4, 3, 1024, 64, 192, 1, True, "n"),
                (8, 4, 3, 512, 16, 48, 1, True, "n"),
                (8, 3, 4, 512, 64, 192, 1, True, "n"),
                (8, 4, 3, 1024, 128, 192, 1, True, "m"),
                (4, 4, 3, 512, 64, 48, 1, True, "n"),
                (4, 4, 3, 512, 16, 48, 1, True, "n"),
                (4, 4, 3, 1024, 128, 192, 1, True, "m"),
                (4, 3, 3, 512, 64, 48, 1, True, "n"),
            ),
        ),
        Kernel(
            "packed",
            "gemm/packed.cpp.j2",
            parameters=(
                VECTORS,
                Parameter("MR", (4, 5, 6, 8, 12, 14)),
                Parameter("NV", (2, 3, 4)),
                Parameter("KC", (256, 512, 1024)),
                Parameter("MC", (64, 128)),
                Parameter("NC", (768, 1536)),
                Parameter("KU", (1, 4)),
                Parameter("PACK_A", (True, False)),
                Parameter("PACK_B", (True,)),
                Parameter("PF", (0,)),
                Parameter("PART", ("m", "n", "mn")),
            ),
            constraints=TILE_FITS,
            requires=(stride("out", 1) == 1,),
            worthwhile=(M >= 16,),
            order=table(
                "VW MR NV KC MC NC KU PACK_A PART",
                (16, 8, 3, 1024, 64, 768, 4, True, "mn"),
                (16, 6, 4, 1024, 64, 768, 4, True, "n"),
                (16, 12, 2, 512, 64, 768, 4, True, "m"),
                (16, 14, 2, 1024, 64, 768, 4, True, "n"),
                (16, 8, 3, 512, 64, 768, 4, True, "n"),
                (16, 8, 3, 512, 128, 1536, 4, False, "m"),
                (16, 14, 2, 256, 128, 1536, 4, True, "m"),
                (8, 6, 2, 1024, 64, 768, 4, True, "n"),
                (8, 6, 2, 512, 64, 768, 4, True, "m"),
                (8, 4, 3, 512, 64, 768, 1, True, "n"),
                (8, 6, 2, 256, 64, 768, 4, False, "mn"),
                (4, 6, 2, 512, 64, 768, 1, True, "n"),
                (4, 5, 2, 512, 64, 768, 1, True, "n"),
                (4, 6, 2, 512, 64, 768, 1, True, "m"),
            ),
        ),
        Kernel(
            "direct_kn",
            "gemm/packed.cpp.j2",
            parameters=(
                VECTORS,
                Parameter("MR", (4, 6, 8)),
                Parameter("NV", (2, 3, 4)),
                Parameter("KC", (128, 256)),
                Parameter("MC", (64,)),
                Parameter("NC", (1536,)),
                Parameter("KU", (1, 4)),
                Parameter("PACK_A", (True, False)),
                Parameter("PACK_B", (False,)),
                Parameter("PF", (0, 1)),
                Parameter("PART", ("m", "n", "mn")),
            ),
            constraints=TILE_FITS,
            requires=(stride("b", 1) == 1, stride("out", 1) == 1),
            worthwhile=(M >= 4,),
            order=table(
                "VW MR NV KC KU PACK_A PF PART",
                (16, 8, 3, 128, 4, True, 0, "n"),
                (16, 8, 3, 256, 4, True, 1, "n"),
                (16, 8, 3, 256, 4, True, 1, "mn"),
                (16, 4, 4, 128, 4, True, 0, "n"),
                (16, 8, 3, 128, 4, False, 0, "n"),
                (8, 4, 3, 128, 4, True, 0, "n"),
                (8, 4, 3, 256, 4, True, 1, "n"),
                (4, 6, 2, 128, 1, True, 0, "n"),
            ),
        ),
    ),
)
