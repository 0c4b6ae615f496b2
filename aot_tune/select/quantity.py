"""Quantities of a call as doubles: computed here for many calls at once, and printed as C++ that computes the same.

numpy and C++ for x86-64 round sums, products and quotients of doubles alike, so both give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aot_tune.expr.columns import Calls
from aot_tune.spec import Expr

__all__ = ["Quantity", "Values", "constant", "fact", "greater", "lesser", "quantity_of", "rounded_up"]

Values = NDArray[np.float64]

_PLAIN = {"+": np.add, "*": np.multiply, "-": np.subtract, "/": np.divide}


@dataclass(frozen=True)
class Quantity:
    """A node: a `fact` or `integer` (an expression of facts, computed in integers), a `constant`, or an operation.

    Operations are + - * / and `max`, `min`, `up` (rounded up to an integer).
    """

    kind: str
    args: tuple[Quantity, ...] = ()
    value: float = 0.0
    of: Expr | None = None

    def __add__(self, other: Quantity | float) -> Quantity:
        return Quantity("+", (self, _wrapped(other)))

    def __mul__(self, other: Quantity | float) -> Quantity:
        return Quantity("*", (self, _wrapped(other)))

    def __truediv__(self, other: Quantity | float) -> Quantity:
        return Quantity("/", (self, _wrapped(other)))

    def __sub__(self, other: Quantity | float) -> Quantity:
        return Quantity("-", (self, _wrapped(other)))

    def values(self, calls: Calls) -> Values:
        """The value for each call."""
        if self.kind == "constant":
            return np.full(len(calls), self.value)
        if self.of is not None:
            return calls.values(self.of).astype(np.float64)
        parts = [a.values(calls) for a in self.args]
        if self.kind == "up":
            return np.ceil(parts[0])
        if self.kind in _PLAIN:
            found: Values = _PLAIN[self.kind](*parts)
            return found
        left, right = parts
        return np.where(left > right, left, right) if self.kind == "max" else np.where(left < right, left, right)

    def cpp(self, fact: Callable[[str], str]) -> str:
        """The quantity as C++. `fact` prints a fact, and `up` must be declared."""
        if self.kind == "constant":
            return f"{self.value!r}"
        if self.of is not None:
            return f"static_cast<double>({self.of.cpp(fact)})"
        parts = [a.cpp(fact) for a in self.args]
        if self.kind == "up":
            return f"up({parts[0]})"
        if self.kind in _PLAIN:
            return f"({parts[0]} {self.kind} {parts[1]})"
        comparison = ">" if self.kind == "max" else "<"
        return f"({parts[0]} {comparison} {parts[1]} ? {parts[0]} : {parts[1]})"


def constant(value: float) -> Quantity:
    """A number."""
    return Quantity("constant", value=float(value))


def fact(name: str) -> Quantity:
    """A fact of the call."""
    return Quantity("fact", of=Expr("fact", value=name))


def greater(left: Quantity, right: Quantity | float) -> Quantity:
    """The greater of two."""
    return Quantity("max", (left, _wrapped(right)))


def lesser(left: Quantity, right: Quantity | float) -> Quantity:
    """The lesser of two."""
    return Quantity("min", (left, _wrapped(right)))


def rounded_up(value: Quantity) -> Quantity:
    """The quantity, rounded up to an integer."""
    return Quantity("up", (value,))


def quantity_of(expression: Expr) -> Quantity:
    """An expression as a quantity. Sums and products are doubles, which cannot overflow; the rest is integers."""
    if expression.op == "const":
        return constant(int(expression.value))
    if expression.op in ("+", "*", "-"):
        return Quantity(expression.op, tuple(map(quantity_of, expression.args)))
    return Quantity("fact" if expression.op == "fact" else "integer", of=expression)


def _wrapped(value: Quantity | float) -> Quantity:
    return value if isinstance(value, Quantity) else constant(value)
