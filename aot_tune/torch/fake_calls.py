"""What torch learns about a call without making it: checks, and shapes and dtypes of outputs, also symbolic ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from aot_tune.signatures.call_checks import CallChecks
from aot_tune.signatures.operator_signature import OperatorSignature, Overload
from aot_tune.torch.extents import axes_in_memory, extent_of
from aot_tune.torch.schemas import tensor_arguments

__all__ = ["DTYPES", "FakeCall"]

DTYPES = {
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


class FakeCall(CallChecks):
    """An overload's fake implementation. As far as shapes tell, it raises what the module's function would raise."""

    def __init__(self, module: ModuleType, op: OperatorSignature, overload: Overload, *, differentiable: bool) -> None:
        super().__init__(module, op, DTYPES)
        self._overload, self._differentiable = overload, differentiable
        named = {*(s.name for s in op.scalars), *(a.name for a in op.attributes), *(t.name for t in op.positional)}
        self._clashes = "mode" in named and bool(overload.taken or any(t.inout for t in op.tensors))
        self._positional = [t.name for t in op.positional]
        self._tensors = tensor_arguments(op, overload)

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
        chosen = self.check_tensors(tensors)
        self.check_attributes(given)
        shapes, lead = self.fold(tensors)
        dims = self.bind(shapes, given)
        self.check_extents(shapes, dims)
        device = next(iter(tensors.values())).device
        made = []
        for name in self._overload.made:
            tensor = self.op.tensor(name)
            shape = self.unfold(name, self.shape(name, dims), lead)
            like = tensors[tensor.layout_of] if tensor.layout_of else None
            order = list(range(len(shape)))
            order = axes_in_memory(like) if like is not None and like.dim() == len(shape) else order
            dtype = DTYPES[chosen.get(tensor.dtype, tensor.dtype)]
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

    def value_of(self, expression: Any, facts: Mapping[str, Any]) -> Any:
        """The value of an expression. It may be a torch.SymInt."""
        return extent_of(expression, facts)

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
