"""Computes extents of tensors from the dims of a call. Dims may be symbols of a framework."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["EXTENT", "extent_value"]

EXTENT = ".extent"
"""The fact for an axis' extent, in the expression that a dim is solved to."""

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
}


def extent_value(
    expression: Any,
    facts: Mapping[str, Any],
    least: Callable[[Any, Any], Any] = min,
    most: Callable[[Any, Any], Any] = max,
) -> Any:
    """The value of an expression in the form that `signatures()` writes.

    Args:
        expression: nested lists, as `Expr.data` makes them.
        facts: integers, or symbols of a framework, by name.
        least, most: the smaller and the larger of two values.

    Choices (`where`, comparisons) and powers of two are decided at once, so symbols must be able to decide them.

    Raises:
        ZeroDivisionError: when the expression divides by zero.
    """
    kind, *rest = expression
    if kind == "fact":
        return facts[rest[0]]
    if kind == "const":
        return rest[0]
    if kind == "where":
        condition, yes, no = rest
        chosen = yes if bool(extent_value(condition, facts, least, most)) else no
        return extent_value(chosen, facts, least, most)
    if kind == "next_power_of_2":
        return 1 << max(int(extent_value(rest[0], facts, least, most)) - 1, 0).bit_length()
    left, right = (extent_value(one, facts, least, most) for one in rest)
    return {**_BINARY, "min": least, "max": most}[kind](left, right)
