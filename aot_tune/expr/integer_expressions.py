"""Integer expressions over a call's facts, evaluated in Python and printed as C++.

They state dims, guards, FLOP counts and constraints only once, and no text is evaluated. Division and modulo are those
of non-negative integers, where Python and C++ agree. For grids and heuristics, what else Python's integers do becomes
such sums, products and quotients: `-(-n // 64)` and `math.ceil(n / 64)` are the same quotient.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NoReturn, Union

from aot_tune.expr.nodes import OPERATORS, ExprNode, printed
from aot_tune.support.errors import SpecError, did_you_mean

Facts = Mapping[str, int]
"""What is known of a call, a config or a target: name of a fact to its value. Booleans are 0 and 1."""

ExprLike = Union["Expr", int, bool]
Function = Callable[[Any], Any]
"""Of facts, or of columns of facts, by name."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **OPERATORS,
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
    "min": min,
    "max": max,
    "next_power_of_2": lambda a: 1 << max(int(a) - 1, 0).bit_length(),  # 1 for 0 and below, where Triton's own gives 0
}
"""Operations as functions. `where` is none, because it evaluates only the chosen operand."""

_KEYS = {
    "min": "min({}, {})",
    "max": "max({}, {})",
    "next_power_of_2": "next_power_of_2({})",
    "where": "where({}, {}, {})",
}
_CPP = {
    "//": "({} / {})",
    "and": "({} && {})",
    "or": "({} || {})",
    "min": "(({0}) < ({1}) ? ({0}) : ({1}))",
    "max": "(({0}) > ({1}) ? ({0}) : ({1}))",
    "where": "({} ? {} : {})",
    "next_power_of_2": "next_power_of_2({})",
}
"""Operations as C++, where it differs from Python."""

EXTENT = ".extent"
"""The fact for an axis' extent, in the expression that a dim is solved to. No dim has such a name."""

_CHECKED = {
    "+": "aot_tune::plus({}, {}, &undefined_)",
    "-": "aot_tune::minus({}, {}, &undefined_)",
    "*": "aot_tune::times({}, {}, &undefined_)",
    "//": "aot_tune::quotient({}, {}, &undefined_)",
    "%": "aot_tune::remainder({}, {}, &undefined_)",
}
"""The same as functions of runtime/arithmetic.h, which are defined whatever a caller passes."""

deciding: ContextVar[Callable[[Expr], bool] | None] = ContextVar("deciding", default=None)
"""Receives an expression that is used as a Python condition while a function is traced; see `expr.trace`."""


