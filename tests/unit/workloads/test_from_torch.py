"""What torch writes of its calls: real traces of its profiler, operator inputs, and TunableOp's files."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from bundled import OPERATORS

from aot_tune.support.errors import SpecError
from aot_tune.workloads.from_torch import map_torch
from aot_tune.workloads.from_tunableop import BlasCall, blas_problem, map_tunableop
from aot_tune.workloads.mapped_calls import MappedCalls
from aot_tune.workloads.workload_lines import add_up

F = torch.nn.functional


def mapped(data: bytes) -> MappedCalls:
    calls = MappedCalls(OPERATORS)
    map_torch(data, "a_file.json", calls)
    return calls


def problems(calls: MappedCalls) -> dict[str, float]:
    return {f"{one.operator} {one.problem.id}": one.weight for one in add_up(calls.problems)}


@pytest.fixture
def profiled(tmp_path: Path) -> Callable[..., MappedCalls]:
    """The calls of a function, as torch's own profiler writes them."""

    def run(function: Callable[[], object], *, shapes: bool = True, name: str = "trace.json") -> MappedCalls:
        kinds = [torch.profiler.ProfilerActivity.CPU]
        with torch.no_grad(), torch.profiler.profile(activities=kinds, record_shapes=shapes) as profile:
            function()
        profile.export_chrome_trace(str(tmp_path / name))
        return mapped((tmp_path / name).read_bytes())

    return run


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


X, W, BIAS = rand(16, 32), rand(32, 64), rand(64)
Q, KV = rand(2, 6, 16, 32), rand(2, 2, 20, 32)
HALVES = rand(16, 64)
HALF = rand(4, 8, 32, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda: torch.mm(X, W), "gemm M=16 N=64 K=32"),
        (lambda: X @ rand(64, 32).T, "gemm M=16 N=64 K=32 b:10"),
        (lambda: rand(32, 16).T @ W, "gemm M=16 N=64 K=32 a:10"),
        (lambda: rand(16, 64)[:, :32] @ W, "gemm M=16 N=64 K=32 a:(64,1)"),
        (lambda: torch.mm(X, W, out=rand(16, 64)), "gemm M=16 N=64 K=32"),
        (lambda: torch.addmm(BIAS, X, W), "gemm M=16 N=64 K=32 +bias"),
        (lambda: torch.addmm(rand(16, 64), X, W), "gemm M=16 N=64 K=32 +residual"),
        (lambda: F.linear(X, rand(64, 32), BIAS), "gemm M=16 N=64 K=32 b:10 +bias"),
        (lambda: F.linear(rand(2, 8, 32), rand(64, 32)), "gemm M=16 N=64 K=32 b:10"),
        (lambda: F.linear(rand(8, 2, 32).transpose(0, 1), rand(64, 32)), "gemm M=16 N=64 K=32 b:10"),
        (lambda: F.linear(rand(32), rand(64, 32)), "gemm M=1 N=64 K=32 b:10"),
        (lambda: rand(2, 8, 32) @ W, "gemm M=16 N=64 K=32"),
        (lambda: torch.bmm(rand(3, 4, 5), rand(3, 6, 5).transpose(1, 2)), "batched_gemm B=3 M=4 N=6 K=5 b:021"),
        (lambda: rand(2, 3, 4, 5) @ rand(2, 3, 5, 6), "batched_gemm B=6 M=4 N=6 K=5"),
        (lambda: torch.softmax(X, -1), "softmax R=16 D=32"),
        (lambda: torch.softmax(HALF, 2), "softmax R=32 D=32 T=bf16"),
        (lambda: torch.softmax(HALF, -1, dtype=torch.float32), "softmax R=32 D=32"),
        (lambda: F.layer_norm(HALF, (32,), HALF[0, 0], HALF[0, 0]), "layer_norm R=32 D=32 +bias +weight T=bf16"),
        (
            lambda: torch.native_layer_norm(X, (32,), W[:, 0], X[0], 1e-5),
            "layer_norm R=16 D=32 weight:(64) +bias +weight",
        ),
        (lambda: F.layer_norm(X, (32,)), "layer_norm R=16 D=32"),
        (lambda: F.layer_norm(X, (32,), X[0]), "layer_norm R=16 D=32 +weight"),
        (lambda: F.rms_norm(X, (32,), X[0]), "rms_norm R=16 D=32 +weight"),
        (lambda: F.rms_norm(X, (32,)), "rms_norm R=16 D=32"),
        (lambda: F.scaled_dot_product_attention(Q, Q, Q), "flash_attention B=2 H=6 HK=6 M=16 N=16 D=32"),
        (
            lambda: F.scaled_dot_product_attention(Q, Q, Q, is_causal=True),
            "flash_attention B=2 H=6 HK=6 M=16 N=16 D=32 causal=upper_left",
        ),
        (
            lambda: F.scaled_dot_product_attention(Q, KV, KV, enable_gqa=True),
            "flash_attention B=2 H=6 HK=2 M=16 N=20 D=32",
        ),
        (
            lambda: F.scaled_dot_product_attention(*[rand(2, 16, 6, 32).transpose(1, 2)] * 3),
            "flash_attention B=2 H=6 HK=6 M=16 N=16 D=32 k:0213 q:0213 v:0213",
        ),
        (
            lambda: F.scaled_dot_product_attention(Q, Q, Q, rand(16, 16)),
            "flash_attention B=2 H=6 HK=6 M=16 N=16 D=32 bias:(0,0,16,1) +bias",
        ),
        (
            lambda: F.scaled_dot_product_attention(Q, Q, Q, rand(2, 1, 1, 16) > 0),
            "flash_attention B=2 H=6 HK=6 M=16 N=16 D=32 mask:(16,0,0,1) +mask",
        ),
        (lambda: F.silu(X) * X, "silu_mul R=16 D=32"),
        (lambda: F.silu(HALVES[:, :32]) * HALVES[:, 32:], "silu_mul R=16 D=32 gate:(64,1) up:(64,1)"),
    ],
)  # fmt: skip
def test_calls_are_mapped(profiled: Callable[..., MappedCalls], function: Callable[[], object], found: str) -> None:
    assert problems(profiled(function)) == {found: 1}


