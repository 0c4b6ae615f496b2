"""Modules that operators can replace: single ones, blocks of several parts, and decoder layers."""

from __future__ import annotations

import ast
import copy
import inspect
import itertools
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from aot_tune.torch.drop_in.operator_calls import (
    GatedRows,
    LinearProduct,
    NormRows,
    SoftmaxRows,
    activation_of,
    hooked,
    same_activation,
)
from aot_tune.torch.drop_in.patch_library import ALL_ROWS, ASKED, DTYPES, PatchLibrary
from aot_tune.torch.drop_in.quantized_linear import QuantizedProduct, quantized_parts
from aot_tune.torch.drop_in.replaced_modules import Forward, Replaced, count_call, own_forward, same_results

_OTHER = "its result is not that of the parts that it seems to be made of"

_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = 2
_STEPS = (
    "residual = hidden_states",
    "hidden_states = self.input_layernorm(hidden_states)",
    "",
    "hidden_states = residual + hidden_states",
    "residual = hidden_states",
    "hidden_states = self.post_attention_layernorm(hidden_states)",
    "hidden_states = self.mlp(hidden_states)",
    "hidden_states = residual + hidden_states",
    "return hidden_states",
)
"""The statements of such a layer. The statement of the attention is checked separately."""


@dataclass(frozen=True)
class ModulePlan:
    """What replaces a module: a forward, the operators that it calls, and for how many rows."""

    replaced: Replaced
    forward: Forward


def plan_module(library: PatchLibrary, name: str, module: torch.nn.Module) -> ModulePlan | str | None:
    """A plan for a module; why there is none; or None if no operator is for such modules."""
    for plan in (_plan_quantized, _plan_single, _plan_block, _plan_decoder_layer):
        planned: ModulePlan | str | None = plan(library, name, module)
        if planned is not None:
            return planned
    return None


def _plan_single(library: PatchLibrary, name: str, module: Any) -> ModulePlan | str | None:
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


def _parameters_served(module: torch.nn.Module) -> str:
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


def _serve_one(replaced: Replaced, call: Any) -> Forward:
    """A forward of one tensor: `call(module, x)`, or the module's own if that returns None."""

    def forward(self: torch.nn.Module, *arguments: Any, **named: Any) -> Any:
        out = call(self, arguments[0]) if len(arguments) == 1 and not named else None
        count_call(replaced, served=out is not None)
        return own_forward(self)(self, *arguments, **named) if out is None else out

    return forward


def _planned(replaced: Replaced, call: Any) -> ModulePlan | str:
    return ModulePlan(replaced, _serve_one(replaced, call)) if replaced.rows.ranges else replaced.rows.refused


def _linear(library: PatchLibrary, name: str, module: torch.nn.Linear) -> ModulePlan | str:
    why = _parameters_served(module)
    if why:
        return why
    call = LinearProduct(library, module)
    return _planned(Replaced(name, "Linear", ("gemm",), call.rows), call)


def _plan_quantized(library: PatchLibrary, name: str, module: Any) -> ModulePlan | str | None:
    """A plan for a module with a weight of 8 bits; why there is none; or None if it has no such weight."""
    parts = quantized_parts(module)
    if parts is None:
        return None
    call = QuantizedProduct(library, module, parts)
    return call.refused or _planned(Replaced(name, type(module).__name__, call.operators, call.rows), call)


def _layer_norm(library: PatchLibrary, name: str, module: torch.nn.LayerNorm) -> ModulePlan | str:
    if len(module.normalized_shape) != 1:
        return f"it normalises {len(module.normalized_shape)} axes"
    if module.weight is None:
        return "it has no weight"
    if module.bias is None and not library.optional("layer_norm", "bias"):
        return "it has no bias, which the library's layer_norm has"
    why = _parameters_served(module)
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

    return _planned(Replaced(name, "Softmax", ("softmax",), ASKED), last)


def _rms_norm(library: PatchLibrary, name: str, module: torch.nn.Module) -> ModulePlan | str:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1:
        return "it has no weight of one axis"
    why = _parameters_served(module)
    if why:
        return why
    eps = _epsilon(module)
    if not isinstance(eps, float) or eps <= 0:
        return "it has no epsilon"
    call = NormRows(library, "rms_norm", module, eps)
    replaced = Replaced(name, type(module).__name__, ("rms_norm",), call.rows)
    plan = _planned(replaced, call)
    if isinstance(plan, str) or type(module) is torch.nn.RMSNorm:
        return plan
    return plan if _is_rms_norm(module, weight, eps) else "its result is not that of rms_norm"


def _epsilon(norm: Any) -> Any:
    """The epsilon of an RMS norm. None of torch's own stands for the dtype's."""
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0))
    return torch.finfo(norm.weight.dtype).eps if isinstance(norm, torch.nn.RMSNorm) and eps is None else eps


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