class Expr(ExprNode):
    """A node: a fact (`op` "fact"), a constant ("const"), or an operation on other nodes."""

    __slots__ = ()
    args: tuple[Expr, ...]

    @classmethod
    def wrapped(cls, value: Any) -> Expr:
        """An integer as a constant. An expression stays as it is."""
        return as_expr(value)

    # -- operators of Python that are made of others -------------------------------------------------------------

    def __neg__(self) -> Expr:
        negated = self._negated()
        return 0 - self if negated is None else negated

    def __invert__(self) -> Expr:
        return self.made("==", self, 0)

    def __floordiv__(self, other: Any) -> Expr:
        above = self._rounded_up(other)
        return super().__floordiv__(other) if above is None else -above

    def __mod__(self, other: Any) -> Expr:
        above = self._rounded_up(other)
        return super().__mod__(other) if above is None else above * other + self

    def __truediv__(self, other: Any) -> Any:
        return Ratio(self, 1) / other

    def __rtruediv__(self, other: Any) -> Any:
        return Ratio(other, 1) / self

    def __pow__(self, power: Any) -> Any:
        if power in (0.5, -0.5):
            return Root(Ratio(self, 1) if power > 0 else Ratio(1, self))
        return self * self if power == 2 else NotImplemented

    def __lshift__(self, bits: Any) -> Any:
        return self * (1 << bits) if isinstance(bits, (int, Power)) else NotImplemented

    def __rshift__(self, bits: Any) -> Any:
        return self // (1 << bits) if isinstance(bits, (int, Power)) else NotImplemented

    def bit_length(self) -> Power:
        """For `1 << n.bit_length()`: the exponent of the least power of two above a non-negative number."""
        return Power(next_power_of_2(self + 1))

    def __int__(self) -> NoReturn:
        raise _no_number(self)

    def __ceil__(self) -> Expr:
        return self

    __floor__ = __ceil__

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return super().__eq__(_comparable(other))

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return super().__ne__(_comparable(other))

    def _negated(self) -> Expr | None:
        """What was negated, if this was made by `-`."""
        first, second = self.args if self.op == "-" else (None, None)
        return second if first is not None and (first.op, first.value) == ("const", 0) else None

    def _rounded_up(self, divisor: Any) -> Any:
        """For `-n // divisor`: n / divisor, rounded up. None if this is not `-n`, or the divisor is not a size."""
        negated = self._negated()
        return None if negated is None or not _is_size(divisor) else (negated + divisor - 1) // divisor

    # -- what Python would have to know --------------------------------------------------------------------------

    def __hash__(self) -> int:
        if deciding.get() is not None and self.facts():
            raise SpecError(
                f"the expression {self.key()} was looked up in a set, a dict or a cache",
                why="its value is known only for a concrete call",
                fix="compare it with each value, as in `n in (1, 2)`",
            )
        return super().__hash__()

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

    # -- what is made of it --------------------------------------------------------------------------------------

    def key(self) -> str:
        """A canonical text: equal for equal expressions, stable across processes."""
        key: str | None = self.memo.get("key")
        if key is None:
            key = self.memo["key"] = printed(self, lambda leaf: str(leaf.value), _KEYS)
        return key

    def facts(self) -> frozenset[str]:
        """The names of the facts that the value depends on."""
        facts: frozenset[str] | None = self.memo.get("facts")
        if facts is None:
            own = (str(self.value),) if self.op == "fact" else ()
            facts = self.memo["facts"] = frozenset(own).union(*(a.facts() for a in self.args))
        return facts

    def evaluate(self, facts: Facts) -> int:
        """The value under `facts`.

        Raises:
            SpecError: when a fact is missing, or a divisor is zero.
        """
        function: Function | None = self.memo.get("function")
        if function is None:
            function = self.memo["function"] = python_function(self)
        try:
            return int(function(facts))
        except KeyError as missing:
            name = str(missing.args[0])
            raise SpecError(f"{name!r} is used but not bound", fix=did_you_mean(name, facts)) from None
        except ZeroDivisionError:
            needed = self.args
            if self.op == "where":
                needed = (needed[1] if needed[0].evaluate(facts) else needed[2],)
            for arg in needed:
                arg.evaluate(facts)  # the innermost one that divides by zero raises
            raise SpecError(f"division by zero in {self.key()}") from None

    def cpp(self, name: Callable[[str], str], texts: Mapping[str, str] | None = None) -> str:
        """The expression as C++ on int64_t. `name` prints a fact. What `texts` call must be declared there."""
        texts = _CPP if texts is None else texts
        return printed(self, lambda leaf: f"INT64_C({leaf.value})" if leaf.op == "const" else name(leaf.value), texts)

    def substitute(self, facts: Facts) -> Expr:
        """The expression with constants in place of the given facts. Parts that are then constant are computed."""
        if self.op == "fact":
            value = facts.get(str(self.value))
            return self if value is None else Expr("const", value=int(value))
        if self.op == "const":
            return self
        args = tuple(a.substitute(facts) for a in self.args)
        if self.op == "where" and args[0].op == "const":
            return args[1] if args[0].value else args[2]
        replaced = Expr(self.op, args)
        return Expr("const", value=replaced.evaluate({})) if all(a.op == "const" for a in args) else replaced

    def data(self) -> Any:
        """The expression as plain lists, for `Expr.of`."""
        return [self.op, *([a.data() for a in self.args] or [self.value])]

    @classmethod
    def of(cls, data: Any) -> Expr:
        """The expression for `data`.

        Raises:
            SpecError: when `data` is not that of an expression.
        """
        op, *rest = data if isinstance(data, (list, tuple)) and data else ("",)
        if (op, len(rest)) in (("fact", 1), ("const", 1)) and isinstance(rest[0], str if op == "fact" else int):
            return cls(op, value=rest[0])
        if len(rest) != {"where": 3, "next_power_of_2": 1}.get(op, 2 if op in FUNCTIONS and op != "/" else -1):
            raise SpecError(f"{str(data)[:80]!r} is not an expression")
        return cls(op, tuple(cls.of(a) for a in rest))

    def pinned(self) -> Iterator[tuple[str, int]]:
        """Facts that have one constant value if the expression holds: `fact == constant`, also inside of `and`."""
        if self.op == "and":
            for arg in self.args:
                yield from arg.pinned()
        elif self.op == "==" and self.args[0].op == "fact" and self.args[1].op == "const":
            yield str(self.args[0].value), int(self.args[1].value)


