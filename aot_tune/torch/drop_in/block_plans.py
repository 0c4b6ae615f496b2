"""Modules of several parts that operators compute in fewer steps: gated feed-forwards, layers with an activation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from aot_tune.torch.drop_in.call_gates import hooked
from aot_tune.torch.drop_in.module_plans import ModulePlan, parameters_served
from aot_tune.torch.drop_in.patch_library import PatchLibrary
from aot_tune.torch.drop_in.product_calls import LinearProduct, activation_of, same_activation
from aot_tune.torch.drop_in.replaced_modules import Replaced, count_call, own_forward, same_results
from aot_tune.torch.drop_in.row_calls import GatedRows
from aot_tune.torch.drop_in.served_rows import ALL_ROWS

__all__ = ["plan_block"]

_OTHER = "its result is not that of the parts that it seems to be made of"


def plan_block(library: PatchLibrary, name: str, module: torch.nn.Module) -> ModulePlan | str | None:
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
    for place, (first, second) in enumerate(itertools.pairwise(parts)):
        activation = activation_of(second) if type(first) is torch.nn.Linear else None
        if activation is None or parameters_served(first):
            continue
        call = LinearProduct(library, first, activation)
        refused = refused or call.rows.refused
        if call.rows.ranges:
            pairs[place] = call
    if not pairs:
        return refused or None
    rows = next(iter(pairs.values())).rows
    made = Replaced(name, f"Sequential ({len(pairs)} with an activation)", ("gemm",), rows)

    def forward(self: torch.nn.Sequential, *arguments: Any, **named: Any) -> Any:
        if len(arguments) != 1 or named or len(self) != len(parts):
            return own_forward(self)(self, *arguments, **named)
        x, place, served = arguments[0], 0, False
        steps: list[Any] = list(self)
        while place < len(steps):
            call = pairs.get(place)
            out = None
            if call is not None and not self.training and isinstance(x, torch.Tensor):
                first, second = steps[place], steps[place + 1]
                same = type(first) is torch.nn.Linear and same_activation(second, parts[place + 1])
                out = call(first, x) if same and not hooked(first, second) else None
            served = served or out is not None
            x = steps[place](x) if out is None else out
            place += 1 if out is None else 2
        count_call(made, served=served)
        return x

    return ModulePlan(made, forward)


def _checked(
    made: Replaced,
    call: LinearProduct | GatedRows,
    fused: Callable[..., torch.Tensor | None],
    module: torch.nn.Module,
    *shapes: tuple[int, ...],
) -> ModulePlan | str:
    """A plan of `fused(module, *tensors)`, which uses `call`, if its results equal those of the module itself."""
    count = len(shapes)

    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        out = fused(self, *arguments) if len(arguments) == count and not named and not self.training else None
        count_call(made, served=out is not None)
        return own_forward(self)(self, *arguments, **named) if out is None else out

    like: torch.Tensor = next(module.parameters())
    kept, call.rows = call.rows, ALL_ROWS
    same = same_results(module, forward, *shapes, like=like) and made.passed == 0
    call.rows, made.served, made.passed = kept, 0, 0
    return ModulePlan(made, forward) if same else _OTHER


def _gated(library: PatchLibrary, name: str, module: Any) -> ModulePlan | str:
    why = parameters_served(module.gate_proj) or parameters_served(module.up_proj)
    if why:
        return why
    if activation_of(module.act_fn) != "silu":
        return "its activation is not silu"
    weight = module.gate_proj.weight
    call = GatedRows(library, weight.shape[0], weight)
    if not call.rows.ranges:
        return call.rows.refused
    made, act_fn = Replaced(name, type(module).__name__, ("silu_mul",), call.rows), module.act_fn

    def fused(self: Any, x: torch.Tensor) -> torch.Tensor | None:
        if torch.is_grad_enabled() and weight_requires(self.gate_proj, self.up_proj, x):
            return None
        gate, up = self.gate_proj(x), self.up_proj(x)
        silent = same_activation(self.act_fn, act_fn) and not hooked(self.act_fn)
        out = call(self, gate, up) if silent else None
        made_of = self.act_fn(gate) * up if out is None else out
        result: torch.Tensor = self.down_proj(made_of)
        return result

    return _checked(made, call, fused, module, (2, 1, weight.shape[1]))


def weight_requires(*of: Any) -> bool:
    """Whether a tensor, or a parameter of a layer, requires a gradient."""
    for one in of:
        if isinstance(one, torch.Tensor):
            if one.requires_grad:
                return True
        elif one.weight.requires_grad:
            return True
    return False


def _activated(library: PatchLibrary, name: str, module: Any) -> ModulePlan | str:
    """`activation(dense(x))`, as in BERT."""
    why = parameters_served(module.dense)
    activation = activation_of(module.intermediate_act_fn)
    if why or activation is None:
        return why or "its activation is not one of gemm's"
    call = LinearProduct(library, module.dense, activation)
    if not call.rows.ranges:
        return call.rows.refused
    made, act_fn = Replaced(name, type(module).__name__, ("gemm",), call.rows), module.intermediate_act_fn

    def fused(self: Any, x: torch.Tensor) -> torch.Tensor | None:
        same = same_activation(self.intermediate_act_fn, act_fn) and not hooked(self.dense, self.intermediate_act_fn)
        return call(self.dense, x) if same else None

    return _checked(made, call, fused, module, (2, 1, module.dense.in_features))


def _added_and_normed(library: PatchLibrary, name: str, module: Any) -> ModulePlan | str:
    """`LayerNorm(dropout(dense(x)) + residual)`, as in BERT."""
    why = parameters_served(module.dense)
    if why or type(module.dropout) is not torch.nn.Dropout:
        return why or "its dropout is of another class"
    call = LinearProduct(library, module.dense, residual=True)
    if not call.rows.ranges:
        return call.rows.refused
    made = Replaced(name, type(module).__name__, ("gemm",), call.rows)

    def fused(self: Any, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor | None:
        if hooked(self.dense, self.dropout) or self.dropout.training:
            return None
        added = call(self.dense, x, residual)
        return None if added is None else self.LayerNorm(added)

    inner, outer = module.dense.in_features, module.dense.out_features
    return _checked(made, call, fused, module, (2, 1, inner), (2, 1, outer))
