"""examples/vllm_plugin beside a stand-in of vLLM's classes: which of their calls go to operators."""

import runpy
import sys
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from environments import ROOT
from patched_models import Library, near

PLUGIN = ROOT / "examples" / "vllm_plugin" / "aot_tune_vllm.py"
LAYERS = "vllm.model_executor.layers"


class CustomOp(torch.nn.Module):
    """Of vLLM: layers of others take the place of its own, by the name of the class."""

    others: ClassVar[dict[str, Any]] = {}

    def __init__(self, **given: Any) -> None:
        super().__init__()
        vars(self).update(given)

    @classmethod
    def register_oot(cls, name: str) -> Any:
        return lambda other: cls.others.setdefault(name, other)

    def forward_cuda(self, *_: Any) -> str:
        return "vLLM's own"


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The plug-in's layers by the names of those that they replace; and the library."""
    classes = {"activation": "SiluAndMul", "layernorm": "RMSNorm", "quantization.input_quant_fp8": "QuantFP8"}
    modules = {"vllm.model_executor.custom_op": {"CustomOp": CustomOp}}
    modules |= {f"{LAYERS}.{module}": {name: type(name, (CustomOp,), {})} for module, name in classes.items()}
    library = Library("quantize_rows")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AOT_TUNE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))  # without torch's shim
        for name, members in modules.items():
            patched.setitem(sys.modules, name, ModuleType(name))
            vars(sys.modules[name]).update(members)
        runpy.run_path(str(PLUGIN))["register"](library)
    return {**CustomOp.others, "library": library}


def test_norms_and_gates(others: dict[str, Any]) -> None:
    x, residual, weight = torch.randn(4, 64), torch.randn(4, 64), torch.randn(64)
    norm = others["RMSNorm"](weight=weight, variance_epsilon=1e-5, variance_size_override=None)
    near(norm.forward_cuda(x), torch.nn.functional.rms_norm(x, (64,), weight, 1e-5))
    out, total = norm.forward_cuda(x, residual)
    near(total, x + residual)
    near(out, torch.nn.functional.rms_norm(x + residual, (64,), weight, 1e-5))
    near(others["SiluAndMul"]().forward_cuda(x), torch.nn.functional.silu(x[:, :32]) * x[:, 32:])
    assert norm.forward_cuda(x.bfloat16()) == "vLLM's own"  # its weight is in another dtype
    assert dict(others["library"].calls) == {"rms_norm": 1, "rms_norm residual": 1, "silu_mul": 1}


def test_rows_in_8_bits(others: dict[str, Any]) -> None:
    x, given = torch.randn(6, 256).bfloat16(), {"static": False, "num_token_padding": None, "use_ue8m0": False}
    groups = {"is_group_quant": True, "group_size": 128, "column_major_scales": True}
    for layer, width in (
        (others["QuantFP8"](**given, **groups), 128),
        (others["QuantFP8"](**given, is_group_quant=False, use_per_token_if_dynamic=True), 256),
    ):
        out, scale = layer.forward_cuda(x)
        assert (out.dtype, scale.shape) == (torch.float8_e4m3fn, (6, 256 // width))
        near(scale, x.float().reshape(6, -1, width).abs().amax(2) / 448)
        assert width == 256 or scale.stride() == (1, 6)
        near(
            layer.forward_cuda(x[:1] * 0)[1], torch.full((1, 256 // width), (1e-10 if width == 128 else 1 / 512) / 448)
        )
    _, powers = others["QuantFP8"](**given | {"use_ue8m0": True}, **groups).forward_cuda(x)
    assert torch.equal(powers.log2(), powers.log2().round())

    assert others["QuantFP8"](**given | {"static": True}, **groups).forward_cuda(x) == "vLLM's own"
    assert others["QuantFP8"](**given | {"use_ue8m0": None}, **groups).forward_cuda(x) == "vLLM's own"
