"""Where the dims and dtypes of a call come from: axes of tensors, extents from which a dim is solved, and integers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot_tune.expr.integers import EXTENT, Expr, dim
from aot_tune.spec.dtypes import dtype

if TYPE_CHECKING:
    from aot_tune.spec.operator_fields import OperatorFields
    from aot_tune.spec.tensors import Tensor

__all__ = [
    "BoundDim",
    "bound_dims",
    "dims_beside_inputs",
    "dims_of_scalars",
    "extents_exist",
    "outputs_to_pass",
]

_MOST = 2**63 - 1


@dataclass(frozen=True)
class BoundDim:
    """The source of a dim: an axis of `tensor`, or the integer `scalar`.

    `value` computes the dim from the axis' extent, which is the fact `EXTENT`, and from dims that are bound before it.
    """

    tensor: str = ""
    axis: int = 0
    scalar: str = ""
    value: Expr = Expr("fact", value=EXTENT)  # noqa: RUF009  (nothing of an expression changes)

    @property
    def plain(self) -> bool:
        """Whether the dim is the extent or integer itself."""
        return self.value.op == "fact"

    def cpp(self, name: Callable[[str], str]) -> str:
        """The dim as C++, for arguments that are checked already. `name` prints other dims."""
        if self.scalar:
            return f"static_cast<int64_t>({self.scalar})"
        read = f"{self.tensor}->shape[{self.axis}]"
        return self.value.cpp(lambda fact: read if fact == EXTENT else name(fact))


def bound_dims(op: OperatorFields) -> dict[str, BoundDim]:
    """The source of each bound dim. A dim comes after those that it is solved from.

    Inputs that are always passed come first, then integers, then solved extents of inputs, and outputs last.
    """
    inputs = [t for t in op.tensors if not t.output and not t.optional]
    outputs = [t for t in op.tensors if t.output and not t.optional]
    found: dict[str, BoundDim] = {}
    _read(found, inputs)
    for scalar in op.scalars:
        if scalar.binds:
            found.setdefault(scalar.binds, BoundDim(scalar=scalar.name))
    _solve(found, inputs)
    _read(found, outputs)
    _solve(found, [*inputs, *outputs])
    plain = [name for name in op.dims if name in found and found[name].plain]
    solved = [name for name in found if not found[name].plain]
    return {name: found[name] for name in (*plain, *solved)}


def dims_of_scalars(op: OperatorFields) -> dict[str, Expr]:
    """The integers that bind dims, by name. A Triton function that takes one of them may be passed the dim."""
    return {s.name: dim(s.binds) for s in op.scalars if s.binds}


def dims_beside_inputs(op: OperatorFields) -> tuple[str, ...]:
    """The dims that may be 0 though every input has elements."""
    seen = {f for t in op.tensors if not t.output and not t.optional for s in t.shape for f in _factors(s)}
    return tuple(name for name in op.dims if name not in seen)


def extents_exist(op: OperatorFields) -> tuple[Expr, ...]:
    """Conditions that extents such as `N - 1` are not negative, and that integers can hold the dims that they bind."""
    shapes = (s >= 0 for t in op.tensors for s in t.shape if _subtracts(s))
    integers = ((dim(s.binds), int(dtype(s.dtype_name).limits[1])) for s in op.scalars if s.binds)
    return (*shapes, *(name <= most for name, most in integers if most < _MOST))


def outputs_to_pass(op: OperatorFields) -> dict[str, tuple[str, ...]]:
    """The outputs that a caller has to pass, each with the dims and dtype variables that only it can tell.

    A new output is allocated where an input lies. If no input is always passed, the first output must be passed.
    """
    found: dict[str, list[str]] = {}
    for name, bound in bound_dims(op).items():
        if bound.tensor and op.tensor(bound.tensor).output:
            found.setdefault(bound.tensor, []).append(name)
    required = [t for t in op.tensors if not t.optional]
    for variable in op.dtypes:
        tensors = [t for t in required if t.dtype_name == variable]
        if tensors and all(t.output for t in tensors):
            found.setdefault(tensors[0].name, []).append(variable)
    if all(t.output for t in required):
        found.setdefault(required[0].name, [])
    return {name: tuple(told) for name, told in found.items()}


def _read(found: dict[str, BoundDim], tensors: Iterable[Tensor]) -> None:
    """Bind dims that are themselves the extent of an axis."""
    for tensor, axis, extent in _axes(tensors):
        if extent.op == "fact":
            found.setdefault(str(extent.value), BoundDim(tensor=tensor, axis=axis))


def _solve(found: dict[str, BoundDim], tensors: Iterable[Tensor]) -> None:
    """Bind dims that are the only unknown of an extent, as long as there are any."""
    axes = list(_axes(tensors))
    before = -1
    while before != len(found):
        before = len(found)
        for tensor, axis, extent in axes:
            unknown = [name for name in sorted(extent.facts()) if name not in found]
            value = _solved(extent, unknown[0]) if len(unknown) == 1 else None
            if value is not None:
                found[unknown[0]] = BoundDim(tensor=tensor, axis=axis, value=value)


def _solved(extent: Expr, name: str) -> Expr | None:
    """The dim `name` computed from an extent; None if sums and products do not determine it."""
    value = Expr("fact", value=EXTENT)
    while extent.op != "fact":
        if extent.op not in ("+", "-", "*"):
            return None
        left, right = extent.args
        if (name in left.facts()) == (name in right.facts()):
            return None
        inner, other = (left, right) if name in left.facts() else (right, left)
        if extent.op == "-":
            value = Expr("+", (value, other)) if inner is left else Expr("-", (other, value))
        else:
            value = Expr("-" if extent.op == "+" else "//", (value, other))
        extent = inner
    return value


def _axes(tensors: Iterable[Tensor]) -> Iterator[tuple[str, int, Expr]]:
    for tensor in tensors:
        for axis, extent in enumerate(tensor.shape):
            yield tensor.name, axis, extent


def _subtracts(extent: Expr) -> bool:
    return extent.op == "-" or any(map(_subtracts, extent.args))


def _factors(extent: Expr) -> Iterator[str]:
    """Dims that make an extent 0 when they are 0."""
    if extent.op == "fact":
        yield str(extent.value)
    elif extent.op == "*":
        for factor in extent.args:
            yield from _factors(factor)