def _plan_block(library: PatchLibrary, name: str, module: torch.nn.Module) -> ModulePlan | str | None:
    """A plan for a module of several parts; why there is none; or None if it is not such a module."""
    if type(module) is torch.nn.Sequential:
        return _sequential(library, name, module)
    parts = dict(module.named_children())
    linear = {n for n, m in parts.items() if type(m) is torch.nn.Linear}
    if {"gate_proj", "up_proj", "down_proj"} <= linear and "act_fn" in {*parts, *vars(module)}:
        return _gated(library, name, module)
    if set(parts) == {"dense", "intermediate_act_fn"} and "dense" in linear:
        return _activated(library, name, module)
    if set(parts) == {"dense", "LayerNorm", "dropout"} and "dense" in linear:
        return _added_and_normed(library, name, module)
    return None


def _sequential(library: PatchLibrary, name: str, module: torch.nn.Sequential) -> ModulePlan | str | None:
    """Linear layers that are directly followed by an activation: one product each."""
    parts: list[Any] = list(module)
    pairs: dict[int, LinearProduct] = {}
    refused = ""
    for step, (first, second) in enumerate(itertools.pairwise(parts)):
        activation = activation_of(second) if type(first) is torch.nn.Linear else None
        if activation is None or _parameters_served(first):
            continue
        call = LinearProduct(library, first, activation)
        refused = refused or call.rows.refused
        if call.rows.ranges:
            pairs[step] = call
    if not pairs:
        return refused or None
    rows = next(iter(pairs.values())).rows
    replaced = Replaced(name, f"Sequential ({len(pairs)} with an activation)", ("gemm",), rows)

    def forward(self: torch.nn.Sequential, *arguments: Any, **named: Any) -> Any:
        if len(arguments) != 1 or named or len(self) != len(parts):
            return own_forward(self)(self, *arguments, **named)
        x, step, served = arguments[0], 0, False
        steps: list[Any] = list(self)
        while step < len(steps):
            call = pairs.get(step)
            out = None
            if call is not None and not self.training and isinstance(x, torch.Tensor):
                first, second = steps[step], steps[step + 1]
                same = type(first) is torch.nn.Linear and same_activation(second, parts[step + 1])
                out = call(first, x) if same and not hooked(first, second) else None
            served = served or out is not None
            x = steps[step](x) if out is None else out
            step += 1 if out is None else 2
        count_call(replaced, served=served)
        return x

    return ModulePlan(replaced, forward)


def _checked(
    replaced: Replaced,
    call: LinearProduct | GatedRows,
    fused: Callable[..., torch.Tensor | None],
    module: torch.nn.Module,
    *shapes: tuple[int, ...],
) -> ModulePlan | str:
    """A plan of `fused(module, *tensors)`, which uses `call`, if its results equal those of the module itself."""
    count = len(shapes)

    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        out = fused(self, *arguments) if len(arguments) == count and not named and not self.training else None
        count_call(replaced, served=out is not None)
        return own_forward(self)(self, *arguments, **named) if out is None else out

    like: torch.Tensor = next(module.parameters())
    kept, call.rows = call.rows, ALL_ROWS
    same = same_results(module, forward, *shapes, like=like) and replaced.passed == 0
    call.rows, replaced.served, replaced.passed = kept, 0, 0
    return ModulePlan(replaced, forward) if same else _OTHER


def _gated(library: PatchLibrary, name: str, module: Any) -> ModulePlan | str:
    why = _parameters_served(module.gate_proj) or _parameters_served(module.up_proj)
    if why:
        return why
    if activation_of(module.act_fn) != "silu":
        return "its activation is not silu"
    weight = module.gate_proj.weight
    call = GatedRows(library, weight.shape[0], weight)
    if not call.rows.ranges:
        return call.rows.refused
    replaced, act_fn = Replaced(name, type(module).__name__, ("silu_mul",), call.rows), module.act_fn

    def fused(self: Any, x: torch.Tensor) -> torch.Tensor | None:
        if torch.is_grad_enabled() and _requires_gradient(self.gate_proj, self.up_proj, x):
            return None
        gate, up = self.gate_proj(x), self.up_proj(x)
        silent = same_activation(self.act_fn, act_fn) and not hooked(self.act_fn)
        out = call(self, gate, up) if silent else None
        made_of = self.act_fn(gate) * up if out is None else out
        result: torch.Tensor = self.down_proj(made_of)
        return result

    return _checked(replaced, call, fused, module, (2, 1, weight.shape[1]))


def _requires_gradient(*of: Any) -> bool:
    """Whether a tensor, or a parameter of a layer, requires a gradient."""
    for holder in of:
        if isinstance(holder, torch.Tensor):
            if holder.requires_grad:
                return True
        elif holder.weight.requires_grad:
            return True
    return False