@pytest.mark.parametrize(
    ("function", "call", "reason"),
    [
        (lambda: torch.addmm(BIAS, X, W, beta=2), "aten::addmm", "its beta is 2"),
        (
            lambda: torch.addmm(rand(16, 1), X, W),
            "aten::addmm",
            "the tensor that it adds has the shape [16, 1], which is neither a row's",
        ),
        (lambda: torch.mm(X.double(), W.double()), "aten::mm", "its dtype is f64"),
        (lambda: torch.softmax(X, 0), "aten::softmax", "it is not over the last dim"),
        (lambda: F.layer_norm(X, (16, 32), X, X), "aten::layer_norm", "it is over several dims"),
        (lambda: torch.mm(rand(0, 32), W), "aten::mm", "it has no elements"),
        (lambda: torch.cumsum(X, 0), "aten::cumsum", "no bundled operator computes it"),
    ],
)
def test_other_calls_are_told(
    profiled: Callable[..., MappedCalls], function: Callable[[], object], call: str, reason: str
) -> None:
    calls = profiled(function)
    assert [why for name, why in calls.left if name == call and why.startswith(reason)]
    assert calls.problems == []
    assert any(f"of {call}: {reason}" in line for line in calls.told())


def test_a_trace_without_shapes_is_refused(profiled: Callable[..., MappedCalls]) -> None:
    with pytest.raises(SpecError, match=r"a_file.json: no shapes of inputs were recorded") as error:
        profiled(lambda: X @ W, shapes=False)
    assert "record_shapes=True" in error.value.fix


