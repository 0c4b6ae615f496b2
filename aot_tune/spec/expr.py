"""Integer expressions over a call's facts, evaluated in Python and printed as C++.

They state dims, guards, FLOP counts and constraints only once, and no text is evaluated. Division and modulo are those
of non-negative integers, where Python and C++ agree.
"""

from __future__ import annotations

import operator as op
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Union

from aot_tune.spec.arithmetic import Arithmetic, Reflected
from aot_tune.spec.compiled import compiled
from aot_tune.support.errors import SpecError, did_you_mean

__all__ = [
    "Expr",
    "ExprLike",
    "Facts",
    "alignment",
    "all_of",
    "as_expr",
    "attribute",
    "ceildiv",
    "deciding",
    "device",
    "dim",
    "dims",
    "dtype_index",
    "maximum",
    "minimum",
    "next_power_of_2",
    "parameter",
    "present",
    "stride",
    "target",
    "where",
]

Facts = Mapping[str, int]
"""What is known of a call, a config or a target: name of a fact to its value. Booleans are 0 and 1."""

ExprLike = Union["Expr", int, bool]

BINARY: dict[str, Callable[[int, int], int]] = {
    "+": op.add,
    "-": op.sub,
    "*": op.mul,
    "//": op.floordiv,
    "%": op.mod,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b),
    "and": lambda a, b: int(bool(a) and bool(b)),
    "or": lambda a, b: int(bool(a) or bool(b)),
    "min": min,
    "max": max,
}
_CPP = {"//": "/", "and": "&&", "or": "||"}
_OFTEN = 32
"""After this many evaluations, an expression gets its own function."""

deciding: ContextVar[Callable[[Expr], bool] | None] = ContextVar("deciding", default=None)
"""Receives an expression that is used as a Python condition while a function is traced; see `spec.trace`."""


