"""Problems worth tuning: matrix products of well-known models."""

from __future__ import annotations

from collections.abc import Iterator

from aot_tune.spec import Problem, problem

TRANSPOSED_B = {"b": (1, 0)}
"""Weights as linear layers keep them: rows of b's memory are columns of the product."""


def cpu_workload() -> tuple[Problem, ...]:
    """Layers of Llama-3-8B, BERT-base and MobileNet's pointwise convolutions, cut to what two cores tune in minutes.

    And products of matrices as they are, with no transposed weight. In f32; some of all but MobileNet's in bf16, of
    which three in f16.
    """
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
    for m, n, k in ((1, 768, 768), (48, 1024, 2048), (256, 3072, 768), (1000, 500, 300), (256, 1024, 4096)):
        found.append(problem(M=m, N=n, K=k))
    found += [problem(M=m, N=768, K=k, dtypes={"T": "bf16"}) for m, k in ((1, 768), (32, 3072), (256, 768))]
    found += [_layer("bf16", m, 4096, 4096) for m in (1, 16, 128)]
    found.append(_layer("bf16", 1, 14336, 4096, "silu"))
    found.append(_layer("bf16", 16, 4096, 14336, "none", "residual"))
    for dtype in ("bf16", "f16"):
        found.append(_layer(dtype, 128, 768, 768, "none", "bias"))
        found.append(_layer(dtype, 128, 3072, 768, "gelu", "bias"))
    found.append(_layer("bf16", 128, 768, 3072, "none", "bias", "residual"))
    found.append(_layer("f16", 1, 4096, 4096))
    return tuple(found)


def _layer(dtype: str, m: int, n: int, k: int, activation: str = "none", *present: str, math: str = "ieee") -> Problem:
    attributes = {"activation": activation} if activation != "none" else {}
    attributes |= {"math": math} if math != "ieee" else {}
    return problem(M=m, N=n, K=k, order=TRANSPOSED_B, present=present, attributes=attributes, dtypes={"T": dtype})


Layers = tuple[tuple[str, int, int, tuple[str, ...]], ...]

LAYERS: Layers = (
    ("llama-3-8b qkv", 6144, 4096, ("none",)),
    ("llama-3-8b out", 4096, 4096, ("none", "residual")),
    ("llama-3-8b gate", 14336, 4096, ("silu",)),
    ("llama-3-8b down", 4096, 14336, ("none", "residual")),
    ("llama-3-70b/8 qkv", 1280, 8192, ("none",)),
    ("llama-3-70b/8 out", 8192, 1024, ("none",)),
    ("llama-3-70b/8 gate", 3584, 8192, ("silu",)),
    ("llama-3-70b/8 down", 8192, 3584, ("none",)),
    ("qwen-2.5-7b qkv", 4608, 3584, ("none", "bias")),
    ("qwen-2.5-7b out", 3584, 3584, ("none", "residual")),
    ("qwen-2.5-7b gate", 18944, 3584, ("silu",)),
    ("qwen-2.5-7b down", 3584, 18944, ("none", "residual")),
    ("bert-large qkv", 3072, 1024, ("none", "bias")),
    ("bert-large out", 1024, 1024, ("none", "bias", "residual")),
    ("bert-large up", 4096, 1024, ("gelu", "bias")),
    ("bert-large down", 1024, 4096, ("none", "bias", "residual")),
)
"""Layer, N, K, activation and the optional tensors that it passes."""


F16_LAYERS: Layers = (*LAYERS[:12:4], *LAYERS[12:])
"""The first layer of each model, and all of BERT-large's, which has bias, residual and an activation."""


def cuda_workload() -> tuple[Problem, ...]:
    """All layers at all batch sizes in bf16, a part of them in f16 and f32; then what has no whole 16 bytes."""
    found = [problem(M=m, N=4096, K=4096, dtypes={"T": "bf16"}) for m in (16, 256)]  # weights kept by rows
    for m in (1, 16, 64, 256, 1024, 4096):
        for _, n, k, (activation, *present) in LAYERS:
            found.append(_layer("bf16", m, n, k, activation, *present))
            if activation != "none" or present:
                found.append(_layer("bf16", m, n, k))  # the product alone
        for _, n, k, (activation, *present) in F16_LAYERS:
            found.append(_layer("f16", m, n, k, activation, *present))
            if activation != "none" or present:
                found.append(_layer("f16", m, n, k))  # the product alone
        for _, n, k, (activation, *present) in LAYERS[1::8]:
            for math in ("ieee", "tf32"):
                found.append(_layer("f32", m, n, k, activation, *present, math=math))
                if m == 1:
                    found.append(_layer("f32", m, n, k, math=math))  # the product alone
    return (*found, *_odd())


def _odd() -> Iterator[Problem]:
    """Sizes that are multiples of 2, of 4 or of nothing, a column left out, every second column."""
    for m, n, k in ((4096, 4096, 4095), (4096, 4095, 4096), (1024, 4097, 4097), (64, 4097, 4097), (1, 4097, 4096)):
        yield _layer("bf16", m, n, k)
    yield _layer("bf16", 512, 3001, 1000, "none", "bias", "residual")
    yield _layer("f16", 512, 3001, 1000, "none", "bias", "residual")
    yield _layer("f16", 64, 4097, 4097)
    yield problem(M=1024, N=4096, K=4096, strides={"a": (8192, 2)}, dtypes={"T": "bf16"})
    yield problem(M=1024, N=4096, K=4096, alignment={"a": 2, "b": 2}, dtypes={"T": "bf16"})
    yield _layer("f32", 1024, 4097, 4097, math="tf32")
    yield _layer("f32", 1024, 4097, 4097)
