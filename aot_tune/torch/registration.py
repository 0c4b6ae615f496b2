"""Operators of a library's module as operators of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from aot_tune.torch.backward import Backward, check_backward, refuse_transforms, register_backward
from aot_tune.torch.fake_calls import FakeCall
from aot_tune.torch.operator_signature import OperatorSignature, Overload, read_signatures
from aot_tune.torch.schemas import schema_of
from aot_tune.torch.torch_errors import TorchError

__all__ = ["Registered", "register"]

_TAGS = tuple(getattr(torch.Tag, name) for name in ("pt2_compliant_tag", "needs_exact_strides") if hasattr(torch.Tag, name))
"""Compiled graphs pass tensors with the strides that they had before: variants are tuned for strides."""

_KEY = "CompositeExplicitAutograd"
"""What serves calls on every device; the library says which of them it has kernels for."""

_registered: dict[str, tuple[ModuleType, Registered, torch.library.Library]] = {}
"""By namespace; torch forgets operators when their library object goes."""


@dataclass(frozen=True)
class Registered:
    """What `register` made: operators under `torch.ops.<namespace>`; `shim` says whether calls go through C++ alone."""

    namespace: str
    operators: tuple[str, ...]
    shim: bool
    differentiable: tuple[str, ...] = ()


def register(
    module: ModuleType, namespace: str | None = None, *, backward: Mapping[str, Backward] | None = None
) -> Registered:
    """Put every operator of a library under `torch.ops.<namespace>`.

    Args:
        module: the Python module of the library, such as `aot_tune.ops`.
        namespace: by default the name of the module's package, with `_` for dots; of a module without one its own.
        backward: functions that compute gradients, by operators' names, see `Backward`.

    Registering the same module again under the same namespace, with the same functions, changes nothing.

    Raises:
        TorchError: when the module is none of a library, or the namespace or a backward cannot be.
    """
    operators = read_signatures(module)
    namespace = _namespace(module) if namespace is None else namespace
    functions = dict(backward or {})
    check_backward(operators, functions)
    if namespace in _registered:
        return _again(module, namespace, functions)
    if not namespace.isidentifier() or namespace in ("aten", "prim", "prims", "quantized", "inductor", "_c10d_functional"):
        raise TorchError(f"{namespace!r} is no namespace for operators", fix="pass namespace=, an identifier of your own")
    library = torch.library.Library(namespace, "FRAGMENT")
    for op in operators:
        for overload in op.overloads():
            _define(module, library, namespace, op, overload, functions.get(op.name))
    made = Registered(namespace, tuple(op.name for op in operators), False, tuple(functions))
    _registered[namespace] = module, made, library
    return made


def _namespace(module: ModuleType) -> str:
    package = module.__name__.rpartition(".")[0] or module.__name__
    return package.replace(".", "_")


def _again(module: ModuleType, namespace: str, functions: Mapping[str, Backward]) -> Registered:
    before, made, _ = _registered[namespace]
    if before is not module:
        raise TorchError(
            f"the namespace {namespace!r} has the operators of {before.__name__} already",
            fix="pass another namespace=",
        )
    if set(functions) - set(made.differentiable):
        raise TorchError(
            f"{module.__name__} is registered as {namespace!r} already, without a backward for "
            f"{', '.join(sorted(set(functions) - set(made.differentiable)))}",
            fix="pass backward= where it is registered first",
        )
    return made


def _define(
    module: ModuleType,
    library: torch.library.Library,
    namespace: str,
    op: OperatorSignature,
    overload: Overload,
    backward: Backward | None,
) -> None:
    schema = schema_of(op, overload)
    defined = schema.partition("(")[0]
    qualified = f"{namespace}::{defined}"
    functional = bool(overload.made)
    try:
        library.define(schema, tags=_TAGS)
    except RuntimeError as error:
        raise TorchError(
            f"torch takes no operator {qualified}",
            why=str(error).partition("\n")[0],
            fix="pass another namespace=, or rename the operator or its arguments",
        ) from error
    differentiable = backward is not None and functional
    library.impl(defined, _python_call(module, op, overload), _KEY)
    torch.library.register_fake(
        qualified, FakeCall(module, op, overload, differentiable=differentiable), lib=library, allow_override=False
    )
    if backward is not None and functional:
        register_backward(module, op, overload, qualified, backward, library)
    else:
        refuse_transforms(module, op, defined, library)


def _python_call(module: ModuleType, op: OperatorSignature, overload: Overload) -> Any:
    """The overload by the module's own function, which has the same arguments with the same defaults."""
    function = getattr(module, op.name)
    asked = dict.fromkeys(overload.asked, True)
    if overload.made:

        def call(*arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named, **asked)

    else:

        def call(*arguments: Any, **named: Any) -> Any:
            function(*arguments, **named)

    return call