def is_plain(expr: Expr) -> bool:
    """Whether an expression has a value in every call: nothing in it divides or can overflow."""
    return expr.op not in _CHECKED and all(map(is_plain, expr.args))


def checked_cpp(expr: Expr, name: Callable[[str], str]) -> str:
    """The expression as C++ that sets the bool `undefined_` if there is no value. `name` prints a fact."""
    return expr.cpp(name, {**_CPP, **_CHECKED})


def python_function(expr: Expr, functions: Mapping[str, Callable[..., Any]] = FUNCTIONS) -> Function:
    """A function of facts that computes the expression. Each node becomes a closure.

    It raises KeyError if a fact is missing, and ZeroDivisionError if a divisor is zero.
    """
    if expr.op == "const":
        constant = expr.value
        return lambda _: constant
    if expr.op == "fact":
        name = str(expr.value)
        return lambda facts: facts[name]
    parts = [python_function(a, functions) for a in expr.args]
    if expr.op == "where" and "where" not in functions:
        condition, yes, no = parts
        return lambda facts: yes(facts) if condition(facts) else no(facts)
    join = functions[expr.op]
    if len(parts) == 2:
        return _of_two(join, expr.args, parts)
    return lambda facts: join(*[part(facts) for part in parts])


def _of_two(join: Callable[..., Any], args: tuple[Expr, ...], parts: list[Function]) -> Function:
    """A closure that reads facts and constants without a call, because they are the most frequent operands."""
    (left, right), ops = parts, (args[0].op, args[1].op)
    first, second = args[0].value, args[1].value
    if ops == ("fact", "const"):
        return lambda facts: join(facts[first], second)
    if ops == ("fact", "fact"):
        return lambda facts: join(facts[first], facts[second])
    if ops[1] == "const":
        return lambda facts: join(left(facts), second)
    return lambda facts: join(left(facts), right(facts))


