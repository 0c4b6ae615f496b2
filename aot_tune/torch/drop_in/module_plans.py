"""Single modules that an operator can replace: linear layers, norms, softmax."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any

import torch

from aot_tune.torch.drop_in.patch_library import DTYPES, PatchLibrary
from aot_tune.torch.drop_in.product_calls import LinearProduct
from aot_tune.torch.drop_in.replaced_modules import Forward, Replaced, count_call, own_forward, same_results
from aot_tune.torch.drop_in.row_calls import NormRows, SoftmaxRows
from aot_tune.torch.drop_in.served_rows import ALL_ROWS, RowRanges

__all__ = ["ModulePlan", "parameters_served", "plan_module", "serve_one"]


@dataclass(frozen=True)
class ModulePlan:
    """What replaces a module: a forward, the operators that it calls, and for how many rows."""

    replaced: Replaced
    forward: Forward


def plan_module(library: PatchLibrary, name: str, module: Any) -> ModulePlan | str | None:
    """A plan for a single module; why there is none; or None if no operator is for such modules."""
    kind = type(module)
    if kind is torch.nn.Linear:
        return _linear(library, name, module)
    if isinstance(module, torch.nn.Linear):
        return f"a class of its own, derived from {torch.nn.Linear.__name__}"
    if kind is torch.nn.LayerNorm:
        return _layer_norm(library, name, module)
    if kind is torch.nn.Softmax:
        return _softmax(library, name, module)
    if kind.__name__.endswith("RMSNorm"):
        return _rms_norm(library, name, module)
    return None


def parameters_served(module: torch.nn.Module) -> str:
    """Why operators cannot take a module's own parameters; empty if they can."""
    own = list(module.parameters(recurse=False))
    for parameter in own:
        if type(parameter) is not torch.nn.Parameter or parameter.layout != torch.strided:
            return f"its parameters are {type(parameter).__name__}"
        if parameter.dtype not in DTYPES:
            return f"its parameters are {str(parameter.dtype).removeprefix('torch.')}"
        if parameter.device.type not in ("cpu", "cuda"):
            return f"its parameters are on {parameter.device}"
    if len({p.dtype for p in own}) > 1:
        return "its parameters have several dtypes"
    return ""


def serve_one(made: Replaced, call: Any) -> Forward:
    """A forward of one tensor: `call(module, x)`, or the module's own if that returns None."""

    def forward(self: torch.nn.Module, *arguments: Any, **named: Any) -> Any:
        out = call(self, arguments[0]) if len(arguments) == 1 and not named else None
        count_call(made, served=out is not None)
        return own_forward(self)(self, *arguments, **named) if out is None else out

    return forward


def _planned(made: Replaced, call: Any) -> ModulePlan | str:
    return ModulePlan(made, serve_one(made, call)) if made.rows.ranges else made.rows.refused


def _linear(library: PatchLibrary, name: str, module: torch.nn.Linear) -> ModulePlan | str:
    why = parameters_served(module)
    if why:
        return why
    call = LinearProduct(library, module)
    return _planned(Replaced(name, "Linear", ("gemm",), call.rows), call)


def _layer_norm(library: PatchLibrary, name: str, module: torch.nn.LayerNorm) -> ModulePlan | str:
    if len(module.normalized_shape) != 1:
        return f"it normalises {len(module.normalized_shape)} axes"
    if module.weight is None:
        return "it has no weight"
    if module.bias is None and not library.optional("layer_norm", "bias"):
        return "it has no bias, which the library's layer_norm has"
    why = parameters_served(module)
    if why:
        return why
    call = NormRows(library, "layer_norm", module, module.eps)
    return _planned(Replaced(name, "LayerNorm", ("layer_norm",), call.rows), call)


def _softmax(library: PatchLibrary, name: str, module: torch.nn.Softmax) -> ModulePlan | str:
    if "softmax" in library.without:
        return library.without["softmax"]
    if module.dim is None:
        return "its dim is None"
    call = SoftmaxRows(library)
    dim = module.dim

    def last(self: torch.nn.Module, x: torch.Tensor) -> torch.Tensor | None:
        return call(self, x) if dim in (-1, x.dim() - 1) else None

    return _planned(
        Replaced(name, "Softmax", ("softmax",), RowRanges(ALL_ROWS.ranges, ("asked for each shape",))), last
    )


def _rms_norm(library: PatchLibrary, name: str, module: torch.nn.Module) -> ModulePlan | str:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1:
        return "it has no weight of one axis"
    why = parameters_served(module)
    if why:
        return why
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", 0.0))
    if isinstance(module, torch.nn.RMSNorm) and eps is None:
        eps = torch.finfo(weight.dtype).eps
    if not isinstance(eps, float) or eps <= 0:
        return "it has no epsilon"
    call = NormRows(library, "rms_norm", module, eps)
    made = Replaced(name, type(module).__name__, ("rms_norm",), call.rows)
    plan = _planned(made, call)
    if isinstance(plan, str) or type(module) is torch.nn.RMSNorm:
        return plan
    return plan if _is_rms_norm(module, weight, eps) else "its result is not that of rms_norm"


def _is_rms_norm(module: torch.nn.Module, weight: torch.Tensor, eps: float) -> bool:
    """Whether the module computes x / sqrt(mean(x^2) + eps) * weight for any weight, and has no other input."""
    takes = [p for p in inspect.signature(own_forward(module)).parameters.values() if p.default is p.empty]
    if len(takes) != 2 or any(True for _ in module.children()):
        return False

    def formula(self: Any, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        weighted: torch.Tensor = normed * self.weight.float()
        return weighted.to(x.dtype)

    probe = copy.copy(module)  # with another weight: ones would prove little, and the module keeps its own
    drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) + 1
    other = torch.nn.Parameter(drawn.to(device=weight.device, dtype=weight.dtype), requires_grad=False)
    vars(probe)["_parameters"] = {**module._parameters, "weight": other}
    return same_results(probe, formula, (2, 3, weight.shape[0]), like=weight)
