"""A decoder layer whose residual is added and normed in one step. Its code must be known to do nothing else."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import torch

from aot_tune.torch.drop_in.call_gates import hooked
from aot_tune.torch.drop_in.module_plans import ModulePlan, parameters_served, plan_module
from aot_tune.torch.drop_in.patch_library import PatchLibrary
from aot_tune.torch.drop_in.replaced_modules import Replaced, count_call, own_forward
from aot_tune.torch.drop_in.row_calls import NormRows

__all__ = ["plan_decoder_layer"]

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


def plan_decoder_layer(library: PatchLibrary, name: str, module: Any) -> ModulePlan | str | None:
    """A plan for a layer like Llama's; why there is none; or None if it has other parts."""
    if {n for n, _ in module.named_children()} != _PARTS:
        return None
    norm = module.post_attention_layernorm
    plan = plan_module(library, "", norm)
    if not isinstance(plan, ModulePlan) or plan.replaced.operators != ("rms_norm",):
        return "its norm is not replaced"
    if parameters_served(norm):
        return parameters_served(norm)
    written = _written(module)
    if isinstance(written, str):
        return written
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    call = NormRows(
        library, "rms_norm", norm, torch.finfo(norm.weight.dtype).eps if eps is None else eps, residual=True
    )
    if not call.rows.ranges:
        return call.rows.refused
    made = Replaced(name, type(module).__name__, ("rms_norm with residual",), call.rows)

    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        norm = self.post_attention_layernorm
        if len(arguments) != 1 or self.training or hooked(norm) or any(n not in written for n in named):
            count_call(made, served=False)
            return own_forward(self)(self, *arguments, **named)
        residual = arguments[0]
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(residual), **{**written, **named})
        both = call.added(norm, attended, residual)
        count_call(made, served=both is not None)
        if both is None:
            total = residual + attended
            normed = norm(total)
        else:
            normed, total = both
        return total + self.mlp(normed)

    return ModulePlan(made, forward)


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
