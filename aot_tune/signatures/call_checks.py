"""Whether a call is legal as far as shapes and dtypes tell, with the errors of the library's module."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from aot_tune.signatures.extent_values import EXTENT, extent_value
from aot_tune.signatures.operator_signature import OperatorSignature, TensorSignature

__all__ = ["CallChecks"]


class CallChecks:
    """Checks calls of an operator; a framework derives from it where its tensors or sizes need more.

    Args:
        module: the library's, whose errors are raised.
        op: the operator.
        dtypes: what the framework calls element types, by our names.
    """

    def __init__(self, module: ModuleType, op: OperatorSignature, dtypes: Mapping[str, Any]) -> None:
        self.op, self.dtypes = op, dtypes
        self.call_error: type[Exception] = module.CallError
        self.type_error: type[Exception] = module.ArgumentTypeError
        self.value_error: type[Exception] = module.ArgumentValueError

    def check_tensors(self, tensors: Mapping[str, Any]) -> dict[str, str]:
        """Check ranks, places and dtypes of the tensors that are passed; the choice of each dtype variable."""
        chosen: dict[str, str] = {}
        told: dict[str, str] = {}
        first = next(iter(tensors))
        for name, tensor in tensors.items():
            declared = self.op.tensor(name)
            if len(tensor.shape) != len(declared.shape):
                raise self.value_error(
                    f"{self.op.name}: tensor '{name}' has {len(tensor.shape)} axes, wanted {len(declared.shape)}"
                )
            self.check_place(name, tensors, first)
            choices = self.op.dtypes.get(declared.dtype, (declared.dtype,))
            found = next((c for c in choices if self.dtypes[c] == tensor.dtype), None)
            if found is None:
                wanted = " or ".join(choices)
                raise self.type_error(f"{self.op.name}: tensor '{name}' is {tensor.dtype}, wanted {wanted}")
            if declared.dtype in self.op.dtypes and chosen.setdefault(declared.dtype, found) != found:
                raise self.type_error(
                    f"{self.op.name}: tensor '{name}' is {found}, tensor '{told[declared.dtype]}' "
                    f"{chosen[declared.dtype]}; wanted the same dtype"
                )
            told.setdefault(declared.dtype, name)
        return {v: chosen.get(v, choices[0]) for v, choices in self.op.dtypes.items()}

    def check_place(self, name: str, tensors: Mapping[str, Any], first: str) -> None:
        """Check that a tensor is where the first one is, if the framework tells."""

    def check_attributes(self, given: Mapping[str, Any]) -> None:
        """Check the attributes that are passed."""
        for attribute in self.op.attributes:
            value = given.get(attribute.name, attribute.choices[0])
            if value not in attribute.choices:
                raise self.value_error(
                    f"{self.op.name}: attribute '{attribute.name}' is {value!r}, wanted one of {attribute.choices!r}"
                )

    def bind(self, tensors: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """The dims of a call, from extents and from the scalars that are dims."""
        defaults = {s.name: s.default for s in self.op.scalars}
        dims: dict[str, Any] = {}
        for source in self.op.bound:
            if source.scalar:
                dims[source.dim] = given.get(source.scalar, defaults[source.scalar])
                continue
            extent = tensors[source.tensor].shape[source.axis]
            dims[source.dim] = self._value(source.value, {**dims, EXTENT: extent}, source.tensor)
        for name, value in dims.items():
            self.require(value >= 0, f"the dim {name} would be {value}, below 0")
        return dims

    def check_extents(self, tensors: Mapping[str, Any], dims: Mapping[str, Any]) -> None:
        """Check all extents of the tensors that are passed."""
        for name, tensor in tensors.items():
            for axis, (extent, wanted) in enumerate(zip(tensor.shape, self.shape(name, dims), strict=True)):
                self.require(extent == wanted, f"tensor '{name}' has extent {extent} at axis {axis}, wanted {wanted}")

    def shape(self, name: str, dims: Mapping[str, Any]) -> list[Any]:
        """The shape that a tensor has by the dims of a call."""
        declared = self.op.tensor(name)
        return [self._extent(declared, axis, dims) for axis in range(len(declared.shape))]

    def require(self, condition: Any, message: str) -> None:
        """Raise where a condition does not hold."""
        if not condition:
            raise self.value_error(f"{self.op.name}: {message}")

    def value_of(self, expression: Any, facts: Mapping[str, Any]) -> Any:
        """The value of an expression of a shape."""
        return extent_value(expression, facts)

    def _extent(self, tensor: TensorSignature, axis: int, dims: Mapping[str, Any]) -> Any:
        value = self._value(tensor.shape[axis], dims, tensor.name)
        self.require(value >= 0, f"tensor '{tensor.name}' would have extent {value} at axis {axis}")
        return value

    def _value(self, expression: Any, facts: Mapping[str, Any], tensor: str) -> Any:
        try:
            return self.value_of(expression, facts)
        except ZeroDivisionError:
            raise self.value_error(f"{self.op.name}: an extent of tensor '{tensor}' divides by zero") from None
