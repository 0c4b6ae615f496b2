"""What a formula gives in float64 and how far off float32 may be: a second reading, apart from the project's.

Each float has a bound of its error, which grows with every operation by a few roundings of float32. Where a condition,
a step or an overflow lies within the bound, nothing is promised: `unsure`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from formulas import MODES, SIZES, FormulaCall

from aot_tune.spec.formula import Formula

UNIT = 2.0**-23
ROUNDINGS = 8
"""Units in the last place that each function may be off: those of GPUs are off by a few."""
TINY, HUGE = 1e-36, 3e38


@dataclass
class Bounded:
    """Values with bounds of their errors; integers and conditions have none, but may be unsure."""

    value: Any
    error: Any
    unsure: Any

    @classmethod
    def exact(cls, value: Any) -> Bounded:
        """Values as they are."""
        return cls(np.asarray(value), np.zeros(np.shape(value)), np.zeros(np.shape(value), bool))


def rounded(value: Any, error: Any, unsure: Any) -> Bounded:
    """A result, which float32 rounds, makes infinite, or makes 0."""
    finite = np.isfinite(value)
    error = np.where(finite, error + ROUNDINGS * UNIT * np.abs(value) + TINY, 0.0)
    unsure = unsure | (finite & ~(np.abs(value) + error < HUGE)) | (~finite & ~np.isnan(value) & ~np.isinf(value))
    return Bounded(value, np.where(np.isfinite(error), error, np.inf), unsure)


def erf(x: Any) -> Any:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def limited(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """0 at -inf."""
    return lambda x: np.where(x == -np.inf, 0.0, f(x))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "erf": erf,
    "sigmoid": sigmoid,
    "relu": lambda x: np.where(x < 0, 0.0, x),
    "gelu": limited(lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2)))),
    "gelu_tanh": limited(lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": limited(lambda x: x * sigmoid(x)),
    "abs": np.abs,
}
ABSOLUTE = {"gelu": 1e-6, "gelu_tanh": 1e-6, "silu": 1e-7, "erf": 3e-7, "tanh": 2e-7, "sigmoid": 1e-7, "log": 1e-6}
"""What functions that subtract inside are off by at a value of 1."""


def function(name: str, x: Bounded) -> Bounded:
    f, v = FUNCTIONS[name], x.value
    truth, low, high = f(v), f(v - x.error), f(v + x.error)
    spread = np.fmax(np.abs(high - truth), np.abs(low - truth))
    lost = (np.isnan(low) | np.isnan(high) | np.isinf(low) | np.isinf(high)) & (x.error > 0) & np.isfinite(v)
    lost = lost | ((name == "rsqrt") & (v == 0))
    scale = np.maximum(1.0, np.where(np.isfinite(v), np.abs(v), 1.0))
    error = np.where(np.isnan(spread), 0.0, spread) + ABSOLUTE.get(name, 0.0) * scale
    return rounded(truth, error, x.unsure | lost)


def step(f: Callable[[Any], Any], x: Bounded) -> Bounded:
    """A function with steps: rounding to a narrow dtype, or to whole numbers."""
    truth = f(x.value)
    unsure = x.unsure | ((f(x.value - x.error) != f(x.value + x.error)) & (x.error > 0))
    return Bounded(truth, np.where(unsure, np.inf, 0.0), unsure)


def narrow(name: str) -> Callable[[Any], Any]:
    if name == "f16":
        return lambda x: x.astype(np.float16).astype(np.float64)

    def bf16(x: Any) -> Any:
        bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        return np.where(np.isnan(x), x, nearest.astype(np.float64))

    return bf16


def whole(x: Any) -> Any:
    return np.trunc(np.clip(np.where(np.isnan(x), 0.0, x), -(2.0**31), 2147483520.0)).astype(np.int64)


def binary(op: str, a: Bounded, b: Bounded) -> Bounded:
    x, y, unsure = a.value, b.value, a.unsure | b.unsure
    if op in ("add", "sub"):
        return rounded(x + y if op == "add" else x - y, a.error + b.error, unsure)
    if op == "mul":
        cross = np.abs(x) * b.error + np.abs(y) * a.error + a.error * b.error
        return rounded(x * y, np.where(np.isnan(cross), 0.0, cross), unsure | (np.isnan(cross) & np.isfinite(x * y)))
    if op == "div":
        truth, least = x / y, np.abs(y) - b.error
        error = (a.error + np.abs(truth) * b.error) / np.where(least > 0, least, np.nan)
        small = np.abs(y) < 1e-30  # which may count as 0, and whose sign nobody promises then
        lost = ((b.error > 0) & ~(least > 0)) | small | ((np.abs(x) < 1e-30) & (x != 0) & np.isinf(truth))
        return rounded(truth, np.where(np.isnan(error), 0.0, error), unsure | lost)
    chosen = np.minimum(x, y) if op == "min" else np.maximum(x, y)
    return Bounded(chosen, np.maximum(a.error, b.error), unsure)


def compare(op: str, a: Bounded, b: Bounded) -> Bounded:
    made = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater}
    truth = (made | {"ge": np.greater_equal})[op](a.value, b.value)
    near = np.abs(a.value.astype(np.float64) - b.value.astype(np.float64)) <= a.error + b.error
    same = (a.value == b.value) & (a.error + b.error == 0)
    unsure = a.unsure | b.unsure | (near & ~same & (a.error + b.error > 0))
    return Bounded(truth, np.zeros(truth.shape), unsure)


def whole_quotient(op: str, a: Any, b: Any) -> Any:
    """Rounded down, as Python does; 0 where the divisor is 0."""
    found = np.zeros(np.broadcast_shapes(a.shape, b.shape), np.int64)
    for at in np.ndindex(found.shape):
        x, y = int(np.broadcast_to(a, found.shape)[at]), int(np.broadcast_to(b, found.shape)[at])
        found[at] = 0 if y == 0 else x // y if op == "floordiv" else x % y
    return found


def lookup(array: Any, kind: str, places: list[Bounded]) -> Bounded:
    """Elements at places; outside of the array they are 0."""
    shape = np.broadcast_shapes(*(p.value.shape for p in places))
    found = np.zeros(shape, np.float64 if kind == "f" else array.dtype)
    unsure = np.zeros(shape, bool)
    for at in np.ndindex(shape):
        index = tuple(int(np.broadcast_to(p.value, shape)[at]) for p in places)
        unsure[at] = any(np.broadcast_to(p.unsure, shape)[at] for p in places)
        if all(0 <= i < n for i, n in zip(index, array.shape, strict=True)):
            found[at] = array[index]
    return Bounded(found.astype(np.int64) if kind == "i" else found, np.zeros(shape), unsure)


class Reading:
    """The values of a formula's steps on a call."""

    def __init__(self, call: FormulaCall) -> None:
        self.call = call

    def __call__(self, formula: Formula) -> Bounded:
        found: list[Bounded] = []
        with np.errstate(all="ignore"):
            for one in formula.steps():
                found.append(self.of(one.op, one.value, [found[a] for a in one.args]))
        return found[-1]

    def of(self, op: str, value: Any, args: list[Bounded]) -> Bounded:
        if not args:
            return self.leaf(op, value)
        if op == "element":
            array = self.call.arrays.get(value)
            return Bounded.exact(0.0) if array is None else lookup(array, array.dtype.kind, args)
        if op == "not":
            return Bounded(~args[0].value, args[0].error, args[0].unsure)
        if op in ("and", "or"):
            join = np.logical_and if op == "and" else np.logical_or
            return Bounded(join(args[0].value, args[1].value), 0.0, args[0].unsure | args[1].unsure)
        if op == "where":
            c, a, b = args
            unsure = c.unsure | np.where(c.value, a.unsure, b.unsure)
            return Bounded(np.where(c.value, a.value, b.value), np.where(c.value, a.error, b.error), unsure)
        if op in ("eq", "ne", "lt", "le", "gt", "ge"):
            return compare(op, args[0], args[1])
        if all(a.value.dtype.kind == "i" for a in args) and op != "cast" and op not in FUNCTIONS.keys() - {"abs"}:
            return self.integer(op, args)
        args = [Bounded(a.value.astype(np.float64), a.error, a.unsure) for a in args]
        if op == "cast":
            return self.cast(str(value), args[0])
        if op == "neg":
            return Bounded(-args[0].value, args[0].error, args[0].unsure)
        if op == "floor":
            return step(np.floor, args[0])
        return function(op, args[0]) if op in FUNCTIONS else binary(op, args[0], args[1])

    def integer(self, op: str, args: list[Bounded]) -> Bounded:
        unsure = args[0].unsure
        if len(args) == 1:
            return Bounded(-args[0].value if op == "neg" else np.abs(args[0].value), 0.0, unsure)
        a, b, unsure = args[0].value, args[1].value, unsure | args[1].unsure
        simple = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
        value = simple[op](a, b) if op in simple else whole_quotient(op, a, b)
        return Bounded(value, np.zeros(value.shape), unsure)

    def cast(self, name: str, x: Bounded) -> Bounded:
        if name == "f32":
            return x
        return step(whole if name == "i32" else narrow(name), x)

    def leaf(self, op: str, value: Any) -> Bounded:
        call = self.call
        along = {"i": np.arange(SIZES["M"])[:, None], "j": np.arange(SIZES["N"])[None, :]}
        leaves: dict[str, Callable[[], Any]] = {
            "value": lambda: call.arrays["x"].astype(np.float64),
            "constant": lambda: np.asarray(value),
            "index": lambda: along[value],
            "axis": lambda: along[value],
            "dim": lambda: np.asarray(SIZES[value]),
            "scalar": lambda: np.asarray(call.scalars[value]),
            "attribute": lambda: np.asarray(MODES.index(call.mode)),
            "choice": lambda: np.asarray(value == f"mode={call.mode}"),
            "present": lambda: np.asarray(value in call.arrays),
        }
        found = Bounded.exact(leaves[op]())
        if op == "constant" and isinstance(value, float):
            found.error = UNIT * np.abs(found.value)
        return found


def off(got: Any, formula: Formula, call: FormulaCall) -> str:
    """What is wrong with a formula's results; empty where nothing is."""
    wanted = Reading(call)(formula)
    value, error = np.broadcast_to(wanted.value, got.shape), np.broadcast_to(wanted.error, got.shape)
    with np.errstate(all="ignore"):
        near = np.abs(got - value) <= 4 * error
    right = near | (got == value) | (np.isnan(got) & np.isnan(value)) | np.broadcast_to(wanted.unsure, got.shape)
    if right.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~right)[0])
    return f"{formula!r} at {at}: got {got[at]!r}, want {value[at]!r} within {4 * error[at]:g}"
