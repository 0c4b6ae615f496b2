"""Registers the operators of a library's module as torch's: schemas, calls, and what torch learns of calls."""

from __future__ import annotations

import math
import os
import string
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from aot_tune.expr.integer_expressions import FUNCTIONS
from aot_tune.signatures.call_checks import CallChecks
from aot_tune.signatures.operator_signature import OperatorSignature, Overload, ScalarSignature, read_signatures
from aot_tune.torch.backward import Backward, check_backward, refuse_transforms, register_backward
from aot_tune.torch.shim import build_shim, find_shim, load_shim
from aot_tune.torch.torch_versions import TorchError, check_torch

_DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "bool": torch.bool,
}
"""Element types of operators, as torch names them."""

_FUNCTIONS = {**FUNCTIONS, "min": torch.sym_min, "max": torch.sym_max}
"""Operations of extents that are integers or torch.SymInt. The graph holds for calls that are decided alike."""
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


_registered: dict[str, _Registration] = {}
"""Registrations by namespace."""


def _schema_of(op: OperatorSignature, overload: Overload) -> str:
    """`rms_norm(Tensor x, Tensor weight, Tensor? residual=None, *, float eps=1e-05) -> Tensor`."""
    letters = iter(string.ascii_lowercase)  # an operator has at most 16 tensors

    def tensor(name: str, *, optional: bool, written: bool) -> str:
        kind = f"Tensor({next(letters)}!)" if written else "Tensor"
        return f"{kind}? {name}=None" if optional else f"{kind} {name}"

    positional = [tensor(t.name, optional=t.optional, written=t.inout) for t in op.positional]
    named = [_scalar(op, s) for s in op.scalars]
    named += [f'str {a.name}="{a.choices[0]}"' for a in op.attributes]
    named += [tensor(name, optional=op.tensor(name).optional, written=True) for name in overload.taken]
    arguments = ", ".join([*positional, *(["*", *named] if named else [])])
    returned = "Tensor" if len(overload.made) == 1 else f"({', '.join(['Tensor'] * len(overload.made))})"
    return f"{op.name}{'.' if overload.name else ''}{overload.name}({arguments}) -> {returned}"


def _scalar(op: OperatorSignature, scalar: ScalarSignature) -> str:
    floating = scalar.dtype in ("f32", "f64")
    binds = any(source.scalar == scalar.name for source in op.bound)
    kind = "float" if floating else "bool" if scalar.dtype == "bool" else "SymInt" if binds else "int"
    if scalar.default is None:
        return f"{kind} {scalar.name}"
    if floating and not math.isfinite(scalar.default):
        return f"{kind}? {scalar.name}=None"  # schemas cannot write such a default, so None stands for it
    return f"{kind} {scalar.name}={float(scalar.default) if floating else scalar.default}"


def _axes_in_memory(tensor: torch.Tensor) -> list[int]:
    """The axes of a tensor from the slowest to the fastest; in their own order if some are broadcast.

    An axis of extent 1 counts as in a row-major tensor. The module's functions lay out new tensors by the same rule.
    """
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    rank, sizes = tensor.dim(), tensor.shape
    steps: list[Any] = list(tensor.stride())
    for axis in reversed(range(rank)):
        if guard_or_false(sizes[axis] == 1):
            steps[axis] = 1 if axis == rank - 1 else sizes[axis + 1] * steps[axis + 1]
        elif guard_or_false(steps[axis] == 0):
            return list(range(rank))
    order: list[int] = []
    for axis in range(rank):
        rank_in_order = axis
        while rank_in_order > 0 and guard_or_false(steps[order[rank_in_order - 1]] < steps[axis]):
            rank_in_order -= 1
        order.insert(rank_in_order, axis)
    return order