def _activated(library: PatchLibrary, name: str, module: Any) -> ModulePlan | str:
    """`activation(dense(x))`, as in BERT."""
    why = _parameters_served(module.dense)
    activation = activation_of(module.intermediate_act_fn)
    if why or activation is None:
        return why or "its activation is not one of gemm's"
    call = LinearProduct(library, module.dense, activation)
    if not call.rows.ranges:
        return call.rows.refused
    replaced, act_fn = Replaced(name, type(module).__name__, ("gemm",), call.rows), module.intermediate_act_fn

    def fused(self: Any, x: torch.Tensor) -> torch.Tensor | None:
        same = same_activation(self.intermediate_act_fn, act_fn) and not hooked(self.dense, self.intermediate_act_fn)
        return call(self.dense, x) if same else None

    return _checked(replaced, call, fused, module, (2, 1, module.dense.in_features))


def _added_and_normed(library: PatchLibrary, name: str, module: Any) -> ModulePlan | str:
    """`LayerNorm(dropout(dense(x)) + residual)`, as in BERT."""
    why = _parameters_served(module.dense)
    if why or type(module.dropout) is not torch.nn.Dropout:
        return why or "its dropout is of another class"
    call = LinearProduct(library, module.dense, residual=True)
    if not call.rows.ranges:
        return call.rows.refused
    replaced = Replaced(name, type(module).__name__, ("gemm",), call.rows)

    def fused(self: Any, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor | None:
        if hooked(self.dense, self.dropout) or self.dropout.training:
            return None
        added = call(self.dense, x, residual)
        return None if added is None else self.LayerNorm(added)

    inner, outer = module.dense.in_features, module.dense.out_features
    return _checked(replaced, call, fused, module, (2, 1, inner), (2, 1, outer))


def _plan_decoder_layer(library: PatchLibrary, name: str, module: Any) -> ModulePlan | str | None:
    """A plan for a layer like Llama's; why there is none; or None if it has other parts."""
    if {n for n, _ in module.named_children()} != _PARTS:
        return None
    norm = module.post_attention_layernorm
    plan = _plan_single(library, "", norm)
    if not isinstance(plan, ModulePlan) or plan.replaced.operators != ("rms_norm",):
        return "its norm is not replaced"
    if _parameters_served(norm):
        return _parameters_served(norm)
    written = _written(module)
    if isinstance(written, str):
        return written
    call = NormRows(library, "rms_norm", norm, _epsilon(norm), residual=True)
    if not call.rows.ranges:
        return call.rows.refused
    replaced = Replaced(name, type(module).__name__, ("rms_norm with residual",), call.rows)

    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        norm = self.post_attention_layernorm
        if len(arguments) != 1 or self.training or hooked(norm) or any(n not in written for n in named):
            count_call(replaced, served=False)
            return own_forward(self)(self, *arguments, **named)
        residual = arguments[0]
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(residual), **{**written, **named})
        both = call.added(norm, attended, residual)
        count_call(replaced, served=both is not None)
        if both is None:
            total = residual + attended
            normed = norm(total)
        else:
            normed, total = both
        return total + self.mlp(normed)

    return ModulePlan(replaced, forward)


def _written(module: torch.nn.Module) -> dict[str, Any] | str:
    """The defaults of what the layer passes to its attention; or why its code is not the expected one."""
    function = inspect.unwrap(own_forward(module))
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return f"the code of {type(module).__name__}.forward cannot be read"
    passed = _passed_on(tree.body[0])
    parameters = list(inspect.signature(function).parameters.values())
    named = {p.name: p.default for p in parameters[2:] if p.kind is p.POSITIONAL_OR_KEYWORD}
    first = [p.name for p in parameters[:2]] == ["self", "hidden_states"]
    if not first or set(named) != passed or any(d is inspect.Parameter.empty for d in named.values()):
        return f"the code of {type(module).__name__}.forward differs from Llama's"
    return named


def _passed_on(function: ast.stmt) -> set[str] | None:
    """The arguments that the layer passes to its attention, by their own names; None for other code."""
    if not isinstance(function, ast.FunctionDef):
        return None
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if tuple(ast.unparse(s) if n != _ATTENTION else "" for n, s in enumerate(body)) != _STEPS:
        return None
    attends = body[_ATTENTION]
    if not isinstance(attends, ast.Assign) or ast.unparse(attends.targets[0]).strip("()") != "hidden_states, _":
        return None
    call = attends.value
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "self.self_attn" or call.args:
        return None
    if any(not isinstance(k.value, ast.Name) or k.arg not in (None, k.value.id) for k in call.keywords):
        return None
    return {k.arg for k in call.keywords if k.arg is not None} - {"hidden_states"}
