"""A config.json becomes what a forward pass of the model calls."""

import json
from collections import Counter
from typing import Any

import pytest
import torch
from bundled import OPERATORS

from aot_tune.spec.calls import check_call
from aot_tune.spec.workload import normal_problem
from aot_tune.support.errors import SpecError
from aot_tune.workloads.from_model import decoder_problems, read_model
from aot_tune.workloads.from_torch import map_torch
from aot_tune.workloads.mapped_calls import MappedCalls

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}


def forward(config: dict[str, Any], tokens: list[int], dtype: str = "", **shared: int) -> dict[str, float]:
    sizes = read_model(json.dumps(config).encode(), "config.json", dtype)
    counts: Counter[str] = Counter()
    for name, problem, calls in decoder_problems(sizes, tokens, **shared):
        check_call(OPERATORS[name], problem)
        counts[f"{name} {normal_problem(OPERATORS[name], problem).id}"] += calls
    return dict(counts)


def test_a_forward_pass_of_llama() -> None:
    assert forward(LLAMA, [512]) == {
        "gemm M=512 N=6144 K=4096 b:10 T=bf16": 32,
        "flash_attention B=1 H=32 HK=8 M=512 N=512 D=128 causal=upper_left T=bf16": 32,
        "gemm M=512 N=4096 K=4096 b:10 T=bf16": 32,
        "gemm M=512 N=28672 K=4096 b:10 T=bf16": 32,
        "silu_mul R=512 D=14336 gate:(28672,1) up:(28672,1) T=bf16": 32,
        "gemm M=512 N=4096 K=14336 b:10 T=bf16": 32,
        "rms_norm R=512 D=4096 +weight T=bf16": 1,
        "rms_norm R=512 D=4096 +residual +residual_out +weight T=bf16": 64,
        "gemm M=512 N=128256 K=4096 b:10 T=bf16": 1,
    }


BIASED, MIXTRAL = (
    {"attention_bias": True, "mlp_bias": True},
    {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
)
EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}


@pytest.mark.parametrize(
    ("change", "tokens", "shared", "wanted"),
    [
        # Devices share what can be divided; here are twice as many as key heads
        ({}, 16, {"parallel": 16}, {"gemm M=16 N=512 K=4096 b:10 T=bf16": 32}),
        (
            {},
            16,
            {"parallel": 4, "context": 1000},
            {
                "flash_attention B=1 H=8 HK=2 M=16 N=1016 D=128 causal=lower_right T=bf16": 32,
                "silu_mul R=16 D=3584 gate:(7168,1) up:(7168,1) T=bf16": 32,
                "gemm M=16 N=32064 K=4096 b:10 T=bf16": 1,
            },
        ),
        # One token sees all before it
        ({}, 1, {"context": 2047}, {"flash_attention B=1 H=32 HK=8 M=1 N=2048 D=128 T=bf16": 32}),
        ({"model_type": "qwen2"}, 16, {}, {"gemm M=16 N=6144 K=4096 b:10 +bias T=bf16": 32}),
        (BIASED, 16, {}, {"gemm M=16 N=4096 K=14336 b:10 +bias T=bf16": 32}),
        (BIASED, 16, {"parallel": 2}, {"gemm M=16 N=4096 K=7168 b:10 T=bf16": 32}),
        (
            {"model_type": "qwen3", "head_dim": 64},
            16,
            {},
            {"rms_norm R=512 D=64 +weight T=bf16": 32, "rms_norm R=128 D=64 +weight T=bf16": 32},
        ),
        # Experts share the tokens; few have one each
        (MIXTRAL, 1, {}, {"gemm M=1 N=8 K=4096 b:10 T=bf16": 32, "gemm M=1 N=28672 K=4096 b:10 T=bf16": 64}),
        (MIXTRAL, 100, {}, {"gemm M=25 N=4096 K=14336 b:10 T=bf16": 32 * 8}),
        (EXPERTS, 64, {}, {"silu_mul R=4 D=768 gate:(1536,1) up:(1536,1) T=bf16": 32 * 128}),
        # The halves are not aligned as the whole is
        ({"intermediate_size": 1000}, 16, {}, {"silu_mul R=16 D=1000 gate:(2000,1) up:(2000,1) up@16 T=bf16": 32}),
        # The text part of a model of pictures
        ({"text_config": {**LLAMA, "hidden_size": 8192}}, 16, {}, {"gemm M=16 N=128256 K=8192 b:10 T=bf16": 1}),
    ],
)
def test_what_models_differ_in(
    change: dict[str, Any], tokens: int, shared: dict[str, int], wanted: dict[str, float]
) -> None:
    found = forward(LLAMA | change, [tokens], **shared)
    assert {name: found.get(name) for name in wanted} == wanted