class FakeCall(CallChecks):
    """An overload's fake implementation. As far as shapes tell, it raises what the module's function would raise."""

    functions = _FUNCTIONS

    def __init__(self, module: ModuleType, op: OperatorSignature, overload: Overload, *, differentiable: bool) -> None:
        super().__init__(module, op, _DTYPES)
        self._overload, self._differentiable = overload, differentiable
        named = {*(s.name for s in op.scalars), *(a.name for a in op.attributes), *(t.name for t in op.positional)}
        self._clashes = "mode" in named and bool(overload.taken or any(t.inout for t in op.tensors))
        self._positional = [t.name for t in op.positional]
        self._tensors = (*self._positional, *overload.taken)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The outputs that the overload makes, as fake tensors: one, several, or None if it makes none."""
        if self._clashes and torch.compiler.is_compiling():
            raise self.call_error(
                f"{self.op.name}: torch.compile takes no operator that writes to its arguments and has one that is "
                "called 'mode', as one of torch's own is; rename it, or call the overload that makes outputs"
            )
        given = {**dict(zip(self._positional, arguments, strict=False)), **named}
        tensors = {n: given[n] for n in self._tensors if given.get(n) is not None}
        self._check_gradients(tensors)
        results, lead = self.infer(tensors, given, self._overload.made)
        device = next(iter(tensors.values())).device
        made = []
        for name, (folded, dtype) in results.items():
            tensor = self.op.tensor(name)
            shape = self.unfold(name, folded, lead)
            like = tensors[tensor.layout_of] if tensor.layout_of and not (tensor.folds and lead is not None) else None
            order = list(range(len(shape)))
            order = _axes_in_memory(like) if like is not None and like.dim() == len(shape) else order
            new = torch.empty([shape[axis] for axis in order], dtype=dtype, device=device)
            made.append(new.permute([order.index(axis) for axis in range(len(shape))]))
        return None if not made else made[0] if len(made) == 1 else tuple(made)

    def _check_gradients(self, tensors: Mapping[str, torch.Tensor]) -> None:
        if self._differentiable or not torch.is_grad_enabled():
            return
        for name, tensor in tensors.items():
            if tensor.requires_grad:
                raise self.value_error(
                    f"{self.op.name}: tensor '{name}' requires a gradient, which this operator does not compute; pass "
                    f"backward= to aot_tune.torch.register(), call it under torch.no_grad() or pass {name}.detach()"
                )

    def check_place(self, name: str, tensors: Mapping[str, torch.Tensor], first: str) -> None:
        """Check that all tensors are on one device."""
        if tensors[name].device != tensors[first].device:
            raise self.value_error(
                f"{self.op.name}: tensor '{name}' is on {tensors[name].device}, tensor '{first}' on "
                f"{tensors[first].device}; wanted one device"
            )

    def same(self, one: Any, other: Any) -> bool:
        """Whether two extents are equal, or not known to differ."""
        return _known_same(one, other)

    def check_leading(self, name: str, tensor: torch.Tensor, lead: Sequence[Any]) -> None:
        """Check that one stride leads through all of a tensor's leading dims."""
        if not _is_one(lead, tensor.stride()[: len(lead)]):
            raise self.value_error(
                f"{self.op.name}: the leading dims of '{name}' cannot be taken as one without a copy: "
                f"shape {tuple(tensor.shape)}, strides {tensor.stride()} in elements; pass a contiguous tensor"
            )

    def require(self, condition: Any, message: str) -> None:
        """Raise if a condition is known to be false. If only a run can tell, the run checks it."""
        if isinstance(condition, bool):
            super().require(condition, message)
            return
        from torch.fx.experimental.symbolic_shapes import guard_or_true

        super().require(guard_or_true(condition), message)
        torch._check(condition, lambda: f"{self.op.name}: {message}")  # type: ignore[no-untyped-call]


def _known_same(one: Any, other: Any) -> bool:
    """Whether two sizes are equal. If only a run can tell, they are assumed to be equal."""
    from torch.fx.experimental.symbolic_shapes import guard_or_true

    return bool(guard_or_true(one == other))


def _is_one(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether one stride leads through all elements of these axes."""
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    if any(guard_or_false(size == 0) for size in sizes):
        return True
    step: Any = None
    elements: Any = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if guard_or_false(size == 1):
            continue
        if step is not None and not _known_same(stride, step * elements):
            return False
        step = stride if step is None else step
        elements = elements * size
    return True


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
    if isinstance(shim, bool) or shim is None:
        path = build_shim() if shim else None if shim is False else find_shim()
    else:
        path = Path(shim).absolute()
    loaded = None if path is None else load_shim(path)
    library = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    made_of = [
        (op, overload, functions.get(op.name) if overload.made else None)
        for op in operators
        for overload in op.overloads()
    ]
    for op, overload, backward in made_of:
        _define(module, library, namespace, op, overload, backward, in_python=loaded is None)
    if loaded is not None:  # it cannot be undone, so all operators are defined before
        for op, overload, backward in made_of:
            loaded.implement(module, namespace, operators, op, overload, differentiable=backward is not None)
    registered = Registered(namespace, tuple(op.name for op in operators), loaded is not None, tuple(functions))
    _registered[namespace] = _Registration(module, functions, registered, library)
    return registered


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
    schema = _schema_of(op, overload)
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
            outputs = function(*arguments, **named, **asked)
            return outputs[places[0]] if len(places) == 1 else tuple(outputs[index] for index in places)

    elif asked:

        def call(*arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named, **asked)

    else:

        def call(*arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

    return call
