"""Checks whether a call is legal, as far as shapes and dtypes tell. It raises the errors of the library's module."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from aot_tune.expr.integer_expressions import EXTENT, FUNCTIONS, Expr, python_function
from aot_tune.signatures.operator_signature import OperatorSignature, TensorSignature


class CallChecks:
    """Checks calls of an operator. A framework derives from it if its tensors or sizes need more.

    Args:
        module: the library's module, whose errors are raised.
        op: the operator.
        dtypes: the framework's element types, by our names.
    """

    functions: Mapping[str, Callable[..., Any]] = FUNCTIONS
    """The operations of extents. Choices (`where`, comparisons) and powers of two are decided at once."""

    def __init__(self, module: ModuleType, op: OperatorSignature, dtypes: Mapping[str, Any]) -> None:
        self.op, self.dtypes = op, dtypes
        self.call_error: type[Exception] = module.CallError
        self.type_error: type[Exception] = module.ArgumentTypeError
        self.value_error: type[Exception] = module.ArgumentValueError

    def infer(
        self, tensors: Mapping[str, Any], given: Mapping[str, Any], names: Iterable[str]
    ) -> tuple[dict[str, tuple[list[Any], Any]], list[Any] | None]:
        """Check a call. Returns shapes, with one axis for leading dims, and element types of the tensors `names`.

        The second result are the leading dims, or None if they are one axis.
        """
        chosen = self._check_tensors(tensors)
        self._check_attributes(given)
        shapes, lead = self._fold(tensors)
        dims = self._bind(shapes, given)
        self._check_extents(shapes, dims)
        dtypes = {name: self.op.tensor(name).dtype for name in names}
        return {name: (self._shape(name, dims), self.dtypes[chosen.get(d, d)]) for name, d in dtypes.items()}, lead

    def _check_tensors(self, tensors: Mapping[str, Any]) -> dict[str, str]:
        """Check places and dtypes of the tensors that are passed. Returns the choice of each dtype variable."""
        chosen: dict[str, str] = {}
        told: dict[str, str] = {}
        first = next(iter(tensors))
        for name, tensor in tensors.items():
            declared = self.op.tensor(name)
            self.check_place(name, tensors, first)
            choices = self.op.dtypes.get(declared.dtype, (declared.dtype,))
            choice = next((c for c in choices if self.dtypes[c] == tensor.dtype), None)
            if choice is None:
                wanted = " or ".join(choices)
                raise self.type_error(f"{self.op.name}: tensor '{name}' is {tensor.dtype}, wanted {wanted}")
            if declared.dtype in self.op.dtypes and chosen.setdefault(declared.dtype, choice) != choice:
                raise self.type_error(
                    f"{self.op.name}: tensor '{name}' is {choice}, tensor '{told[declared.dtype]}' "
                    f"{chosen[declared.dtype]}; wanted the same dtype"
                )
            told.setdefault(declared.dtype, name)
        return {v: chosen.get(v, choices[0]) for v, choices in self.op.dtypes.items()}

    def check_place(self, name: str, tensors: Mapping[str, Any], first: str) -> None:
        """Check that a tensor is in the same place as the first one, if the framework tells."""

    def _check_attributes(self, given: Mapping[str, Any]) -> None:
        """Check the attributes that are passed."""
        for attribute in self.op.attributes:
            value = given.get(attribute.name, attribute.choices[0])
            if value not in attribute.choices:
                raise self.value_error(
                    f"{self.op.name}: attribute '{attribute.name}' is {value!r}, wanted one of {attribute.choices!r}"
                )

    def _fold(self, tensors: Mapping[str, Any]) -> tuple[dict[str, list[Any]], list[Any] | None]:
        """Shapes with one axis for leading dims, checked for rank; and the leading dims, None if they are one axis."""
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        rest = {t.name: len(t.shape) - 1 for t in self.op.tensors if t.folds and t.name in tensors}
        lead = None
        if any(len(shapes[name]) != count + 1 for name, count in rest.items()):
            lead = self._fold_all(shapes, rest, tensors)
        for name, shape in shapes.items():
            self._check_rank(name, shape, legal=len(shape) == len(self.op.tensor(name).shape))
        return shapes, lead

    def _check_rank(self, name: str, shape: Sequence[Any], *, legal: bool) -> None:
        if not legal:
            wanted = len(self.op.tensor(name).shape)
            raise self.value_error(f"{self.op.name}: tensor '{name}' has {len(shape)} axes, wanted {wanted}")

    def _fold_all(self, shapes: dict[str, list[Any]], rest: Mapping[str, int], tensors: Mapping[str, Any]) -> list[Any]:
        """Replace leading dims in `shapes` by their product. `rest` says how many other axes each tensor has."""
        first = next(iter(rest))
        lead = shapes[first][: len(shapes[first]) - rest[first]]
        for name, count in rest.items():
            self._check_rank(name, shapes[name], legal=len(shapes[name]) >= count)
            mine = shapes[name][: len(shapes[name]) - count]
            if len(mine) != len(lead) or not all(map(self.same, mine, lead)):
                raise self.value_error(
                    f"{self.op.name}: '{name}' has the leading dims {tuple(mine)}, '{first}' has {tuple(lead)}; "
                    "wanted the same of both"
                )
            self.check_leading(name, tensors[name], mine)
            shapes[name] = [math.prod(mine), *shapes[name][len(mine) :]]
        return lead

    def same(self, one: Any, other: Any) -> bool:
        """Whether two extents are equal, as far as that is known."""
        return bool(one == other)

    def check_leading(self, name: str, tensor: Any, lead: Sequence[Any]) -> None:
        """Check that a tensor's leading dims can be treated as one dim, if the framework tells strides."""

    def _bind(self, shapes: Mapping[str, Sequence[Any]], given: Mapping[str, Any]) -> dict[str, Any]:
        """The dims of a call, from extents and from scalars that are dims. `shapes` are as `_fold` returns them."""
        defaults = {s.name: s.default for s in self.op.scalars}
        dims: dict[str, Any] = {}
        for source in self.op.bound:
            if source.scalar:
                dims[source.dim] = given.get(source.scalar, defaults[source.scalar])
                continue
            extent = shapes[source.tensor][source.axis]
            dims[source.dim] = self._value(source.value, {**dims, EXTENT: extent}, source.tensor)
        for name, value in dims.items():
            self.require(value >= 0, f"the dim {name} would be {value}, below 0")
        return dims

    def _check_extents(self, shapes: Mapping[str, Sequence[Any]], dims: Mapping[str, Any]) -> None:
        """Check all extents of the tensors that are passed. `shapes` are as `_fold` returns them."""
        for name, shape in shapes.items():
            for axis, (extent, wanted) in enumerate(zip(shape, self._shape(name, dims), strict=True)):
                self.require(extent == wanted, f"tensor '{name}' has extent {extent} at axis {axis}, wanted {wanted}")

    def _shape(self, name: str, dims: Mapping[str, Any]) -> list[Any]:
        """The shape of a tensor for the dims of a call, with one axis for leading dims."""
        declared = self.op.tensor(name)
        return [self._extent(declared, axis, dims) for axis in range(len(declared.shape))]

    def unfold(self, name: str, shape: Sequence[Any], lead: Sequence[Any] | None) -> list[Any]:
        """The shape of a tensor as the caller sees it, with the leading dims that `infer` returned."""
        return [*lead, *shape[1:]] if self.op.tensor(name).folds and lead is not None else list(shape)

    def require(self, condition: Any, message: str) -> None:
        """Raise if a condition does not hold."""
        if not condition:
            raise self.value_error(f"{self.op.name}: {message}")

    def _extent(self, tensor: TensorSignature, axis: int, dims: Mapping[str, Any]) -> Any:
        value = self._value(tensor.shape[axis], dims, tensor.name)
        self.require(value >= 0, f"tensor '{tensor.name}' would have extent {value} at axis {axis}")
        return value

    def _value(self, expression: Expr, facts: Mapping[str, Any], tensor: str) -> Any:
        try:
            return python_function(expression, self.functions)(facts)
        except ZeroDivisionError:
            raise self.value_error(f"{self.op.name}: an extent of tensor '{tensor}' divides by zero") from None
