"""Functions of formulas composed of other functions, for backends that do not have them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from aot_tune.spec.typed_formulas import BOOLEAN, Builder, Program, pruned

__all__ = ["COMPOSED", "expanded"]

_LOWEST = -3.4028234663852886e38


def _chosen(b: Builder, x: int, comparison: str, bound: float, yes: int, no: int) -> int:
    return b.of("where", b.of(comparison, x, b.number(bound), kind=BOOLEAN), yes, no)


def _sigmoid(b: Builder, x: int) -> int:
    small = b.of("exp", b.of("neg", b.of("abs", x)))
    below = b.of("add", b.number(1.0), small)
    return _chosen(b, x, "ge", 0.0, b.of("div", b.number(1.0), below), b.of("div", small, below))


def _limited(b: Builder, x: int, factor: int) -> int:
    """A product of a factor that is 0 and one that is -inf is 0, which is its limit there."""
    return _chosen(b, x, "lt", _LOWEST, b.number(0.0), b.of("mul", x, factor))


def _silu(b: Builder, x: int) -> int:
    return _limited(b, x, _sigmoid(b, x))


def _gelu(b: Builder, x: int) -> int:
    error = b.of("erf", b.of("mul", x, b.number(math.sqrt(0.5))))
    return _limited(b, x, b.of("mul", b.number(0.5), b.of("add", b.number(1.0), error)))


def _gelu_tanh(b: Builder, x: int) -> int:
    """0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    cube = b.of("mul", b.of("mul", b.of("mul", x, x), x), b.number(0.044715))
    twice = b.of("mul", b.number(2 * math.sqrt(2 / math.pi)), b.of("add", x, cube))
    return _limited(b, x, _sigmoid(b, twice))


def _tanh(b: Builder, x: int) -> int:
    """An odd polynomial up to 0.6, as in common/math.h.j2; beyond that 1 - 2 / (e^2|x| + 1)."""
    square, size = b.of("mul", x, x), b.of("abs", x)
    p = b.number(-5.895158060e-3)
    for coefficient in (2.079597165e-2, -5.378383027e-2, 1.333192413e-1, -3.333329800e-1):
        p = b.of("add", b.of("mul", p, square), b.number(coefficient))
    small = b.of("add", b.of("mul", b.of("mul", p, square), x), x)
    above = b.of("add", b.of("exp", b.of("add", size, size)), b.number(1.0))
    large = b.of("sub", b.number(1.0), b.of("div", b.number(2.0), above))
    signed = _chosen(b, x, "lt", 0.0, b.of("neg", large), large)
    return _chosen(b, size, "lt", 0.6, small, signed)


COMPOSED: dict[str, Callable[[Builder, int], int]] = {
    "sigmoid": _sigmoid,
    "relu": lambda b, x: _chosen(b, x, "lt", 0.0, b.number(0.0), x),
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "tanh": _tanh,
    "rsqrt": lambda b, x: b.of("div", b.number(1.0), b.of("sqrt", x)),
}


def expanded(program: Program, native: Collection[str]) -> Program:
    """The program with these functions composed of others, unless they are `native`."""
    builder, numbers = Builder(), list[int]()
    for one in program.instructions:
        args = tuple(numbers[a] for a in one.args)
        if one.op in COMPOSED and one.op not in native:
            numbers.append(COMPOSED[one.op](builder, *args))
        else:
            numbers.append(builder.add(one._replace(args=args)))
    return pruned(builder, numbers[-1], program.indices)
