"""Formulas: what is computed for each element of a result, as data that every backend can print.

A formula is written in Python, with the functions of `spec.elementwise` and the operators of nodes. It does not belong
to an operator yet. A program does: its instructions are the formula's steps, each with its type.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, Union

from aot_tune.expr.integer_expressions import Expr
from aot_tune.expr.nodes import OPERATORS, ExprNode
from aot_tune.support.errors import SpecError

FormulaValue = str | int | float | bool | None
FormulaLike = Union["Formula", Expr, int, float, bool]

FLOAT, INTEGER, BOOLEAN = "float", "integer", "boolean"
NAMES = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod", "==": "eq", "!=": "ne", "<": "lt",
    "<=": "le", ">": "gt", ">=": "ge", "const": "constant",
}  # fmt: skip
"""Ops as they are written in keys and data, which are part of digests, where they have another name there."""

OPS = {name: op for op, name in NAMES.items()}
_MOST_STEPS = 2000
_LOWEST = -3.4028234663852886e38


class Instruction(NamedTuple):
    """An operation on the results of earlier ones. In a program it has the type of its result, its `kind`.

    The ops of programs are those of formulas, with exceptions. `element` has an integer for each axis; it is `trusted`
    if the integer is the index of an axis of the same extent. `choice` is a comparison. A `cast` is `round` (to a
    dtype), `to_float` or `to_integer`.
    """

    op: str
    value: FormulaValue
    args: tuple[int, ...]
    kind: str = ""
    trusted: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Program:
    """Instructions in order, the result last. `indices` are the names of the indices of an element's place."""

    instructions: tuple[Instruction, ...]
    indices: tuple[str, ...]

    def names(self, *ops: str) -> tuple[str, ...]:
        """The names that instructions with these ops use, each once."""
        return tuple(dict.fromkeys(str(i.value) for i in self.instructions if i.op in ops))


@dataclass
class Builder:
    """Instructions that are added one after the other. Equal ones are added once."""

    instructions: list[Instruction] = field(default_factory=list)
    _numbers: dict[tuple[str, Instruction], int] = field(default_factory=dict)

    def add(self, instruction: Instruction) -> int:
        """The number of an instruction, which is added if it is new."""
        key = (repr(instruction.value), instruction)  # 1, 1.0 and True are equal but differ, as do 0.0 and -0.0
        if key not in self._numbers:
            self._numbers[key] = len(self.instructions)
            self.instructions.append(instruction)
        return self._numbers[key]

    def number(self, value: float) -> int:
        """A constant float."""
        return self.add(Instruction("const", float(value), (), FLOAT))

    def of(self, op: str, *args: int, kind: str = FLOAT) -> int:
        """Add an operation. Its type is float by default."""
        return self.add(Instruction(op, None, args, kind))

    def kind(self, at: int) -> str:
        """The type of an instruction."""
        return self.instructions[at].kind


