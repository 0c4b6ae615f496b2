"""Gradients of operators that were registered with a backward function. Any other call that needs one raises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from aot_tune.signatures.operator_signature import OperatorSignature, Overload
from aot_tune.torch.torch_versions import TorchError

BackwardCall = SimpleNamespace
"""What a backward function gets of its call.

That is inputs (None if absent), new outputs, scalars and attributes by name, and `needs`: the names of the inputs whose
gradients are wanted."""

Backward = Callable[..., Mapping[str, "torch.Tensor | None"]]
"""`backward(call, *gradients)`: one gradient for each output that the call returned, None if nothing depends on it.

It returns the gradients of inputs by name. If its call is compiled, it is traced too. It may use torch's functions and
operators of torch.ops.
"""


def check_backward(operators: tuple[OperatorSignature, ...], backward: Mapping[str, Backward]) -> None:
    """Refuse functions for operators that do not exist or cannot have gradients.

    Raises:
        TorchError: naming the operator.
    """
    by_name = {op.name: op for op in operators}
    for name, function in backward.items():
        if name not in by_name:
            raise TorchError(
                f"backward has a function for {name!r}, which is not an operator of the library",
                fix=f"use names of these: {', '.join(sorted(by_name))}",
            )
        if not callable(function):
            raise TorchError(f"the backward of {name!r} is {function!r:.60}", fix="pass a function")
        op = by_name[name]
        changed = [t.name for t in op.tensors if t.inout or t.to_pass]
        if changed:
            raise TorchError(
                f"operator {name!r} can have no backward",
                why=f"it writes to {changed[0]!r}, which its caller passes: the values that a gradient needs would be "
                f"gone",
                fix="wrap it into a torch.autograd.Function that keeps what it needs",
            )


def register_backward(
    module: ModuleType,
    op: OperatorSignature,
    overload: Overload,
    qualified: str,
    backward: Backward,
    library: torch.library.Library,
) -> None:
    """Register a backward for an overload that returns new outputs."""
    inputs = [t.name for t in op.positional]
    plain = {s.name: s.default for s in op.scalars} | {a.name: a.choices[0] for a in op.attributes}

    def setup_context(
        ctx: Any, inputs: tuple[Any, ...], output: Any, keyword_only_inputs: Mapping[str, Any] | None = None
    ) -> None:
        made = output if isinstance(output, tuple) else (output,)
        tensors = [*inputs, *[None] * (len(op.positional) - len(inputs))]
        ctx.save_for_backward(*tensors, *made)
        passed = {name: value for name, value in (keyword_only_inputs or {}).items() if value is not None}
        ctx.plain = {**plain, **passed}
        ctx.passed = len(inputs)

    def run_backward(ctx: Any, *gradients: Any) -> Any:
        names = [*inputs, *overload.made]
        needs = frozenset(n for n, wanted in zip(inputs, ctx.needs_input_grad, strict=False) if wanted)
        call = BackwardCall(**dict(zip(names, ctx.saved_tensors, strict=True)), **ctx.plain, needs=needs)
        computed = backward(call, *gradients)
        unknown = set(computed) - set(inputs)
        missing = {n for n in needs if computed.get(n) is None}
        if unknown or missing:
            name = sorted(unknown or missing)[0]
            raise module.CallError(
                f"{op.name}: its backward function returns a gradient for {name!r}, which is not an input"
                if unknown
                else f"{op.name}: its backward function returns no gradient for {name!r}, which needs one"
            )
        return tuple(computed.get(n) if n in needs else None for n in inputs[: ctx.passed])

    torch.library.register_autograd(qualified, run_backward, setup_context=setup_context, lib=library)


def refuse_transforms(module: ModuleType, op: OperatorSignature, defined: str, library: torch.library.Library) -> None:
    """Make calls below torch.func's transforms raise. Torch would lose gradients there, or call one row at a time."""

    def refuse(*_arguments: Any, **_named: Any) -> Any:
        raise module.CallError(
            f"{op.name}: it was called inside a transform of torch.func (grad, vjp, jvp, vmap, functionalize). It has "
            f"no "
            "rule for these. Call it outside of them. For torch.autograd pass backward= to aot_tune.torch.register()"
        )

    library.impl(defined, refuse, "FuncTorchDynamicLayerFrontMode")  # type: ignore[no-untyped-call]
