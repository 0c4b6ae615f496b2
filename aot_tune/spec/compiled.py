"""Expressions that are evaluated often, as Python functions: made from their trees, of which no text is made."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, Protocol

__all__ = ["Node", "compiled"]

_ARITHMETIC: dict[str, type[ast.operator]] = {
    "+": ast.Add,
    "-": ast.Sub,
    "*": ast.Mult,
    "//": ast.FloorDiv,
    "%": ast.Mod,
}
_COMPARISONS: dict[str, type[ast.cmpop]] = {
    "==": ast.Eq,
    "!=": ast.NotEq,
    "<": ast.Lt,
    "<=": ast.LtE,
    ">": ast.Gt,
    ">=": ast.GtE,
}
_LOGIC: dict[str, type[ast.operator]] = {"and": ast.BitAnd, "or": ast.BitOr}
"""On truth values, so that both sides are evaluated: a fact that is missing is missed whatever the other says."""


class Node(Protocol):
    """What this needs of an expression."""

    @property
    def kind(self) -> str:
        """`const`, `fact`, or the operation."""

    @property
    def args(self) -> tuple[Any, ...]:
        """The nodes that it is of."""

    @property
    def value(self) -> str | int:
        """A constant, or the name of a fact."""


def compiled(expr: Node, next_power_of_2: Callable[[int], int]) -> Callable[[Mapping[str, int]], int] | None:
    """A function of facts that gives what the expression does; None for one that is nested too deeply.

    It raises KeyError for a fact that is missing and ZeroDivisionError where a divisor is zero.
    """
    arguments = ast.arguments(posonlyargs=[], args=[ast.arg("facts")], kwonlyargs=[], kw_defaults=[], defaults=[])
    names = {"__builtins__": {}, "int": int, "min": min, "max": max, "next_power_of_2": next_power_of_2}
    try:
        whole = ast.Expression(ast.Lambda(arguments, _call("int", _tree(expr))))
        code = compile(ast.fix_missing_locations(whole), "<expression>", "eval")
    except RecursionError:
        return None
    function: Callable[[Mapping[str, int]], int] = eval(code, names)  # noqa: S307 - a tree of ours, no text
    return function


def _tree(expr: Node) -> ast.expr:
    if expr.kind == "const":
        return ast.Constant(int(expr.value))
    if expr.kind == "fact":
        return _call("int", ast.Subscript(ast.Name("facts", ast.Load()), ast.Constant(str(expr.value)), ast.Load()))
    parts = [_tree(a) for a in expr.args]
    if expr.kind in _ARITHMETIC:
        return ast.BinOp(parts[0], _ARITHMETIC[expr.kind](), parts[1])
    if expr.kind in _COMPARISONS:
        return ast.Compare(parts[0], [_COMPARISONS[expr.kind]()], [parts[1]])
    if expr.kind in _LOGIC:
        left, right = (ast.Compare(p, [ast.NotEq()], [ast.Constant(0)]) for p in parts)
        return ast.BinOp(left, _LOGIC[expr.kind](), right)
    return ast.IfExp(*parts) if expr.kind == "where" else _call(expr.kind, *parts)


def _call(name: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
