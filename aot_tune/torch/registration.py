"""Registers the operators of a library's module as operators of torch."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from aot_tune.signatures.operator_signature import OperatorSignature, Overload, read_signatures
from aot_tune.torch.backward import Backward, check_backward, refuse_transforms, register_backward
from aot_tune.torch.fake_calls import FakeCall
from aot_tune.torch.schemas import schema_of
from aot_tune.torch.shim import Shim, build_shim, find_shim, load_shim
from aot_tune.torch.torch_errors import TorchError
from aot_tune.torch.torch_versions import check_torch

__all__ = ["Registered", "register"]

_TAGS = tuple(
    getattr(torch.Tag, name) for name in ("pt2_compliant_tag", "needs_exact_strides") if hasattr(torch.Tag, name)
)
"""Makes compiled graphs pass tensors with their original strides, because variants are tuned for strides."""

_TAKEN = (
    "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_native", "_quantized", "_test", "aten", "c10d",
    "debug_mode_ops", "debugprims", "export", "inductor", "inductor_prims", "mkl", "mkldnn", "mkldnn_prepacked",
    "onednn", "prim", "prims", "profiler", "quantization", "quantized", "rngprims", "sparse", "static_runtime",
    "symm_mem", "torch",
)  # fmt: skip
"""Namespaces that torch uses itself."""

_KEY = "CompositeExplicitAutograd"
"""The dispatch key for calls on every device. The library says for which of them it has kernels."""

_lock = threading.Lock()


@dataclass(frozen=True)
class Registered:
    """What `register` made: operators under `torch.ops.<namespace>`. `shim` says whether calls go through C++ only."""

    namespace: str
    operators: tuple[str, ...]
    shim: bool
    differentiable: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Registration:
    module: ModuleType
    backward: Mapping[str, Backward]
    made: Registered
    library: torch.library.Library  # torch removes the operators when this object is deleted


_registered: dict[str, _Registration] = {}
"""Registrations by namespace."""


def register(
    module: ModuleType,
    namespace: str | None = None,
    *,
    backward: Mapping[str, Backward] | None = None,
    shim: bool | str | os.PathLike[str] | None = None,
) -> Registered:
    """Put every operator of a library under `torch.ops.<namespace>`.

    Args:
        module: the Python module of the library, such as `aot_tune.ops`.
        namespace: the default is the name of the module's package, with `_` for dots; if it has no package, its own
            name.
        backward: functions that compute gradients, by operator name, see `Backward`.
        shim: whether calls go through C++ only. None: if `build_shim` has made the shim before. True: it is built if
            missing. False: calls go through Python. A path is that of a shim, as `build_shim(folder)` returns it.

    Registering the same module again under the same namespace, with the same functions, changes nothing.

    Raises:
        TorchError: when the module is not a library's or another version's, when the namespace is taken, when a
            backward is not possible, and when torch is too old. For an untested torch there is an
            `UntestedTorchWarning`.
        ShimError: when the shim is requested or exists, but does not work.
    """
    operators = read_signatures(module, TorchError)
    namespace = _namespace(module) if namespace is None else namespace
    functions = dict(backward or {})
    check_torch()
    check_backward(operators, functions)
    with _lock:
        return _register(module, operators, namespace, functions, shim)


def _register(
    module: ModuleType,
    operators: tuple[OperatorSignature, ...],
    namespace: str,
    functions: Mapping[str, Backward],
    shim: bool | str | os.PathLike[str] | None,
) -> Registered:
    if namespace in _registered:
        return _again(module, namespace, functions)
    if not namespace.isidentifier() or namespace in _TAKEN:
        raise TorchError(
            f"{namespace!r} is not a namespace for operators",
            why="torch uses it itself" if namespace in _TAKEN else "it is not an identifier",
            fix="pass namespace=, an identifier of your own",
        )
    loaded = _shim(shim)
    library = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    made_of = [(op, overload, functions.get(op.name) if overload.made else None) for op, overload in _all(operators)]
    for op, overload, backward in made_of:
        _define(module, library, namespace, op, overload, backward, in_python=loaded is None)
    if loaded is not None:  # it cannot be undone, so all operators are defined before
        for op, overload, backward in made_of:
            loaded.implement(module, namespace, operators, op, overload, differentiable=backward is not None)
    made = Registered(namespace, tuple(op.name for op in operators), loaded is not None, tuple(functions))
    _registered[namespace] = _Registration(module, functions, made, library)
    return made


def _all(operators: tuple[OperatorSignature, ...]) -> list[tuple[OperatorSignature, Overload]]:
    return [(op, overload) for op in operators for overload in op.overloads()]


def _shim(wanted: bool | str | os.PathLike[str] | None) -> Shim | None:
    if isinstance(wanted, bool) or wanted is None:
        path = build_shim() if wanted else None if wanted is False else find_shim()
    else:
        path = Path(wanted).absolute()
    return None if path is None else load_shim(path)


def _namespace(module: ModuleType) -> str:
    package = module.__name__.rpartition(".")[0] or module.__name__
    return package.replace(".", "_")


def _again(module: ModuleType, namespace: str, functions: Mapping[str, Backward]) -> Registered:
    before = _registered[namespace]
    if before.module is not module:
        raise TorchError(
            f"the namespace {namespace!r} has the operators of {before.module.__name__} already",
            fix="pass another namespace=",
        )
    other = sorted(name for name, function in functions.items() if before.backward.get(name) is not function)
    if other:
        raise TorchError(
            f"{module.__name__} is registered as {namespace!r} already, without this backward for {', '.join(other)}",
            fix="pass backward= where it is registered first, or another namespace=",
        )
    return before.made


def _define(
    module: ModuleType,
    library: torch.library.Library,
    namespace: str,
    op: OperatorSignature,
    overload: Overload,
    backward: Backward | None,
    *,
    in_python: bool,
) -> None:
    if "self" in [*(s.name for s in op.scalars), *(a.name for a in op.attributes), *(t.name for t in op.outputs)]:
        raise TorchError(
            f"torch does not take an operator {namespace}::{op.name}",
            why="one of its arguments is passed by name and is called 'self'. torch uses that name itself",
            fix="rename it",
        )
    schema = schema_of(op, overload)
    defined = schema.partition("(")[0]
    qualified = f"{namespace}::{defined}"
    try:
        library.define(schema, tags=_TAGS)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise TorchError(
            f"torch does not take an operator {qualified}",
            why=str(error).partition("\n")[0],
            fix="pass another namespace=, or rename the operator or its arguments",
        ) from error
    if in_python:
        library.impl(defined, _python_call(module, op, overload), _KEY)  # type: ignore[no-untyped-call]
    fake = FakeCall(module, op, overload, differentiable=backward is not None)
    torch.library.register_fake(qualified, fake, lib=library)
    refuse_transforms(module, op, defined, library)
    if backward is not None:
        register_backward(module, op, overload, qualified, backward, library)


def _python_call(module: ModuleType, op: OperatorSignature, overload: Overload) -> Callable[..., Any]:
    """The overload as a call of the module's own function, with the same arguments and defaults."""
    function = getattr(module, op.name)
    asked = dict.fromkeys(overload.asked, True)
    if not overload.made:

        def call(*arguments: Any, **named: Any) -> Any:
            function(*arguments, **named)

    elif overload.taken:
        written = [t.name for t in op.outputs if t.name in (*overload.made, *overload.taken)]
        places = [written.index(name) for name in overload.made]

        def call(*arguments: Any, **named: Any) -> Any:
            found = function(*arguments, **named, **asked)
            return found[places[0]] if len(places) == 1 else tuple(found[place] for place in places)

    elif asked:

        def call(*arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named, **asked)

    else:

        def call(*arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

    return call
