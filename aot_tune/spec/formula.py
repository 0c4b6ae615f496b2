"""Formulas: what is computed for each element of a result, as data that every backend can print.

A formula is written in Python, with the functions of `spec.elementwise` and the operators below. It does not belong to
an operator yet: `spec.typed_formulas` gives each part its type.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple, NoReturn, Union

from aot_tune.spec.arithmetic import Reflected
from aot_tune.spec.expr import Expr
from aot_tune.support.errors import SpecError

__all__ = ["Formula", "FormulaLike", "FormulaValue", "Step", "as_formula"]

FormulaValue = str | int | float | bool | None
FormulaLike = Union["Formula", Expr, int, float, bool]

_MOST_STEPS = 2000
_OF_EXPR = {
    "+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod", "==": "eq", "!=": "ne", "<": "lt", "<=": "le",
    ">": "gt", ">=": "ge", "and": "and", "or": "or", "min": "min", "max": "max", "where": "where",
}  # fmt: skip
_SHOWN = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "eq": "==", "ne": "!=", "lt": "<",
    "le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|",
}  # fmt: skip


class Step(NamedTuple):
    """An operation of a formula on the results of earlier steps."""

    op: str
    value: FormulaValue
    args: tuple[int, ...]


class Formula(Reflected):
    """A node: a leaf, such as the computed value or an element of a tensor, or an operation on other nodes.

    Use `&`, `|` and `~` for and, or and not. `and`, `or` and chained comparisons raise, because Python would evaluate
    them.
    """

    __slots__ = ("args", "op", "value")
    __array_ufunc__ = None
    """With None, numpy's numbers leave the operation to the formula."""

    def __init__(self, op: str, args: tuple[Formula, ...] = (), value: FormulaValue = None) -> None:
        self.op, self.args, self.value = op, args, value

    def __reduce__(self) -> tuple[Any, ...]:
        return Formula.of, (self.data(),)

    def __add__(self, other: FormulaLike) -> Formula:
        return _binary("add", self, other)

    def __radd__(self, other: FormulaLike) -> Formula:
        return _binary("add", other, self)

    def __sub__(self, other: FormulaLike) -> Formula:
        return _binary("sub", self, other)

    def __rsub__(self, other: FormulaLike) -> Formula:
        return _binary("sub", other, self)

    def __mul__(self, other: FormulaLike) -> Formula:
        return _binary("mul", self, other)

    def __rmul__(self, other: FormulaLike) -> Formula:
        return _binary("mul", other, self)

    def __truediv__(self, other: FormulaLike) -> Formula:
        return _binary("div", self, other)

    def __rtruediv__(self, other: FormulaLike) -> Formula:
        return _binary("div", other, self)

    def __floordiv__(self, other: FormulaLike) -> Formula:
        return _binary("floordiv", self, other)

    def __rfloordiv__(self, other: FormulaLike) -> Formula:
        return _binary("floordiv", other, self)

    def __mod__(self, other: FormulaLike) -> Formula:
        return _binary("mod", self, other)

    def __rmod__(self, other: FormulaLike) -> Formula:
        return _binary("mod", other, self)

    def __pow__(self, power: object) -> Formula:
        if power == 2:
            return self * self
        raise SpecError(
            f"{self!r} to the power of {power!r} is not a formula", fix="write x ** 2, products, exp and log"
        )

    def __neg__(self) -> Formula:
        return Formula("neg", (self,))

    def __pos__(self) -> Formula:
        return self

    def __abs__(self) -> Formula:
        return Formula("abs", (self,))

    def __invert__(self) -> Formula:
        return Formula("not", (self,))

    def __and__(self, other: FormulaLike) -> Formula:
        return _binary("and", self, other)

    def __rand__(self, other: FormulaLike) -> Formula:
        return _binary("and", other, self)

    def __or__(self, other: FormulaLike) -> Formula:
        return _binary("or", self, other)

    def __ror__(self, other: FormulaLike) -> Formula:
        return _binary("or", other, self)

    def __eq__(self, other: object) -> Formula:  # type: ignore[override]
        return _binary("eq", self, other)

    def __ne__(self, other: object) -> Formula:  # type: ignore[override]
        return _binary("ne", self, other)

    def __lt__(self, other: FormulaLike) -> Formula:
        return _binary("lt", self, other)

    def __le__(self, other: FormulaLike) -> Formula:
        return _binary("le", self, other)

    def __gt__(self, other: FormulaLike) -> Formula:
        return _binary("gt", self, other)

    def __ge__(self, other: FormulaLike) -> Formula:
        return _binary("ge", self, other)

    def __hash__(self) -> int:
        return hash(self.key())

    def __bool__(self) -> NoReturn:
        raise SpecError(
            f"the formula {self!r} was used as a Python condition",
            why="its value is known only for an element of a call",
            fix="choose by where(condition, yes, no); combine conditions with &, | and ~",
        )

    def __repr__(self) -> str:
        steps = self.steps()
        return shown(steps, len(steps) - 1)

    def steps(self) -> list[Step]:
        """The formula as operations in order, the result last. A part that occurs twice is one step.

        Raises:
            SpecError: when there are too many.
        """
        known: dict[int, int] = {}  # by identity, because comparing formulas gives a formula
        numbers: dict[Step, int] = {}
        found: list[Step] = []
        waiting: list[tuple[Formula, bool]] = [(self, False)]
        while waiting:
            node, ready = waiting.pop()
            if id(node) in known:
                continue
            if not ready:
                waiting.append((node, True))
                waiting += [(a, False) for a in reversed(node.args)]
                continue
            step = Step(node.op, _told_apart(node.value), tuple(known[id(a)] for a in node.args))
            if step not in numbers:
                numbers[step] = len(found)
                found.append(Step(node.op, node.value, step.args))
            known[id(node)] = numbers[step]
            if len(found) > _MOST_STEPS:
                raise SpecError(
                    f"a formula has more than {_MOST_STEPS} operations",
                    why="it is computed for every element",
                    fix="compute what does not depend on the element into a tensor, and read that",
                )
        return found

    def with_value(self, other: Formula) -> Formula:
        """The formula with another one in place of the computed value."""
        found: list[Formula] = []
        for step in self.steps():
            args = tuple(found[a] for a in step.args)
            found.append(other if step.op == "value" else Formula(step.op, args, step.value))
        return found[-1]

    def data(self) -> list[Any]:
        """The formula as plain lists, for `Formula.of`: one list for each step, which names other steps by number."""
        return [[s.op, _as_data(s.value), *s.args] for s in self.steps()]

    @classmethod
    def of(cls, data: Any) -> Formula:
        """The formula for `data`."""
        found: list[Formula] = []
        for op, value, *args in data:
            found.append(cls(op, tuple(found[a] for a in args), _of_data(value)))
        return found[-1]

    def key(self) -> str:
        """A canonical text: equal for equal formulas, stable across processes."""
        return "; ".join(" ".join([s.op, repr(_as_data(s.value)), *map(str, s.args)]) for s in self.steps())