def test_the_problems_are_what_torch_calls(tmp_path: Any) -> None:
    """The products of a layer written in torch, with the sizes of a small model."""
    tokens, hidden, width, heads, keys = 24, 64, 96, 4, 2
    small = LLAMA | {"hidden_size": hidden, "intermediate_size": width, "num_attention_heads": heads}
    small |= {"num_key_value_heads": keys, "num_hidden_layers": 1, "vocab_size": 160, "torch_dtype": "float32"}
    head = hidden // heads
    linear, functional = torch.nn.functional.linear, torch.nn.functional
    qkv, out = torch.ones((heads + 2 * keys) * head, hidden), torch.ones(hidden, hidden)
    up, down, words = torch.ones(2 * width, hidden), torch.ones(hidden, width), torch.ones(160, hidden)
    x = torch.ones(tokens, hidden)

    def layer() -> torch.Tensor:
        parts = linear(functional.rms_norm(x, (hidden,), out[0]), qkv).split(
            [heads * head, keys * head, keys * head], 1
        )
        q, k, v = (p.reshape(1, tokens, -1, head).transpose(1, 2).contiguous() for p in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        y = linear(attended.transpose(1, 2).reshape(tokens, hidden), out)
        gate, other = linear(y, up).chunk(2, 1)
        return linear(linear(functional.silu(gate) * other, down), words)

    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.no_grad(), torch.profiler.profile(activities=kinds, record_shapes=True) as profile:
        layer()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    calls = MappedCalls(OPERATORS)
    map_torch((tmp_path / "trace.json").read_bytes(), "trace.json", calls)
    seen = {f"{one.operator} {one.problem.id}" for one in calls.problems}
    assert seen == {name for name in forward(small, [tokens]) if "+residual" not in name}


@pytest.mark.parametrize(
    ("change", "said", "fix"),
    [
        ({"hidden_size": None}, "it has no hidden_size", 'add "hidden_size": NUMBER'),
        ({"vocab_size": None, "vocabsize": 3}, "it has no vocab_size", "did you mean 'vocabsize'?"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is '0'", "positive whole number"),
        ({"num_attention_heads": 30}, "hidden_size 4096 is not divided by num_attention_heads 30", "head_dim"),
        ({"torch_dtype": None}, "it has no torch_dtype", "--dtype bf16"),
        ({"hidden_act": "gelu"}, "its activation is 'gelu'", "from-torch"),
        ({"rms_norm_eps": None, "layer_norm_eps": 1e-5}, "its norms are layer norms", "from-torch"),
        ({"is_encoder_decoder": True}, "it has an encoder", "from-torch"),
        ({"kv_lora_rank": 512}, "it has kv_lora_rank: 512", "from-torch"),
        ({"num_local_experts": 8}, "it has no num_experts_per_tok", 'add "num_experts_per_tok": NUMBER'),
    ],
)
def test_other_configs_are_named(change: dict[str, Any], said: str, fix: str) -> None:
    config = {k: v for k, v in (LLAMA | change).items() if v is not None}
    with pytest.raises(SpecError) as error:
        forward(config, [1])
    assert error.value.what.startswith("config.json: ")
    assert said in error.value.what
    assert fix in error.value.fix


@pytest.mark.parametrize(
    ("change", "parallel", "said", "fix"),
    [
        ({}, 3, "3 devices cannot share num_attention_heads 32 and the intermediate size 14336", "1, 2, 4, 8, 16, 32"),
        ({"vocab_size": 128255}, 2, "2 devices cannot share vocab_size 128255", "among 1"),
        ({"num_key_value_heads": 6}, 4, "4 devices cannot share num_key_value_heads 6", "among 1, 2"),
    ],
)
def test_sizes_that_cannot_be_shared_are_named(change: dict[str, Any], parallel: int, said: str, fix: str) -> None:
    with pytest.raises(SpecError) as error:
        forward(LLAMA | change, [1], parallel=parallel)
    assert error.value.what.startswith(f"config.json: {said}")
    assert fix in error.value.fix
