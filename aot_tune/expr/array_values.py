"""Evaluates programs on arrays of the array API standard, so that references need not repeat a formula."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from aot_tune.expr.formulas import BOOLEAN, FLOAT, Instruction, Program, expanded
from aot_tune.expr.nodes import OPERATORS

LARGEST_INTEGER = 2147483520.0
"""The largest float of 32 bits that is also an integer of 32 bits."""


def evaluate_program(
    program: Program,
    xp: Any,
    call: SimpleNamespace,
    value: Any,
    choices: Mapping[str, Sequence[str]],
    dims: Mapping[str, int],
    indices: Mapping[str, Any] | None = None,
) -> Any:
    """The result of a program for an array.

    Args:
        program: from `typed`.
        xp: the namespace of the arrays.
        call: the arguments of the operator, in the form that references get.
        value: the computed values, of a floating dtype. Results have that dtype.
        choices: the choices of each attribute.
        dims: extents.
        indices: the indices of the elements of `value`, by name. Without them, its axes are the program's indices.
    """
    running = _Evaluation(xp, call, value, choices, dims, program.indices, indices)
    results: list[Any] = []
    for step in expanded(program, ("tanh",)).instructions:
        results.append(running.of(step, [results[a] for a in step.args]))
    return results[-1]


@dataclass
class _Evaluation:
    xp: Any
    call: SimpleNamespace
    value: Any
    choices: Mapping[str, Sequence[str]]
    dims: Mapping[str, int]
    names: tuple[str, ...]
    indices: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        if self.indices is None and self.value.ndim != len(self.names):
            told = f"{self.value.ndim} axes were given, but the indices are {', '.join(self.names)}"
            raise ValueError(f"{told}: pass them by name")
        self.place = {"device": self.value.device} if hasattr(self.value, "device") else {}

    def of(self, step: Instruction, args: list[Any]) -> Any:
        if step.op == "element":
            return self._element(step, args)
        if step.op == "round":
            return _rounded(self.xp, args[0], str(step.value))
        if not args:
            return self._leaf(step)
        operation = _OPERATIONS.get(step.op)
        return getattr(self.xp, step.op)(args[0]) if operation is None else operation(self, *args)

    def _leaf(self, step: Instruction) -> Any:
        xp, name = self.xp, str(step.value)
        if step.op == "value":
            return self.value
        if step.op == "index":
            return self._index(name)
        if step.op == "dim":
            return self._number(self.dims[name], step.kind)
        if step.op == "attribute":
            return self._number(self.choices[name].index(getattr(self.call, name)), step.kind)
        if step.op == "present":
            return xp.asarray(getattr(self.call, name) is not None, **self.place)
        return self._number(step.value if step.op == "const" else getattr(self.call, name), step.kind)

    def _number(self, value: Any, kind: str) -> Any:
        dtypes = {FLOAT: self.value.dtype, BOOLEAN: self.xp.bool}
        return self.xp.asarray(value, dtype=dtypes.get(kind, self.xp.int64), **self.place)

    def _index(self, name: str) -> Any:
        if self.indices is not None:
            given = self.indices[name]
            return self.cast(given, self.xp.int64) if hasattr(given, "dtype") else self._number(given, "")
        axis = self.names.index(name)
        along = self.xp.arange(self.value.shape[axis], dtype=self.xp.int64, **self.place)
        return self.xp.reshape(along, tuple(-1 if a == axis else 1 for a in range(self.value.ndim)))

    def _element(self, step: Instruction, places: list[Any]) -> Any:
        """Elements at places. Outside of the tensor they are 0."""
        xp, array = self.xp, getattr(self.call, str(step.value))
        zero = self._number(0, step.kind)
        if array is None or 0 in array.shape:
            return zero
        inside = self._number(True, BOOLEAN)
        bounded = []
        for place, extent in zip(places, array.shape, strict=True):
            inside = inside & (place >= 0) & (place < extent)
            bounded.append(xp.where(place < 0, place * 0, xp.where(place < extent, place, place * 0 + (extent - 1))))
        elements = array[tuple(bounded)]
        return xp.where(inside, self.cast(elements, zero.dtype), zero)

    def integer(self, x: Any) -> Any:
        """Floats as integers of 32 bits: rounded towards 0 and limited; NaN is 0."""
        xp = self.xp
        low, high = self._number(-(2.0**31), FLOAT), self._number(LARGEST_INTEGER, FLOAT)
        bounded = xp.where(x < low, low, xp.where(x > high, high, x))
        return self.cast(xp.where(xp.isnan(x), self._number(0.0, FLOAT), bounded), xp.int64)

    def erf(self, x: Any) -> Any:
        """The error function, which numpy does not have."""
        if hasattr(self.xp, "special"):
            return self.xp.special.erf(x)
        if x.ndim == 0:
            return self._number(math.erf(float(x)), FLOAT)
        return self.cast(self.xp.frompyfunc(math.erf, 1, 1)(x), x.dtype)

    def cast(self, x: Any, dtype: Any) -> Any:
        """An array in another dtype."""
        return x.astype(dtype) if hasattr(x, "astype") else x.to(dtype)


def divided(xp: Any, divide: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """A quotient of integers, or what remains of it, which is 0 where the divisor is."""
    nothing = right == 0
    return xp.where(nothing, right, divide(left, xp.where(nothing, right + 1, right)))


_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{op: lambda _e, a, b, apply=apply: apply(a, b) for op, apply in OPERATORS.items()},
    "//": lambda e, a, b: divided(e.xp, operator.floordiv, a, b),
    "%": lambda e, a, b: divided(e.xp, operator.mod, a, b),
    "min": lambda e, a, b: e.xp.minimum(a, b),
    "max": lambda e, a, b: e.xp.maximum(a, b),
    "where": lambda e, a, b, c: e.xp.where(a, b, c),
    "neg": lambda _e, a: -a,
    "not": lambda _e, a: ~a,
    "to_float": lambda e, a: e.cast(a, e.value.dtype),
    "to_integer": lambda e, a: e.integer(a),
    "erf": lambda e, a: e.erf(a),
}
"""Operations. Others are functions of the arrays' namespace."""


def _rounded(xp: Any, x: Any, dtype_name: str) -> Any:
    """The nearest values of a narrow dtype, ties to even, stored in the dtype of the input."""
    if hasattr(xp, "bfloat16"):
        return x.to(xp.bfloat16 if dtype_name == "bf16" else xp.float16).to(x.dtype)
    if dtype_name == "f16":
        narrow = x.astype(xp.float16)
    else:
        raw = xp.asarray(x).astype(xp.float32).view(xp.uint32)
        narrow = ((raw + (0x7FFF + ((raw >> 16) & 1))) & 0xFFFF0000).view(xp.float32)
    return xp.where(xp.isnan(x), x, narrow.astype(x.dtype))
