"""`aot_tune.torch.patch` on linear layers with weights of 8 bits: which are replaced, and what comes out."""

import importlib.machinery
import os
import sys
from typing import Any

import pytest
import torch
from patched_models import Library, Tensor, near

from aot_tune.torch import patch

F8 = torch.float8_e4m3fn
FETCHED = [f for f in os.environ.get("AOT_TUNE_TEST_TRITON_PACKAGES", "").split(os.pathsep) if f]
EIGHT_BITS = "quantize_rows", "scaled_mm", "int8_mm"


def in_f8(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Rows in f8, and the scales of their groups of columns."""
    parts = x.float().reshape(x.shape[0], -1, group)
    scale = parts.abs().amax(2, keepdim=True).clamp(min=1e-12) / 448
    return (parts / scale).to(F8).reshape(x.shape), scale[:, :, 0]


class Layer(torch.nn.Module):
    """A layer as quantizing libraries make them, with `scales` of "weight", "rows" or "blocks"."""

    def __init__(self, dtype: torch.dtype, scales: str, *, rounds: bool = True, factor: float = 1.0) -> None:
        super().__init__()
        n, k, draw = 256, 384, torch.Generator().manual_seed(3)
        weight = torch.randn(n, k, generator=draw)
        shape = {"weight": (1,), "rows": (n, 1), "blocks": (n // 128, k // 128)}[scales]
        scale = (torch.rand(shape, generator=draw) + 0.5) / 20
        self.register_buffer("weight", (weight * 20).clamp(-100, 100).round().to(dtype))
        self.register_buffer("weight_scale", scale)
        self.bias = torch.nn.Parameter(torch.randn(n, generator=draw).bfloat16(), requires_grad=False)
        self.group, self.rounds, self.factor = 128 if scales == "blocks" else k, rounds, factor

    def wide(self) -> Tensor:
        scale: Tensor = self.weight_scale
        if self.group == 128:
            scale = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return self.weight.float() * scale

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1]).float()
        if self.rounds:
            rounded, scale = in_f8(flat, self.group)
            flat = rounded.float() * scale.repeat_interleave(self.group, 1)
        y = self.factor * flat @ self.wide().t() + self.bias.float()
        return y.to(x.dtype).reshape(*x.shape[:-1], -1)


@pytest.mark.parametrize(
    ("dtype", "scales", "called"),
    [
        (F8, "weight", ["quantize_rows", "scaled_mm"]),
        (F8, "rows", ["quantize_rows", "scaled_mm"]),
        (F8, "blocks", ["quantize_rows", "scaled_mm"]),
        (torch.int8, "weight", ["int8_mm"]),
        (torch.int8, "rows", ["int8_mm"]),
    ],
)
def test_layers_that_compute_the_same_are_replaced(dtype: torch.dtype, scales: str, called: list[str]) -> None:
    model, library = torch.nn.Sequential(Layer(dtype, scales, rounds=dtype == F8)).eval(), Library(*EIGHT_BITS)
    x = torch.randn(2, 5, 384).bfloat16()
    want = model(x)
    with patch(model, library) as patched:
        library.calls.clear()
        near(model(x), want)
        assert dict(library.calls) == dict.fromkeys(called, 1)
        assert (patched.replaced[0].operators, patched.replaced[0].served) == (tuple(called), 1)
        near(torch.compile(model, fullgraph=True, backend="aot_eager")(x), want)
        assert model(x.float()).dtype == torch.float32  # another dtype than that which was compared
        assert patched.replaced[0].passed == 1
        kept, model[0].weight_scale = model[0].weight_scale, torch.ones(8)  # of another form
        with pytest.raises((RuntimeError, IndexError)):  # of its own
            model(x)
        model[0].weight_scale = kept
    assert torch.equal(model(x), want)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"dtype": F8, "scales": "rows", "rounds": False}, "its result is not that of quantize_rows and scaled_mm"),
        ({"dtype": F8, "scales": "rows", "factor": 1.02}, "its result is not that of quantize_rows and scaled_mm"),
        ({"dtype": torch.int8, "scales": "rows"}, "its result is not that of int8_mm"),
        (
            {"dtype": torch.int8, "scales": "blocks", "rounds": False},
            "its scales are [2, 3], for a weight of [256, 384]",
        ),
    ],
)
def test_layers_that_compute_something_else_are_left(given: dict[str, Any], why: str) -> None:
    with patch(torch.nn.Sequential(Layer(**given)).eval(), Library(*EIGHT_BITS)) as patched:
        assert f"0: {why}" in str(patched)
    with patch(torch.nn.Sequential(Layer(**given)).eval(), Library()) as patched:
        assert "0: the library has no " in str(patched) or "its scales" in why


@pytest.mark.skipif(
    importlib.machinery.PathFinder.find_spec("torchao", [*FETCHED, *sys.path]) is None and not os.environ.get("CI"),
    reason="for torchao's layers: pip install --no-deps torchao==0.18.0",
)
def test_torchaos_layers_with_int8_weights_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*FETCHED, *sys.path])
    quantization = importlib.import_module("torchao.quantization")
    layers = torch.nn.Linear(256, 384), torch.nn.ReLU(), torch.nn.Linear(384, 200, bias=False)
    model, library = torch.nn.Sequential(*layers).bfloat16().eval(), Library(*EIGHT_BITS)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    x = torch.randn(3, 4, 256).bfloat16()
    with torch.no_grad():
        want = model(x)
        with patch(model, library) as patched:
            near(model(x), want)
            near(torch.compile(model, fullgraph=True, backend="aot_eager")(x), want)
    assert [made.served for made in patched.replaced] == [1, 1]
