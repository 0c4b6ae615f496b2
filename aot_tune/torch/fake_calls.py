"""What torch is told of a call without making it: checks, shapes and dtypes of outputs, on symbolic sizes too."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from aot_tune.torch.extents import EXTENT, axes_in_memory, extent_of
from aot_tune.torch.operator_signature import OperatorSignature, Overload, TensorSignature
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
"""Element types of operators as torch names them."""


class FakeCall:
    """An overload's fake implementation: it raises what the module's function would raise, as far as shapes tell."""

    def __init__(self, module: ModuleType, op: OperatorSignature, overload: Overload, *, differentiable: bool) -> None:
        self._op, self._overload, self._differentiable = op, overload, differentiable
        self._call_error: type[Exception] = module.CallError
        named = {*(s.name for s in op.scalars), *(a.name for a in op.attributes), *(t.name for t in op.positional)}
        self._clashes = "mode" in named and bool(overload.taken or any(t.inout for t in op.tensors))
        self._type_error: type[Exception] = module.ArgumentTypeError
        self._value_error: type[Exception] = module.ArgumentValueError
        self._positional = [t.name for t in op.positional]
        self._tensors = tensor_arguments(op, overload)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The outputs that the overload makes, as fake tensors: one, several, or None where it makes none."""
        if self._clashes and torch.compiler.is_compiling():
            raise self._call_error(
                f"{self._op.name}: torch.compile takes no operator that writes to its arguments and has one that is "
                "called 'mode', as one of torch's own is; rename it, or call the overload that makes outputs"
            )
        given = {**dict(zip(self._positional, arguments, strict=False)), **named}
        tensors = {n: given[n] for n in self._tensors if given.get(n) is not None}
        self._check_gradients(tensors)
        chosen = self._check_tensors(tensors)
        self._check_attributes(given)
        dims = self._bind(tensors, given)
        self._check_extents(tensors, dims)
        device = next(iter(tensors.values())).device
        made = []
        for name in self._overload.made:
            tensor = self._op.tensor(name)
            shape = [self._extent(tensor, axis, dims) for axis in range(len(tensor.shape))]
            order = axes_in_memory(tensors[tensor.layout_of]) if tensor.layout_of else list(range(len(shape)))
            dtype = DTYPES[chosen.get(tensor.dtype, tensor.dtype)]
            new = torch.empty([shape[axis] for axis in order], dtype=dtype, device=device)
            made.append(new.permute([order.index(axis) for axis in range(len(shape))]))
        return None if not made else made[0] if len(made) == 1 else tuple(made)

    def _check_gradients(self, tensors: Mapping[str, torch.Tensor]) -> None:
        if self._differentiable or not torch.is_grad_enabled():
            return
        for name, tensor in tensors.items():
            if tensor.requires_grad:
                raise self._value_error(
                    f"{self._op.name}: tensor '{name}' requires a gradient, which this operator does not compute; pass "
                    f"backward= to aot_tune.torch.register(), call it under torch.no_grad() or pass {name}.detach()"
                )

    def _check_tensors(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
        """Check ranks, dtypes and devices; the choice of each dtype variable."""
        chosen: dict[str, str] = {}
        told: dict[str, str] = {}
        first = next(iter(tensors))
        for name, tensor in tensors.items():
            declared = self._op.tensor(name)
            if tensor.dim() != len(declared.shape):
                raise self._value_error(
                    f"{self._op.name}: tensor '{name}' has {tensor.dim()} axes, wanted {len(declared.shape)}"
                )
            if tensor.device != tensors[first].device:
                raise self._value_error(
                    f"{self._op.name}: tensor '{name}' is on {tensor.device}, tensor '{first}' on "
                    f"{tensors[first].device}; wanted one device"
                )
            choices = self._op.dtypes.get(declared.dtype, (declared.dtype,))
            found = next((c for c in choices if DTYPES[c] == tensor.dtype), None)
            if found is None:
                wanted = " or ".join(choices)
                raise self._type_error(f"{self._op.name}: tensor '{name}' is {tensor.dtype}, wanted {wanted}")
            if declared.dtype in self._op.dtypes and chosen.setdefault(declared.dtype, found) != found:
                raise self._type_error(
                    f"{self._op.name}: tensor '{name}' is {found}, tensor '{told[declared.dtype]}' "
                    f"{chosen[declared.dtype]}; wanted the same dtype"
                )
            told.setdefault(declared.dtype, name)
        return {v: chosen.get(v, choices[0]) for v, choices in self._op.dtypes.items()}

    def _check_attributes(self, given: Mapping[str, Any]) -> None:
        for attribute in self._op.attributes:
            value = given.get(attribute.name, attribute.choices[0])
            if value not in attribute.choices:
                raise self._value_error(
                    f"{self._op.name}: attribute '{attribute.name}' is {value!r}, wanted one of {attribute.choices!r}"
                )

    def _bind(self, tensors: Mapping[str, torch.Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
        defaults = {s.name: s.default for s in self._op.scalars}
        dims: dict[str, Any] = {}
        for source in self._op.bound:
            if source.scalar:
                dims[source.dim] = given.get(source.scalar, defaults[source.scalar])
                continue
            extent = tensors[source.tensor].shape[source.axis]
            dims[source.dim] = self._value(source.value, {**dims, EXTENT: extent}, source.tensor)
        for name, value in dims.items():
            self._require(value >= 0, f"the dim {name} would be {value}, below 0")
        return dims

    def _check_extents(self, tensors: Mapping[str, torch.Tensor], dims: Mapping[str, Any]) -> None:
        for name, tensor in tensors.items():
            declared = self._op.tensor(name)
            for axis, extent in enumerate(tensor.shape):
                wanted = self._extent(declared, axis, dims)
                self._require(extent == wanted, f"tensor '{name}' has extent {extent} at axis {axis}, wanted {wanted}")

    def _extent(self, tensor: TensorSignature, axis: int, dims: Mapping[str, Any]) -> Any:
        value = self._value(tensor.shape[axis], dims, tensor.name)
        self._require(value >= 0, f"tensor '{tensor.name}' would have extent {value} at axis {axis}")
        return value

    def _value(self, expression: Any, facts: Mapping[str, Any], tensor: str) -> Any:
        try:
            return extent_of(expression, facts)
        except ZeroDivisionError:
            raise self._value_error(f"{self._op.name}: an extent of tensor '{tensor}' divides by zero") from None

    def _require(self, condition: Any, message: str) -> None:
        """Raise where a condition is known to be wrong; one that only a run tells is checked then."""
        if isinstance(condition, bool):
            if not condition:
                raise self._value_error(f"{self._op.name}: {message}")
            return
        from torch.fx.experimental.symbolic_shapes import guard_or_true

        if not guard_or_true(condition):
            raise self._value_error(f"{self._op.name}: {message}")
        torch._check(condition, lambda: f"{self._op.name}: {message}")  # type: ignore[no-untyped-call]