LOG = """Operator: aten.mm.default
cnt: 28, ((T([16, 32], f16), T([32, 64], f16, stride=(1, 32))), {})
cnt: 2, ((T([16, 32], f32), T([32, 64], f32)), {})
Operator: aten._softmax.default
cnt: 3, ((T([2, 4, 8], f32), -1, False), {})
Operator: aten.addmm.default
cnt: 5, ((T([64], f16), T([16, 32], f16), T([32, 64], f16)), {})
cnt: 6, ((T([64], f16), T([16, 32], f16), T([32, 64], f16)), {'beta': 0.5})
Operator: aten._scaled_dot_product_flash_attention.default
cnt: 4, ((T([2, 6, 16, 64], bf16), T([2, 6, 16, 64], bf16), T([2, 6, 16, 64], bf16), 0.0, True), {'scale': 0.125})
Operator: aten.add.Tensor
cnt: 7, ((T([16, 32], f16), T([16, 32], f16)), {})
"""
FROM_LOG = {
    "gemm M=16 N=64 K=32 b:10 T=f16": 28,
    "gemm M=16 N=64 K=32 +bias T=f16": 5,
    "flash_attention B=2 H=6 HK=6 M=16 N=16 D=64 causal=upper_left T=bf16": 4,
    "softmax R=8 D=8": 3,
    "gemm M=16 N=64 K=32": 2,
}


def test_operator_inputs() -> None:
    calls = mapped(LOG.encode())
    assert problems(calls) == FROM_LOG
    assert calls.left == {
        ("aten.addmm.default", "its beta is 0.5"): 6,
        ("aten.add.Tensor", "no bundled operator computes it"): 7,
    }


@pytest.mark.parametrize(
    ("operator", "stated", "found"),
    [
        ("gemm", {"strides": "[[64, 1], [1, 64]]"}, "gemm M=16 N=128 K=64 b:10 T=f16"),
        ("addmm", {"strides": "[[0, 1], [64, 1], [1, 64]]"}, "gemm M=16 N=128 K=64 b:10 +bias T=f16"),
        ("addmm", {"strides": "[[128, 1], [64, 1], [1, 64]]"}, "gemm M=16 N=128 K=64 b:10 +residual T=f16"),
        ("addmm", {"strides": "[[64, 1], [128, 1]]", "bias": "[128]"}, "gemm M=16 N=128 K=64 +bias T=f16"),
    ],
)
def test_products_by_their_dims(operator: str, stated: dict[str, str], found: str) -> None:
    inputs = repr(((), {"dtype": "fp16", "M": "16", "N": "128", "K": "64", **stated}))
    calls = mapped(json.dumps({operator: [{"count": 3, "inputs": inputs}]}).encode())
    assert problems(calls) == {found: 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "a_file.json is not JSON"),
        (b"3", "a_file.json holds 3, no calls"),
        (b"[]", "a_file.json: there are no events of ATen operators"),
        (b"\x1f\x8bnothing", "a_file.json cannot be unpacked"),
        (b'{"aten.mm.default": 3}', "a_file.json: aten.mm.default: 3 is not a list of inputs with counts"),
        (
            b'{"aten.mm.default": [{"inputs": "((T(["}]}',
            "a_file.json: aten.mm.default, inputs 1: '((T([' cannot be read",
        ),
        (b'{"aten.mm.default": {"((T([2], f32, (1, 1)),), {})": 1}}', "has the strides [1, 1]"),
        (b'{"aten.mm.default": {"__import__(\'os\')": 1}}', "cannot be read"),
        (b'{"aten.mm.default": {"({}, ())": 1}}', "are not arguments"),
        (b'{"gemm": {"((), {})": 1}}', "is not a product"),
        (b"{\"addmm\": {\"((), {'M': 1, 'N': 1, 'K': 1, 'strides': [[1, 1], [1, 1]]})\": 1}}", "is not a product"),
        (b"Operator: aten.mm.default\n\nnothing\n", "a_file.json:3: 'nothing' is not a line of operator inputs"),
        (b"Operator: aten.mm.default\ncnt: 1, ((T(2)), {})\n", "a_file.json:2: "),
    ],
)
def test_what_cannot_be_read_is_named(text: bytes, said: str) -> None:
    with pytest.raises(SpecError) as error:
        mapped(text)
    assert said in str(error.value)
    assert error.value.fix


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
