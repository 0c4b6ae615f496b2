"""Expressions that are evaluated often, as Python functions of facts. Each node becomes a closure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

__all__ = ["ExprNode", "Function", "compiled"]

Function = Callable[[Mapping[str, int]], int]


class ExprNode(Protocol):
    """The part of an expression that this module needs."""

    @property
    def kind(self) -> str:
        """`const`, `fact`, or the operation."""

    @property
    def args(self) -> tuple[Any, ...]:
        """The operands."""

    @property
    def value(self) -> str | int:
        """A constant, or the name of a fact."""


def compiled(
    expr: ExprNode, unary: Mapping[str, Callable[[int], int]], binary: Mapping[str, Callable[[int, int], int]]
) -> Function:
    """A function of facts that computes the expression. `unary` and `binary` have the functions of operations.

    It raises KeyError if a fact is missing, and ZeroDivisionError if a divisor is zero.
    """
    if expr.kind == "const":
        constant = int(expr.value)
        return lambda _: constant
    if expr.kind == "fact":
        name = str(expr.value)
        return lambda facts: int(facts[name])
    parts = [compiled(a, unary, binary) for a in expr.args]
    if expr.kind == "where":
        condition, yes, no = parts
        return lambda facts: yes(facts) if condition(facts) else no(facts)
    if expr.kind in unary:
        change, (only,) = unary[expr.kind], parts
        return lambda facts: change(only(facts))
    return _of_two(binary[expr.kind], expr.args, parts)


def _of_two(join: Callable[[int, int], int], args: tuple[ExprNode, ...], parts: list[Function]) -> Function:
    """A closure that reads facts and constants without a call, because they are the most frequent operands."""
    (left, right), kinds = parts, (args[0].kind, args[1].kind)
    if kinds == ("fact", "const"):
        name, constant = str(args[0].value), int(args[1].value)
        return lambda facts: join(int(facts[name]), constant)
    if kinds == ("fact", "fact"):
        first, second = str(args[0].value), str(args[1].value)
        return lambda facts: join(int(facts[first]), int(facts[second]))
    if kinds[1] == "const":
        constant = int(args[1].value)
        return lambda facts: join(left(facts), constant)
    return lambda facts: join(left(facts), right(facts))
