"""Expressions as C++ that is defined whatever a caller passes. It uses the functions of runtime/arithmetic.h."""

from __future__ import annotations

from collections.abc import Callable

from aot_tune.spec import Expr

__all__ = ["checked", "is_plain"]

_FUNCTIONS = {"+": "plus", "-": "minus", "*": "times", "//": "quotient", "%": "remainder"}


def is_plain(expr: Expr) -> bool:
    """Whether an expression has a value in every call: nothing in it divides or can overflow."""
    return expr.kind not in _FUNCTIONS and all(map(is_plain, expr.args))


def checked(expr: Expr, name: Callable[[str], str], undefined: str = "undefined_") -> str:
    """The expression as C++ that sets the bool `undefined` if there is no value. `name` prints a fact."""
    if is_plain(expr):
        return expr.cpp(name)
    args = [checked(a, name, undefined) for a in expr.args]
    if expr.kind in _FUNCTIONS:
        return f"aot_tune::{_FUNCTIONS[expr.kind]}({args[0]}, {args[1]}, &{undefined})"
    places = tuple(Expr("fact", value=f"{i}") for i in range(len(args)))
    return Expr(expr.kind, places).cpp(lambda fact: args[int(fact)])
