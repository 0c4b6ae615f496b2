"""What JAX learns about a call: shapes and dtypes of its results, and errors like those of the module's function."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from aot_tune.signatures.call_checks import CallChecks
from aot_tune.signatures.extent_values import extent_value
from aot_tune.signatures.operator_signature import OperatorSignature, ScalarSignature, TensorSignature

__all__ = ["DTYPES_OF_JAX", "JaxCallChecks"]

DTYPES_OF_JAX = {
    name: jnp.dtype(kind)
    for name, kind in {
        "f32": jnp.float32, "f64": jnp.float64, "f16": jnp.float16, "bf16": jnp.bfloat16,
        "f8e4m3": jnp.float8_e4m3fn, "f8e5m2": jnp.float8_e5m2, "bool": jnp.bool_,
        "i8": jnp.int8, "i16": jnp.int16, "i32": jnp.int32, "i64": jnp.int64,
        "u8": jnp.uint8, "u16": jnp.uint16, "u32": jnp.uint32, "u64": jnp.uint64,
    }.items()
}  # fmt: skip
"""Element types of operators, as JAX names them."""

_ERRORS = jax.errors if hasattr(jax.errors, "InconclusiveDimensionOperation") else jax.core
"""Where JAX has the error for sizes that it cannot compare: since 0.10 beside its other errors."""

_LARGEST_F32 = 3.4028235677973366e38
"""Numbers from here on round to infinity as f32: this is halfway beyond its largest value."""


class JaxCallChecks(CallChecks):
    """Checks calls when they are traced. Sizes may be symbols of jax.export."""

    def __init__(self, module: ModuleType, op: OperatorSignature) -> None:
        super().__init__(module, op, DTYPES_OF_JAX)

    def results(
        self, inputs: Mapping[str, Any], wanted: Mapping[str, Any], given: Mapping[str, Any]
    ) -> tuple[dict[str, jax.ShapeDtypeStruct], list[Any] | None]:
        """Shapes and dtypes of all tensors that a call writes; and leading dims, None if no dim folds.

        Shapes have one axis for leading dims, as the library's handler takes them.

        Args:
            inputs: the arrays that are passed.
            wanted: what is passed for outputs: None, a boolean, or an object with a shape and a dtype.
            given: all arguments, including scalars and attributes.
        """
        told = {name: value for name, value in wanted.items() if self._describes(name, value)}
        tensors = {t.name: {**inputs, **told}[t.name] for t in self.op.tensors if t.name in inputs or t.name in told}
        for scalar in self.op.scalars:
            if scalar.name in given:
                self.check_scalar(scalar, given[scalar.name])
        try:
            chosen = self.check_tensors(tensors)
            self.check_attributes(given)
            shapes, lead = self.fold(tensors)
            dims = self.bind(shapes, given)
            self.check_extents(shapes, dims)
            made = {
                t.name: jax.ShapeDtypeStruct(self.shape(t.name, dims), DTYPES_OF_JAX[chosen.get(t.dtype, t.dtype)])
                for t in self.op.tensors
                if self._is_written(t, inputs, wanted)
            }
            return made, lead
        except _ERRORS.InconclusiveDimensionOperation as error:
            raise self.value_error(
                f"{self.op.name}: symbolic sizes do not tell whether this call is legal, or how large its results are; "
                f"add constraints to jax.export.symbolic_shape: {str(error).partition(chr(10))[0]}"
            ) from error

    def value_of(self, expression: Any, facts: Mapping[str, Any]) -> Any:
        """The value of an expression. It may be a symbol."""
        return extent_value(expression, facts, jax.core.min_dim, jax.core.max_dim)

    def check_scalar(self, scalar: ScalarSignature, value: Any) -> None:
        """Check that a scalar is a plain value, and that its type can hold it."""
        where = f"{self.op.name}: scalar '{scalar.name}'"
        if isinstance(value, jax.core.Tracer):
            raise self.type_error(
                f"{where} is traced, but it is a constant of the compiled program; pass a Python number, by "
                "static_argnames of jax.jit"
            )
        if scalar.dtype == "bool":
            if not isinstance(value, bool) and getattr(value, "dtype", None) != jnp.bool_:
                raise self.type_error(f"{where} is {value!r:.60}, wanted True or False")
        elif scalar.dtype in ("f32", "f64"):
            try:
                number = float(value)
            except (TypeError, ValueError):
                raise self.type_error(f"{where} is {value!r:.60}, wanted a number") from None
            if scalar.dtype == "f32" and math.isfinite(number) and abs(number) >= _LARGEST_F32:
                raise self.value_error(f"{where} is {number}, which f32 does not hold")
        else:
            try:
                whole = operator.index(value)
            except TypeError:
                raise self.type_error(f"{where} is {value!r:.60}, wanted a whole number") from None
            limits = jnp.iinfo(DTYPES_OF_JAX[scalar.dtype])
            if not int(limits.min) <= whole <= int(limits.max):
                raise self.value_error(f"{where} is {whole}, wanted one from {limits.min} to {limits.max}")

    def layouts(
        self, layouts: Mapping[str, Sequence[int]], present: Sequence[TensorSignature], lead: Sequence[Any] | None
    ) -> dict[str, tuple[int, ...]]:
        """Orders of axes that are not row-major, by tensors that a call passes or makes.

        `layouts` are for tensors as the caller has them. The results are for tensors with one axis for the leading dims
        `lead`.
        """
        ranks = {t.name: len(t.shape) for t in present}
        found = {}
        for name, order in layouts.items():
            if name not in ranks:
                raise self.value_error(
                    f"{self.op.name}: layouts names '{name}', which is not a tensor of this call: {', '.join(ranks)}"
                )
            leading = len(lead) if lead is not None and self.op.tensor(name).folds else 1
            rank = ranks[name] - 1 + leading
            axes = tuple(operator.index(axis) for axis in order)
            if sorted(axes) != list(range(rank)):
                raise self.value_error(
                    f"{self.op.name}: the layout of tensor '{name}' is {axes}, wanted an order of its {rank} axes"
                )
            axes = self._folded_order(name, axes, leading)
            if axes != tuple(range(ranks[name])):
                found[name] = axes
        return found

    def _folded_order(self, name: str, axes: tuple[int, ...], leading: int) -> tuple[int, ...]:
        """An order of axes in which the leading axes are one."""
        place = axes.index(0) if leading else 0
        if axes[place : place + leading] != tuple(range(leading)):
            raise self.value_error(
                f"{self.op.name}: the leading dims of '{name}' cannot be taken as one without a copy: its layout is "
                f"{axes}; wanted the axes {', '.join(map(str, range(leading)))} beside each other, in this order"
            )
        rest = [axis - leading + 1 for axis in axes if axis >= leading]
        return (*rest[:place], 0, *rest[place:])

    def _describes(self, name: str, value: Any) -> bool:
        """Whether the argument for an output describes it."""
        tensor = self.op.tensor(name)
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return True
        if tensor.optional and (value is None or isinstance(value, bool)):
            return False
        if value is None and not tensor.to_pass:
            return False
        wanted = "True, False or a jax.ShapeDtypeStruct" if tensor.optional else "a jax.ShapeDtypeStruct"
        raise self.type_error(f"{self.op.name}: output '{name}' is {value!r:.60}, wanted {wanted}")

    def _is_written(self, tensor: TensorSignature, inputs: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        if tensor.output:
            asked = wanted.get(tensor.name)
            return not (tensor.optional and (asked is None or asked is False))
        return tensor.inout and tensor.name in inputs
