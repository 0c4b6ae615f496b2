"""What else expressions share with Python's integers, for grids and heuristics.

All of it becomes sums, products and quotients of non-negative numbers, where Python and C++ agree. For example, `-(-n
// 64)` and `math.ceil(n / 64)` become the same quotient.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NoReturn

from aot_tune.support.errors import SpecError

__all__ = ["Arithmetic", "Power", "Ratio", "Reflected", "Root"]


class Reflected:
    """An operand of another kind. Expressions leave operations with it to that operand."""

    __slots__ = ()


class Arithmetic:
    """The operations of `Expr` that are made of its other operations."""

    __slots__ = ()

    def __neg__(self: Any) -> Any:
        negated = self.negated()
        return 0 - self if negated is None else negated

    def __pos__(self: Any) -> Any:
        return self

    __ceil__ = __floor__ = __pos__

    def __int__(self) -> NoReturn:
        raise _no_number(self)

    def __truediv__(self: Any, other: Any) -> Any:
        return Ratio(self, 1) / other

    def __rtruediv__(self: Any, other: Any) -> Any:
        return Ratio(other, 1) / self

    def __pow__(self: Any, power: Any) -> Any:
        if power in (0.5, -0.5):
            return Root(Ratio(self, 1) if power > 0 else Ratio(1, self))
        return self * self if power == 2 else NotImplemented

    def __lshift__(self: Any, bits: Any) -> Any:
        return self * (1 << bits) if isinstance(bits, (int, Power)) else NotImplemented

    def __rshift__(self: Any, bits: Any) -> Any:
        return self // (1 << bits) if isinstance(bits, (int, Power)) else NotImplemented

    def bit_length(self: Any) -> Power:
        """For `1 << n.bit_length()`: the exponent of the least power of two above a non-negative number."""
        return Power(type(self)("next_power_of_2", (self + 1,)))

    def negated(self: Any) -> Any:
        """What was negated, if this was made by `-`; else None."""
        first, second = self.args if self.kind == "-" else (None, None)
        return second if first is not None and (first.kind, first.value) == ("const", 0) else None

    def rounded_up(self: Any, divisor: Any) -> Any:
        """For `-n // divisor`: n / divisor, rounded up. None if this is not `-n`, or the divisor is not a size."""
        negated = self.negated()
        return None if negated is None or not _is_size(divisor) else (negated + divisor - 1) // divisor


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

    def __eq__(self, other: object) -> Any:
        return self._compared(other, operator.eq)

    def __ne__(self, other: object) -> Any:
        return self._compared(other, operator.ne)

    def __lt__(self, other: Any) -> Any:
        return self._compared(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._compared(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._compared(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._compared(other, operator.ge)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"({self._above!r} / {self._below!r})"

    def _joined(self, other: Any, join: Callable[[Any, Any], Any]) -> Any:
        parts = _parts(other)
        if parts is None:
            return NotImplemented
        return Ratio(join(*self._over_one(parts)), _times(self._below, parts[1]))

    def _compared(self, other: Any, compare: Callable[[Any, Any], Any]) -> Any:
        parts = _parts(other)
        return NotImplemented if parts is None else compare(*self._over_one(parts))

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
    if isinstance(value, Arithmetic):
        found: Any = value
        return not any(f.startswith("stride.") for f in found.facts()) and (found.kind != "const" or found.value > 0)
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
        return Fraction(value).as_integer_ratio()
    return (value, 1) if isinstance(value, (int, Arithmetic)) else None