def shown(steps: list[Step], at: int, depth: int = 6) -> str:
    """A step as it was written, for messages. Deeply nested parts are left out."""
    step = steps[at]
    if depth == 0:
        return "..."
    args = [shown(steps, a, depth - 1) for a in step.args]
    if step.op in _SHOWN:
        return f"({args[0]} {_SHOWN[step.op]} {args[1]})"
    told = repr(step.value).replace("'", '"')
    if step.op in ("constant", "axis"):
        return told
    given = [] if step.value is None else [told]
    if step.op == "choice":
        given = [f'"{part}"' for part in str(step.value).split("=")]
    return f"{step.op}({', '.join(args + given if step.op == 'cast' else given + args)})"


def as_formula(value: object, where: str = "") -> Formula:
    """The formula for a number or for an expression of the call. A formula stays as it is.

    Raises:
        SpecError: when it is none of these. `where` begins the message.
    """
    if isinstance(value, Formula):
        return value
    if isinstance(value, Expr):
        return _of_expr(value)
    if isinstance(value, (bool, int, float)):
        return Formula("constant", value=value)
    if not isinstance(value, str):
        for convert in (operator.index, float):  # numbers of other packages
            try:
                return Formula("constant", value=convert(value))  # type: ignore[arg-type]
            except TypeError:
                continue
    raise SpecError(
        f"{where or 'a formula'} cannot be {str(value)[:60]!r}, a {type(value).__name__}",
        fix='give a number or a formula, such as value(), element("bias", 1) or scalar("alpha")',
    )


def _of_expr(expr: Expr) -> Formula:
    if expr.kind == "const":
        return Formula("constant", value=int(expr.value))
    if expr.kind == "fact":
        kind, dot, name = str(expr.value).partition(".")
        if not dot:
            return Formula("dim", value=kind)
        if kind in ("present", "attribute"):
            return Formula(kind, value=name)
    if expr.kind not in _OF_EXPR:
        raise SpecError(
            f"a formula cannot use {expr.key()}",
            why="formulas know only dims, presence and attributes of a call",
            fix="leave it out, or let `requires` of kernels ask for it",
        )
    args = tuple(map(_of_expr, expr.args))
    if expr.kind == "==" and args[0].op in ("present", "and", "or") and expr.args[1].kind == "const":
        return args[0] if expr.args[1].value else ~args[0]  # `~` of an expression is written so
    return Formula(_OF_EXPR[expr.kind], args)


def _binary(op: str, left: object, right: object) -> Formula:
    return Formula(op, (as_formula(left), as_formula(right)))


def _told_apart(value: FormulaValue) -> FormulaValue:
    """A value that differs for 1, 1.0 and True, and for 0.0 and -0.0."""
    return f"{type(value).__name__} {value!r}"


def _as_data(value: FormulaValue) -> Any:
    """A value in a form that JSON can hold. A float becomes a text."""
    return {"float": value.hex()} if isinstance(value, float) else value


def _of_data(data: Any) -> FormulaValue:
    value: FormulaValue = float.fromhex(data["float"]) if isinstance(data, dict) else data
    return value
