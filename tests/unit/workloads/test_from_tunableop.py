"""TunableOp's files: the problem of a line computes on BLAS's memory what BLAS would."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from bundled import OPERATORS

from aot_tune.support.errors import SpecError
from aot_tune.workloads.from_tunableop import BlasCall, blas_problem, map_tunableop
from aot_tune.workloads.mapped_calls import MappedCalls

RESULTS = """Validator,PT_VERSION,2.9.0
Validator,ROCBLAS_VERSION,4.0.0-72e57364-dirty
GemmTunableOp_BFloat16_TN,tn_4096_16_1024_ld_1024_1024_4096,Gemm_Hipblaslt_219,0.0123
GemmTunableOp_tf32_NN,nn_64_32_128_ld_64_128_64,Default,0.01
GemmTunableOp_float_NT,nt_64_32_128,Gemm_Rocblas_7,0.01
GemmTunableOp_Half_NN,nn_64_32_128_ld_80_144_96,Gemm_Rocblas_7,0.01
GemmAndBiasTunableOp_Half_TN,tn_768_1024_256_ld_256_256_768,Gemm_Hipblaslt_1,0.02
GemmStridedBatchedTunableOp_float_TN,tn_128_96_64_B_12_ld_64_64_128,Gemm_Rocblas_3,0.03
GemmStridedBatchedTunableOp_float_NN,nn_64_128_96_B_12_ld_64_96_64
ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_64_64_64_ld_64_64_64_rw_1_bias_None,Default,0.1
GemmTunableOp_double_NN,nn_64_32_128_ld_64_128_64,Default,0.01
"""


def test_lines_become_problems() -> None:
    calls = MappedCalls(OPERATORS)
    map_tunableop(RESULTS, "results.csv", calls)
    assert [f"{one.operator} {one.problem.id}" for one in calls.problems] == [
        "gemm M=16 N=4096 K=1024 b:10 T=bf16",
        "gemm M=32 N=64 K=128 math=tf32",
        "gemm M=32 N=64 K=128 a:10",
        "gemm M=32 N=64 K=128 a:(144,1) b:(80,1) out:(96,1) T=f16",
        "gemm M=1024 N=768 K=256 b:10 +bias T=f16",
        "batched_gemm B=12 M=96 N=128 K=64 b:021",
        "batched_gemm B=12 M=128 N=64 K=96",
    ]
    assert {call for call, _ in calls.left} == {
        "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN",
        "GemmTunableOp_double_NN",
    }
    assert calls.told()[0] == "mapped 7 calls; 2 calls could not be mapped:"


def blas(call: BlasCall, a: np.ndarray, b: np.ndarray, size: int) -> np.ndarray:
    """The definition, element by element: matrices by columns, a batch's behind each other."""
    out = np.zeros(size, np.float32)
    size_a = call.lda * (call.m if call.transposed_a else call.k)
    size_b = call.ldb * (call.k if call.transposed_b else call.n)
    for g, i, j in itertools.product(range(call.batch or 1), range(call.m), range(call.n)):
        total = 0.0
        for depth in range(call.k):
            at_a = depth + i * call.lda if call.transposed_a else i + depth * call.lda
            at_b = j + depth * call.ldb if call.transposed_b else depth + j * call.ldb
            total += a[g * size_a + at_a] * b[g * size_b + at_b]
        out[g * call.ldc * call.n + i + j * call.ldc] = total
    return out


@pytest.mark.parametrize("transposed_a", [False, True])
@pytest.mark.parametrize("transposed_b", [False, True])
@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("padding", [0, 2])
def test_the_problem_computes_what_blas_does(
    transposed_a: bool, transposed_b: bool, batch: int | None, padding: int
) -> None:
    m, n, k = 5, 4, 3
    lda, ldb, ldc = (k if transposed_a else m) + padding, (n if transposed_b else k) + padding, m + padding
    call = BlasCall(
        transposed_a=transposed_a, transposed_b=transposed_b, m=m, n=n, k=k, lda=lda, ldb=ldb, ldc=ldc, batch=batch
    )
    rng = np.random.default_rng(1)
    memory = {name: torch.from_numpy(rng.integers(-4, 5, 200).astype(np.float32)) for name in ("a", "b")}
    memory["out"] = torch.zeros(200)
    name, asked = blas_problem(call, dtype="f32")
    operator = OPERATORS[name]
    views = {
        tensor.name: memory[tensor.name].as_strided(operator.shape(asked, tensor), asked.strides[tensor.name])
        for tensor in operator.tensors
        if tensor.name in memory
    }
    views["out"].copy_(views["a"] @ views["b"])
    of_blas = blas(call, a=memory["b"].numpy(), b=memory["a"].numpy(), size=200)
    assert of_blas.any()
    assert np.array_equal(memory["out"].numpy(), of_blas)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("GemmTunableOp_float_NT", "is not a line of TunableOp's results"),
        ("M,N,K", "is not a line of TunableOp's results"),
        ("GemmTunableOp_float_NT,nt_1_2", "are not parameters of Gemm"),
        ("GemmTunableOp_float_NT,nt_1_2_3_B_4_ld_1_2_1", "are not parameters of Gemm"),
        ("GemmStridedBatchedTunableOp_float_NT,nt_1_2_3_ld_1_2_1", "are not parameters of GemmStridedBatched"),
        ("GemmTunableOp_float_CN,cn_1_2_3_ld_3_3_1", "is conjugated"),
        ("GemmTunableOp_float_NN,nn_4_2_3_ld_3_3_4", "lda is 3, but a column of that matrix has 4 elements"),
    ],
)
def test_other_lines_are_named(line: str, said: str) -> None:
    with pytest.raises(SpecError, match=said) as error:
        map_tunableop(f"Validator,PT_VERSION,2.9.0\n{line}\n", "results.csv", MappedCalls(OPERATORS))
    assert error.value.what.startswith("results.csv:2: ")
    assert error.value.fix