class Expr(Arithmetic):
    """A node: a fact (`kind` "fact"), a constant, or an operation on other nodes.

    Use `&`, `|` and `~` for and, or and not. `and`, `or` and chained comparisons raise, because Python would evaluate
    them.
    """

    __slots__ = ("_facts", "_function", "_uses", "args", "kind", "value")

    def __init__(self, kind: str, args: tuple[Expr, ...] = (), value: str | int = 0) -> None:
        self.kind, self.args, self.value = kind, args, value
        self._facts: frozenset[str] | None = None
        self._uses = 0
        self._function: Callable[[Facts], int] | None = None

    def __reduce__(self) -> tuple[type[Expr], tuple[str, tuple[Expr, ...], str | int]]:
        return Expr, (self.kind, self.args, self.value)

    def __add__(self, other: ExprLike) -> Expr:
        return _binary("+", self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return _binary("+", other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return _binary("-", self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return _binary("-", other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return _binary("*", self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return _binary("*", other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        above = self.rounded_up(other)
        return _binary("//", self, other) if above is None else -above

    def __rfloordiv__(self, other: ExprLike) -> Expr:
        return _binary("//", other, self)

    def __mod__(self, other: ExprLike) -> Expr:
        above = self.rounded_up(other)
        return _binary("%", self, other) if above is None else above * other + self

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return _binary("==", self, _comparable(other))

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return _binary("!=", self, _comparable(other))

    def __lt__(self, other: ExprLike) -> Expr:
        return _binary("<", self, other)

    def __le__(self, other: ExprLike) -> Expr:
        return _binary("<=", self, other)

    def __gt__(self, other: ExprLike) -> Expr:
        return _binary(">", self, other)

    def __ge__(self, other: ExprLike) -> Expr:
        return _binary(">=", self, other)

    def __and__(self, other: ExprLike) -> Expr:
        return _binary("and", self, other)

    def __or__(self, other: ExprLike) -> Expr:
        return _binary("or", self, other)

    def __invert__(self) -> Expr:
        return _binary("==", self, 0)

    def __hash__(self) -> int:
        if deciding.get() is not None and self.facts():
            raise SpecError(
                f"the expression {self.key()} was looked up in a set, a dict or a cache",
                why="its value is known only for a concrete call",
                fix="compare it with each value, as in `n in (1, 2)`",
            )
        return hash(self.key())

    def __bool__(self) -> bool:
        decide = deciding.get()
        if decide is not None:
            return decide(self)
        raise SpecError(
            f"the expression {self.key()} was used as a Python condition",
            why="its value is known only for a concrete call",
            fix="combine conditions with &, | and ~, and write a < b < c as (a < b) & (b < c)",
        )

    def __repr__(self) -> str:
        return self.key()

    def key(self) -> str:
        """A canonical text: equal for equal expressions, stable across processes."""
        if self.kind in ("fact", "const"):
            return str(self.value)
        if self.kind in _CALLS:
            return f"{self.kind}({', '.join(a.key() for a in self.args)})"
        return f"({self.args[0].key()} {self.kind} {self.args[1].key()})"

    def facts(self) -> frozenset[str]:
        """The names of the facts that the value depends on."""
        if self._facts is None:
            own = (str(self.value),) if self.kind == "fact" else ()
            self._facts = frozenset(own).union(*(a.facts() for a in self.args))
        return self._facts

    def evaluate(self, facts: Facts) -> int:
        """The value under `facts`.

        Raises:
            SpecError: when a fact is missing, or a divisor is zero.
        """
        if self._function is None:
            self._uses += 1
            if self._uses < _OFTEN:
                return self._walk(facts)
            self._function = compiled(self, {"next_power_of_2": _power_above}, BINARY)
        try:
            return int(self._function(facts))
        except (KeyError, ZeroDivisionError):
            return self._walk(facts)  # this raises an error that says what is wrong

    def _walk(self, facts: Facts) -> int:
        """The value, node by node."""
        if self.kind == "const":
            return int(self.value)
        if self.kind == "fact":
            try:
                return int(facts[str(self.value)])
            except KeyError:
                raise SpecError(
                    f"{self.value!r} is used but not bound", fix=did_you_mean(str(self.value), facts)
                ) from None
        if self.kind == "where":  # only the chosen branch, because the other may divide by zero
            condition, yes, no = self.args
            return (yes if condition._walk(facts) else no)._walk(facts)
        if self.kind == "next_power_of_2":
            return _power_above(self.args[0]._walk(facts))
        left, right = (a._walk(facts) for a in self.args)
        if self.kind in ("//", "%") and right == 0:
            raise SpecError(f"division by zero in {self.key()}")
        return BINARY[self.kind](left, right)

    def cpp(self, name: Callable[[str], str]) -> str:
        """The expression as C++ on int64_t. `name` prints a fact, and `next_power_of_2` must be declared."""
        if self.kind == "const":
            return f"INT64_C({self.value})"
        if self.kind == "fact":
            return name(str(self.value))
        if self.kind == "where":
            return "({} ? {} : {})".format(*(a.cpp(name) for a in self.args))
        if self.kind == "next_power_of_2":
            return f"next_power_of_2({self.args[0].cpp(name)})"
        left, right = (a.cpp(name) for a in self.args)
        if self.kind in ("min", "max"):
            comparison = "<" if self.kind == "min" else ">"
            return f"(({left}) {comparison} ({right}) ? ({left}) : ({right}))"
        return f"({left} {_CPP.get(self.kind, self.kind)} {right})"

    def substitute(self, facts: Facts) -> Expr:
        """The expression with constants in place of the given facts. Parts that are then constant are computed."""
        if self.kind == "fact":
            known = facts.get(str(self.value))
            return self if known is None else Expr("const", value=int(known))
        if self.kind == "const":
            return self
        one = Expr(self.kind, tuple(a.substitute(facts) for a in self.args))
        if self.kind == "where" and one.args[0].kind == "const":
            return one.args[1] if one.args[0].value else one.args[2]
        return Expr("const", value=one.evaluate({})) if all(a.kind == "const" for a in one.args) else one

    def data(self) -> Any:
        """The expression as plain lists, for `Expr.of`."""
        if self.kind in ("fact", "const"):
            return [self.kind, self.value]
        return [self.kind, *(a.data() for a in self.args)]

    @classmethod
    def of(cls, data: Any) -> Expr:
        """The expression for `data`.

        Raises:
            SpecError: when `data` is not that of an expression.
        """
        kind, *rest = data if isinstance(data, (list, tuple)) and data else ("",)
        if (kind, len(rest)) in (("fact", 1), ("const", 1)) and isinstance(rest[0], str if kind == "fact" else int):
            return cls(kind, value=rest[0])
        if len(rest) != {"where": 3, "next_power_of_2": 1}.get(kind, 2 if kind in BINARY else -1):
            raise SpecError(f"{str(data)[:80]!r} is not an expression")
        return cls(kind, tuple(cls.of(a) for a in rest))

    def pinned(self) -> Iterator[tuple[str, int]]:
        """Facts that have one constant value if the expression holds: `fact == constant`, also inside of `and`."""
        if self.kind == "and":
            for arg in self.args:
                yield from arg.pinned()
        elif self.kind == "==" and self.args[0].kind == "fact" and self.args[1].kind == "const":
            yield str(self.args[0].value), int(self.args[1].value)


_CALLS = ("min", "max", "next_power_of_2", "where")


def _power_above(value: int) -> int:
    """The least power of two that is not below `value`. For 0 and below it is 1, where Triton's own gives 0."""
    return 1 << max(value - 1, 0).bit_length()


def _comparable(other: object) -> Any:
    if isinstance(other, (Expr, int, Reflected)):
        return other
    raise SpecError(f"an expression cannot be compared with {other!r}", fix="compare with an integer or expression")


def as_expr(value: ExprLike, where: str = "") -> Expr:
    """Wrap a Python integer as a constant; leave an expression as it is.

    Raises:
        SpecError: when it is neither. `where` begins the message.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        raise SpecError(f"{where or 'an expression'} cannot be the text {value!r}", fix=f'write dims("{value}")')
    try:
        return Expr("const", value=op.index(value))
    except TypeError:
        raise SpecError(
            f"{where or 'an expression'} cannot be {value!r}",
            fix="give an integer or an expression of dims; // and math.ceil round a quotient",
        ) from None


def _binary(kind: str, left: ExprLike, right: ExprLike) -> Expr:
    if isinstance(right, Reflected):
        left_to_it: Any = NotImplemented
        return left_to_it  # type: ignore[no-any-return]
    return Expr(kind, (as_expr(left), as_expr(right)))


def dim(name: str) -> Expr:
    """The extent that a call binds to the symbolic dim `name`."""
    return Expr("fact", value=name)


def dims(names: str) -> tuple[Expr, ...]:
    """Several dims at once: `M, N = dims("M N")`."""
    return tuple(dim(n) for n in names.split())


def stride(tensor: str, axis: int) -> Expr:
    """The stride of a tensor's axis, in elements; the axis counts from 0."""
    return Expr("fact", value=f"stride.{tensor}.{axis}")


def alignment(tensor: str) -> Expr:
    """The largest power of two, at most 64, that divides the tensor's address, in bytes."""
    return Expr("fact", value=f"alignment.{tensor}")


def present(tensor: str) -> Expr:
    """1 when the optional tensor was passed."""
    return Expr("fact", value=f"present.{tensor}")


def attribute(name: str) -> Expr:
    """The index of an attribute's value among its choices."""
    return Expr("fact", value=f"attribute.{name}")


def dtype_index(variable: str) -> Expr:
    """The index of a dtype variable's value among its choices."""
    return Expr("fact", value=f"dtype.{variable}")


def parameter(name: str) -> Expr:
    """The value of a kernel's parameter in a config."""
    return Expr("fact", value=f"parameter.{name}")


def target(name: str) -> Expr:
    """A number that describes the target, such as `vector_bytes`. For `multiprocessors`, see `device`."""
    return device(name) if name == "multiprocessors" else Expr("fact", value=f"target.{name}")


def device(name: str) -> Expr:
    """A number of the device that runs a launch: `multiprocessors`.

    It may be used in what a launch computes: grids and ordinary arguments. Code and dispatch cannot depend on it.
    """
    return Expr("fact", value=f"device.{name}")


def next_power_of_2(value: ExprLike) -> Expr:
    """The least power of two that is not below a value; 1 for 0."""
    return Expr("next_power_of_2", (as_expr(value),))


def where(condition: ExprLike, yes: ExprLike, no: ExprLike) -> Expr:
    """`yes` if the condition is not 0, else `no`. The other one is not evaluated."""
    return Expr("where", (as_expr(condition), as_expr(yes), as_expr(no)))


def minimum(left: ExprLike, right: ExprLike) -> Expr:
    """The lesser of two."""
    return _binary("min", left, right)


def maximum(left: ExprLike, right: ExprLike) -> Expr:
    """The greater of two."""
    return _binary("max", left, right)


def ceildiv(left: ExprLike, right: ExprLike) -> Expr:
    """`left / right` rounded up, for non-negative numbers."""
    return (as_expr(left) + as_expr(right) - 1) // as_expr(right)


def all_of(expressions: tuple[Expr, ...], facts: Facts) -> bool:
    """Whether every expression is non-zero under `facts`."""
    return all(e.evaluate(facts) for e in expressions)
