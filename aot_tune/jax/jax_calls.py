"""Calls of one operator from JAX. They are checked when they are traced, and XLA makes them when they run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aot_tune.jax.jax_checks import JaxCallChecks
from aot_tune.signatures.operator_signature import OperatorSignature, ScalarSignature, TensorSignature

__all__ = ["OperatorCall"]

_NUMPY = {
    "f32": np.float32, "f64": np.float64, "bool": np.bool_,
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
}  # fmt: skip
"""Types of scalars."""


class OperatorCall:
    """An operator as a function of JAX's arrays. `help` shows its arguments.

    Inputs are passed by position, in the order of the module's function, or by name. Scalars and attributes are passed
    by name, as plain Python values. To get an optional output, pass `True` for it. For an output that determines a dim
    or a dtype, pass a `jax.ShapeDtypeStruct`. `layouts` names tensors that are not row-major in memory, each with its
    axes from the slowest to the fastest.

    Returns what the operator writes, in the order of its declaration, as one array or a tuple. Tensors that it changes
    in place are among them, as new arrays: nothing that is passed is changed.
    """

    def __init__(self, module: ModuleType, op: OperatorSignature, target: str, vmap_method: str | None) -> None:
        self._op, self._target, self._vmap_method = op, target, vmap_method
        self._checks = JaxCallChecks(module, op)
        self.__name__, self.__doc__ = op.name, op.documentation
        self.__signature__ = inspect.Signature(self._parameters())

    def __call__(self, *arguments: Any, layouts: Mapping[str, Sequence[int]] | None = None, **named: Any) -> Any:
        """Make a call, or a part of a traced program."""
        given = self._bound(arguments, named)
        inputs = {t.name: jnp.asarray(given[t.name]) for t in self._inputs() if given.get(t.name) is not None}
        wanted = {t.name: given.get(t.name) for t in self._op.outputs}
        made, lead = self._checks.results(inputs, wanted, given)
        present = [t for t in self._op.tensors if t.name in inputs or t.name in made]
        operands = [t for t in present if not t.output]
        results = [t for t in present if t.output or t.inout]
        attributes = self._attributes(given, present)
        orders = self._checks.layouts(layouts or {}, present, lead)
        attributes |= {f"{name}.layout": np.array(order, np.int64) for name, order in orders.items()}
        described = [made[t.name] for t in results]
        aliases = {operands.index(t): results.index(t) for t in operands if t.inout}

        def run(*arrays: Any) -> Any:
            return jax.ffi.ffi_call(
                self._target,
                described,
                vmap_method=self._vmap_method,
                input_layouts=[orders.get(t.name) for t in operands],
                output_layouts=[orders.get(t.name) for t in results],
                input_output_aliases=aliases,
            )(*arrays, **attributes)

        call = run if self._vmap_method is not None else self._without_vmap(run)
        found = call(*(self._folded(t, inputs[t.name], lead) for t in operands))
        found = [self._unfolded(t, array, lead) for t, array in zip(results, found, strict=True)]
        return found[0] if len(found) == 1 else tuple(found)

    def __repr__(self) -> str:
        return f"<operator {self._op.name}{self.__signature__}>"

    def _folded(self, tensor: TensorSignature, array: Any, lead: Sequence[Any] | None) -> Any:
        """An array whose leading dims are one axis."""
        if lead is None or not tensor.folds:
            return array
        return array.reshape([math.prod(lead), *array.shape[len(lead) :]])

    def _unfolded(self, tensor: TensorSignature, array: Any, lead: Sequence[Any] | None) -> Any:
        """A result in the shape that the caller sees."""
        shape = self._checks.unfold(tensor.name, array.shape, lead)
        return array if lead is None or not tensor.folds else array.reshape(shape)

    def _inputs(self) -> tuple[TensorSignature, ...]:
        return self._op.positional

    def _parameters(self) -> list[inspect.Parameter]:
        parameter, empty = inspect.Parameter, inspect.Parameter.empty
        found = [
            parameter(t.name, parameter.POSITIONAL_OR_KEYWORD, default=None if t.optional else empty)
            for t in self._inputs()
        ]
        named: dict[str, Any] = {s.name: empty if s.default is None else s.default for s in self._op.scalars}
        named |= {a.name: a.choices[0] for a in self._op.attributes}
        named |= {t.name: False if t.optional else empty for t in self._op.outputs if t.optional or t.to_pass}
        found += [parameter(name, parameter.KEYWORD_ONLY, default=default) for name, default in named.items()]
        return [*found, parameter("layouts", parameter.KEYWORD_ONLY, default=None)]

    def _bound(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(self.__signature__.bind(*arguments, **named).arguments)
        except TypeError as error:
            raise self._checks.type_error(f"{self._op.name}: {error}; its arguments are {self.__signature__}") from None

    def _attributes(self, given: Mapping[str, Any], present: Sequence[TensorSignature]) -> dict[str, Any]:
        """What the handler needs beside tensors."""
        bits = sum(1 << place for place, t in enumerate(self._op.tensors) if t in present)
        found: dict[str, Any] = {".tensors": np.int64(bits)}
        found |= {s.name: self._scalar(s, given[s.name]) for s in self._op.scalars if s.name in given}
        return found | {a.name: given[a.name] for a in self._op.attributes if a.name in given}

    def _scalar(self, scalar: ScalarSignature, value: Any) -> Any:
        self._checks.check_scalar(scalar, value)
        return _NUMPY[scalar.dtype](value)

    def _without_vmap(self, run: Callable[..., Any]) -> Any:
        """The call, which raises an error that names the operator below jax.vmap."""

        def refuse(*_arguments: Any) -> Any:
            raise self._checks.call_error(
                f"{self._op.name}: it has no rule for jax.vmap; call it outside, or pass vmap_method='sequential' to "
                "aot_tune.jax.register(), which makes a call for each row"
            )

        call: Any = jax.custom_batching.custom_vmap(run)
        call.def_vmap(refuse)
        return call