class Power:
    """An exponent of two: 2 to it is `power`, shifted by `shift` bits."""

    def __init__(self, power: Any, shift: int = 0) -> None:
        self._power, self._shift = power, shift

    def __add__(self, other: Any) -> Power:
        return Power(self._power, self._shift + operator.index(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Power:
        return self + -operator.index(other)

    def __rlshift__(self, other: Any) -> Any:
        shift = self._shift
        return other * self._power * (1 << shift) if shift > 0 else other * self._power // (1 << -shift)

    def __rpow__(self, other: Any) -> Any:
        return 1 << self if other == 2 else NotImplemented

    def __repr__(self) -> str:
        return f"the exponent of {self._power!r}" + (f" {self._shift:+d}" if self._shift else "")


def _comparison(compare: Callable[[Any, Any], Any]) -> Callable[[Ratio, Any], Any]:
    def apply(ratio: Ratio, other: Any) -> Any:
        parts = _parts(other)
        return NotImplemented if parts is None else compare(*ratio._over_one(parts))

    return apply


class Ratio:
    """An exact quotient. It is compared exactly; `math.ceil`, `math.floor` and `//` round it.

    The divisor must be positive, as extents and blocks are.
    """

    def __init__(self, above: Any, below: Any) -> None:
        self._above, self._below = above, below

    @property
    def parts(self) -> tuple[Any, Any]:
        """Dividend and divisor."""
        return self._above, self._below

    def __mul__(self, other: Any) -> Any:
        parts = _parts(other)
        return NotImplemented if parts is None else Ratio(_times(self._above, parts[0]), _times(self._below, parts[1]))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        parts = _parts(other)
        return NotImplemented if parts is None else Ratio(_times(self._above, parts[1]), _times(self._below, parts[0]))

    def __rtruediv__(self, other: Any) -> Any:
        parts = _parts(other)
        return NotImplemented if parts is None else Ratio(_times(parts[0], self._below), _times(parts[1], self._above))

    def __add__(self, other: Any) -> Any:
        return self._joined(other, operator.add)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._joined(other, operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return Ratio(0, 1) - self + other

    def __floordiv__(self, other: Any) -> Any:
        return (self / other).__floor__()

    def __floor__(self) -> Any:
        return self._above // self._below

    def __int__(self) -> NoReturn:
        raise _no_number(self)

    def __ceil__(self) -> Any:
        return (self._above + self._below - 1) // self._below

    def __bool__(self) -> bool:
        return bool(self._above != 0)

    __eq__ = _comparison(operator.eq)
    __ne__ = _comparison(operator.ne)
    __lt__ = _comparison(operator.lt)
    __le__ = _comparison(operator.le)
    __gt__ = _comparison(operator.gt)
    __ge__ = _comparison(operator.ge)
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"({self._above!r} / {self._below!r})"

    def _joined(self, other: Any, join: Callable[[Any, Any], Any]) -> Any:
        parts = _parts(other)
        if parts is None:
            return NotImplemented
        return Ratio(join(*self._over_one(parts)), _times(self._below, parts[1]))

    def _over_one(self, parts: tuple[Any, Any]) -> tuple[Any, Any]:
        """The dividends of this and another quotient over their common divisor."""
        return _times(self._above, parts[1]), _times(parts[0], self._below)


class Root:
    """The square root of a quotient. A kernel can be passed one: `D ** -0.5`."""

    def __init__(self, of: Ratio) -> None:
        self.of = of

    def __rtruediv__(self, other: Any) -> Any:
        return Root(1 / self.of) if other == 1 else NotImplemented

    def __repr__(self) -> str:
        return f"{self.of!r} ** 0.5"


def _no_number(value: object) -> SpecError:
    return SpecError(
        f"int({value!r}) is not a number here",
        why="its value is known only for a concrete call",
        fix="leave int() out, and round quotients by // or math.ceil",
    )


def _is_size(value: Any) -> bool:
    """Whether a number is positive in every call in which it divides. A stride is not: it may be negative."""
    if isinstance(value, Expr):
        return not any(f.startswith("stride.") for f in value.facts()) and (value.op != "const" or value.value > 0)
    return isinstance(value, int) and value > 0


def _times(left: Any, right: Any) -> Any:
    if isinstance(left, int) and left == 1:
        return right
    return left if isinstance(right, int) and right == 1 else left * right


def _parts(value: Any) -> tuple[Any, Any] | None:
    """Dividend and divisor of a number; None for something else."""
    if isinstance(value, Ratio):
        return value._above, value._below
    if isinstance(value, float):
        return value.as_integer_ratio()
    return (value, 1) if isinstance(value, (int, Expr)) else None


def _comparable(other: object) -> Any:
    if isinstance(other, (ExprNode, int)):
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
        return Expr("const", value=operator.index(value))
    except TypeError:
        raise SpecError(
            f"{where or 'an expression'} cannot be {value!r}",
            fix="give an integer or an expression of dims; // and math.ceil round a quotient",
        ) from None


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
    return Expr.made("next_power_of_2", value)


def where(condition: ExprLike, yes: ExprLike, no: ExprLike) -> Expr:
    """`yes` if the condition is not 0, else `no`. The other one is not evaluated."""
    return Expr.made("where", condition, yes, no)


def minimum(left: ExprLike, right: ExprLike) -> Expr:
    """The lesser of two."""
    return Expr.made("min", left, right)


def maximum(left: ExprLike, right: ExprLike) -> Expr:
    """The greater of two."""
    return Expr.made("max", left, right)


def ceildiv(left: ExprLike, right: ExprLike) -> Expr:
    """`left / right` rounded up, for non-negative numbers."""
    return (as_expr(left) + as_expr(right) - 1) // as_expr(right)


def all_of(expressions: tuple[Expr, ...], facts: Facts) -> bool:
    """Whether every expression is non-zero under `facts`."""
    return all(e.evaluate(facts) for e in expressions)
