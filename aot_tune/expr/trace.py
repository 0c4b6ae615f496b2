"""Turns a Python function of call facts, such as a grid or a heuristic, into expressions: it follows each branch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from aot_tune.expr.integer_expressions import Expr, as_expr, deciding, where
from aot_tune.support.errors import SpecError

_MOST = 64


def trace(function: Callable[[], Any], what: str) -> Any:
    """The value of `function`, with expressions in place of what only a call knows.

    If the function decides by an expression (`if`, `min`, `and`), it runs once for each outcome, and the two values
    become one conditional expression. Values are expressions, integers, or tuples of these with equal lengths. Other
    values must not depend on the path.

    Args:
        what: names the function in messages.

    Raises:
        SpecError: when there are more than 64 paths, or values that cannot be joined.
    """
    return _Tracer(function, what).follow(())


class _Tracer:
    def __init__(self, function: Callable[[], Any], what: str) -> None:
        self.function, self.what = function, what
        self.paths = 0

    def follow(self, decisions: tuple[bool, ...]) -> Any:
        """The value on all paths that begin with `decisions`."""
        met: list[Expr] = []
        outcomes: dict[str, bool] = {}
        ranges = _Ranges()

        def decide(condition: Expr) -> bool:
            if not condition.facts():
                return bool(condition.evaluate({}))
            key = condition.key()
            implied = ranges.implied(condition)
            if implied is not None:
                return implied
            if key not in outcomes:
                if len(met) == _MOST:  # so many conditions mean at least as many paths, and a loop may never end
                    raise self._too_many()
                outcomes[key] = decisions[len(met)] if len(met) < len(decisions) else True
                met.append(condition)
                ranges.learn(condition, outcomes[key])
            return outcomes[key]

        token = deciding.set(decide)
        try:
            value = self.function()
        finally:
            deciding.reset(token)
        if len(met) < len(decisions):
            raise SpecError(
                f"{self.what} decides differently when it runs again",
                why="it is run once for each outcome of its conditions, with the same arguments",
                fix="it must keep nothing from one run to the next: no cache, no counter",
            )
        if len(met) == len(decisions):
            for condition in met:
                self._check_bits(condition)
            self._check_bits(value)
            self.paths += 1
            if self.paths > _MOST:
                raise self._too_many()
            return value
        yes, no = self.follow((*decisions, True)), self.follow((*decisions, False))
        return self._join(met[len(decisions)], yes, no)

    def _too_many(self) -> SpecError:
        return SpecError(
            f"{self.what} has more than {_MOST} paths",
            why="its conditions depend on what is known only at a call",
            fix="write it with minimum, maximum, next_power_of_2 and where",
        )

    def _check_bits(self, value: Any) -> None:
        """Raise if `&` or `|` was meant for bits. For expressions they mean `and` and `or`."""
        if isinstance(value, (tuple, list)):
            for part in value:
                self._check_bits(part)
        if not isinstance(value, Expr):
            return
        if value.op in ("and", "or"):
            number = next((a for a in value.args if _is_number(a)), None)
            if number is not None:
                raise SpecError(
                    f"{self.what} has {value.key()}, where {number.key()} is a number",
                    why="`&` and `|` join conditions of a call. They do not work on bits",
                    fix="use // and %: `n // 64 * 64` for `n & ~63`, `n % 16` for `n & 15`",
                )
        for arg in value.args:
            self._check_bits(arg)

    def _join(self, condition: Expr, yes: Any, no: Any) -> Any:
        if isinstance(yes, (tuple, list)) and isinstance(no, (tuple, list)) and len(yes) == len(no):
            return tuple(self._join(condition, a, b) for a, b in zip(yes, no, strict=True))
        if isinstance(yes, (Expr, int)) and isinstance(no, (Expr, int)):
            a, b = as_expr(yes), as_expr(no)
            return yes if a.key() == b.key() else where(condition, a, b)
        if type(yes) is type(no) and yes == no:
            return yes
        raise SpecError(
            f"{self.what} gives {str(yes)[:40]!r} or {str(no)[:40]!r}, depending on {condition.key()}",
            why="only integers may depend on a call",
            fix="map the choice to an integer or a boolean",
        )


class _Ranges:
    """What a path's comparisons with constants say of expressions: after `n <= 64`, `n > 128` is known."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}

    def learn(self, condition: Expr, holds: bool) -> None:
        """Note the outcome of a condition."""
        comparison = _against_constant(condition)
        if comparison is not None:
            name, kind, constant = comparison
            (low, high), (least, most) = self._range(name), _admitted(kind if holds else _OPPOSITE[kind], constant)
            self._known[name] = max(low, least), min(high, most)

    def implied(self, condition: Expr) -> bool | None:
        """The outcome of a condition, if it follows from those before it."""
        comparison = _against_constant(condition)
        if comparison is None:
            return None
        name, kind, constant = comparison
        for outcome, admits in ((True, _OPPOSITE[kind]), (False, kind)):
            if admits == "!=":  # it leaves something unless the range is that one number
                empty = self._range(name) == (constant, constant)
            else:
                (low, high), (least, most) = self._range(name), _admitted(admits, constant)
                empty = max(low, least) > min(high, most)
            if empty:
                return outcome
        return None

    def _range(self, name: str) -> tuple[float, float]:
        return self._known.get(name, (-math.inf, math.inf))


_OPPOSITE = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}


def _against_constant(condition: Expr) -> tuple[str, str, int] | None:
    """An expression's key, the comparison, and the constant that it is compared with."""
    if condition.op not in _OPPOSITE:
        return None
    left, right = condition.args
    if right.op == "const":
        return left.key(), condition.op, int(right.value)
    return (right.key(), _TURNED[condition.op], int(left.value)) if left.op == "const" else None


def _admitted(kind: str, constant: int) -> tuple[float, float]:
    """The least and the largest integer that meet a comparison."""
    low = {"==": constant, ">": constant + 1, ">=": constant}.get(kind, -math.inf)
    return low, {"==": constant, "<": constant - 1, "<=": constant}.get(kind, math.inf)


def _is_number(expr: Expr) -> bool:
    """Whether an expression is not a condition in any call: arithmetic, a dim, a stride."""
    if expr.op == "const":
        return expr.value not in (0, 1)
    if expr.op == "fact":
        return "." not in str(expr.value) or str(expr.value).startswith("stride.")
    return expr.op in ("+", "-", "*", "//", "%", "next_power_of_2")