class Formula(ExprNode):
    """A node: a leaf, such as the computed value or an element of a tensor, or an operation on other nodes."""

    __slots__ = ()
    rank = 1
    __array_ufunc__ = None
    """With None, numpy's numbers leave the operation to the formula."""

    args: tuple[Formula, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return Formula.of, (self.data(),)

    @classmethod
    def wrapped(cls, value: Any) -> Formula:
        """A number or an expression of the call as a formula."""
        return as_formula(value)

    def __pow__(self, power: object) -> Formula:
        if power == 2:
            return self * self
        raise SpecError(
            f"{self!r} to the power of {power!r} is not a formula", fix="write x ** 2, products, exp and log"
        )

    def __neg__(self) -> Formula:
        return self.made("neg", self)

    def __abs__(self) -> Formula:
        return self.made("abs", self)

    def __invert__(self) -> Formula:
        return self.made("not", self)

    def __bool__(self) -> NoReturn:
        raise SpecError(
            f"the formula {self!r} was used as a Python condition",
            why="its value is known only for an element of a call",
            fix="choose by where(condition, yes, no); combine conditions with &, | and ~",
        )

    def __repr__(self) -> str:
        return shown(self.steps(), -1)

    def steps(self) -> list[Instruction]:
        """The formula as operations in order, the result last. A part that occurs twice is one step.

        Raises:
            SpecError: when there are too many.
        """
        numbers: dict[int, int] = {}  # by identity, because comparing formulas gives a formula
        builder = Builder()
        waiting: list[tuple[Formula, bool]] = [(self, False)]
        while waiting:
            node, ready = waiting.pop()
            if id(node) in numbers:
                continue
            if not ready:
                waiting.append((node, True))
                waiting += [(a, False) for a in reversed(node.args)]
                continue
            args = tuple(numbers[id(a)] for a in node.args)
            numbers[id(node)] = builder.add(Instruction(node.op, node.value, args))
            if len(builder.instructions) > _MOST_STEPS:
                raise SpecError(
                    f"a formula has more than {_MOST_STEPS} operations",
                    why="it is computed for every element",
                    fix="compute what does not depend on the element into a tensor, and read that",
                )
        return builder.instructions

    def with_value(self, other: Formula) -> Formula:
        """The formula with another one in place of the computed value."""
        return _joined(((s.op, s.value, s.args) for s in self.steps()), other)

    def data(self) -> list[Any]:
        """The formula as plain lists, for `Formula.of`: one list for each step, which names other steps by number."""
        return [
            [NAMES.get(s.op, s.op), {"float": s.value.hex()} if isinstance(s.value, float) else s.value, *s.args]
            for s in self.steps()
        ]

    @classmethod
    def of(cls, data: Any) -> Formula:
        """The formula for `data`."""
        return _joined((OPS.get(op, op), _of_data(value), args) for op, value, *args in data)

    def key(self) -> str:
        """A canonical text: equal for equal formulas, stable across processes."""
        return "; ".join(" ".join([op, repr(value), *map(str, args)]) for op, value, *args in self.data())


def _joined(steps: Iterable[tuple[str, FormulaValue, Iterable[int]]], value: Formula | None = None) -> Formula:
    """The formula of these steps, with another one in place of the computed value if it is given."""
    nodes: list[Formula] = []
    for op, named, args in steps:
        replaced = value is not None and op == "value"
        nodes.append(value if replaced else Formula(op, tuple(nodes[a] for a in args), named))  # type: ignore[arg-type]
    return nodes[-1]


def shown(steps: list[Instruction], at: int, depth: int = 6) -> str:
    """A step as it was written, for messages. Deeply nested parts are left out."""
    step = steps[at]
    if depth == 0:
        return "..."
    args = [shown(steps, a, depth - 1) for a in step.args]
    if step.op in OPERATORS:
        return f"({args[0]} { {'and': '&', 'or': '|'}.get(step.op, step.op) } {args[1]})"
    told = repr(step.value).replace("'", '"')
    if step.op in ("const", "axis"):
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
        return Formula("const", value=value)
    if not isinstance(value, str):
        for convert in (operator.index, float):  # numbers of other packages
            try:
                return Formula("const", value=convert(value))  # type: ignore[arg-type]
            except TypeError:
                continue
    raise SpecError(
        f"{where or 'a formula'} cannot be {str(value)[:60]!r}, a {type(value).__name__}",
        fix='give a number or a formula, such as value(), element("bias", 1) or scalar("alpha")',
    )


def _of_expr(expr: Expr) -> Formula:
    if expr.op == "const":
        return Formula("const", value=int(expr.value))
    if expr.op == "fact":
        kind, dot, name = str(expr.value).partition(".")
        if not dot:
            return Formula("dim", value=kind)
        if kind in ("present", "attribute"):
            return Formula(kind, value=name)
    if expr.op in ("fact", "next_power_of_2"):
        raise SpecError(
            f"a formula cannot use {expr.key()}",
            why="formulas know only dims, presence and attributes of a call",
            fix="leave it out, or let `requires` of kernels ask for it",
        )
    args = tuple(map(_of_expr, expr.args))
    if expr.op == "==" and args[0].op in ("present", "and", "or") and expr.args[1].op == "const":
        return args[0] if expr.args[1].value else ~args[0]  # `~` of an expression is written so
    return Formula(expr.op, args)


def _of_data(data: Any) -> FormulaValue:
    value: FormulaValue = float.fromhex(data["float"]) if isinstance(data, dict) else data
    return value


def pruned(builder: Builder, last: int, indices: tuple[str, ...]) -> Program:
    """The program that has only the instructions that one of them depends on."""
    needed = {last}
    for at in range(last, -1, -1):
        if at in needed:
            needed.update(builder.instructions[at].args)
    places = {old: new for new, old in enumerate(sorted(needed))}
    kept = (builder.instructions[at] for at in sorted(needed))
    return Program(tuple(i._replace(args=tuple(places[a] for a in i.args)) for i in kept), indices)


# -- functions that are composed of others, for backends that do not have them -----------------------------------


def _chosen(b: Builder, x: int, comparison: str, bound: float, yes: int, no: int) -> int:
    return b.of("where", b.of(comparison, x, b.number(bound), kind=BOOLEAN), yes, no)


def _sigmoid(b: Builder, x: int) -> int:
    small = b.of("exp", b.of("neg", b.of("abs", x)))
    below = b.of("+", b.number(1.0), small)
    return _chosen(b, x, ">=", 0.0, b.of("/", b.number(1.0), below), b.of("/", small, below))


def _limited(b: Builder, x: int, factor: int) -> int:
    """A product of a factor that is 0 and one that is -inf is 0, which is its limit there."""
    return _chosen(b, x, "<", _LOWEST, b.number(0.0), b.of("*", x, factor))


def _silu(b: Builder, x: int) -> int:
    return _limited(b, x, _sigmoid(b, x))


def _gelu(b: Builder, x: int) -> int:
    error = b.of("erf", b.of("*", x, b.number(math.sqrt(0.5))))
    return _limited(b, x, b.of("*", b.number(0.5), b.of("+", b.number(1.0), error)))


def _gelu_tanh(b: Builder, x: int) -> int:
    """0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    cube = b.of("*", b.of("*", b.of("*", x, x), x), b.number(0.044715))
    twice = b.of("*", b.number(2 * math.sqrt(2 / math.pi)), b.of("+", x, cube))
    return _limited(b, x, _sigmoid(b, twice))


def _tanh(b: Builder, x: int) -> int:
    """An odd polynomial up to 0.6, as in common/math.h.j2; beyond that 1 - 2 / (e^2|x| + 1)."""
    square, size = b.of("*", x, x), b.of("abs", x)
    p = b.number(-5.895158060e-3)
    for coefficient in (2.079597165e-2, -5.378383027e-2, 1.333192413e-1, -3.333329800e-1):
        p = b.of("+", b.of("*", p, square), b.number(coefficient))
    small = b.of("+", b.of("*", b.of("*", p, square), x), x)
    above = b.of("+", b.of("exp", b.of("+", size, size)), b.number(1.0))
    large = b.of("-", b.number(1.0), b.of("/", b.number(2.0), above))
    signed = _chosen(b, x, "<", 0.0, b.of("neg", large), large)
    return _chosen(b, size, "<", 0.6, small, signed)


_COMPOSED: dict[str, Callable[[Builder, int], int]] = {
    "sigmoid": _sigmoid,
    "relu": lambda b, x: _chosen(b, x, "<", 0.0, b.number(0.0), x),
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "tanh": _tanh,
    "rsqrt": lambda b, x: b.of("/", b.number(1.0), b.of("sqrt", x)),
}


def expanded(program: Program, native: Collection[str]) -> Program:
    """The program with these functions composed of others, unless they are `native`."""
    builder, numbers = Builder(), list[int]()
    for step in program.instructions:
        args = tuple(numbers[a] for a in step.args)
        if step.op in _COMPOSED and step.op not in native:
            numbers.append(_COMPOSED[step.op](builder, *args))
        else:
            numbers.append(builder.add(step._replace(args=args)))
    return pruned(builder, numbers[-1], program.indices)
