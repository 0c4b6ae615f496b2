"""Regimes of an operator's calls, such as one row, few rows and many: each is surveyed and decided by itself."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from aot_tune.expr.integer_expressions import Expr, all_of, as_expr, dim
from aot_tune.spec.operator_fields import OperatorFields
from aot_tune.spec.problem import Problem

Regime = tuple[str, tuple[Expr, ...]]
"""A name, and conditions over the facts of a call."""

OTHER = "other"
"""The regime of calls that meet the conditions of none."""

MOST_REGIMES = 63
"""With that of `OTHER`, a library has a bit for each."""

_WIDER = 2
"""Without declared extents, a dim ranges from half the least extent of the workload to twice the largest."""
_MOST = 4
"""Guards imply at most so many regimes."""
_APART = 4
"""Of two thresholds of a dim that differ by less than this factor, the one of more kernels cuts."""

_SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_OFFSETS = {"<": (0,), "<=": (1,), ">": (1,), ">=": (0,), "==": (0, 1), "!=": (0, 1)}
"""By comparison of a fact with a number: from which values on its result may be another, less that number."""
_LOGIC = {*_OFFSETS, "and", "or", "fact", "const"}


def regimes_of(operator: OperatorFields) -> tuple[Regime, ...]:
    """The regimes in their order. A call is of the first whose conditions hold, else of `OTHER`.

    If the operator declares none, they are implied by its kernels: where `requires` and `worthwhile` compare a dim with
    a number, calls below and above it have other variants. The thresholds that most kernels have count.
    """
    if operator._regimes is None:
        declared = tuple(operator.regimes.items())
        object.__setattr__(operator, "_regimes", declared or _implied(operator))
    return operator._regimes or ()


def regime_of(operator: OperatorFields, facts: Mapping[str, int]) -> str:
    """The name of the regime of a call with these facts."""
    return next((name for name, conditions in regimes_of(operator) if all_of(conditions, facts)), OTHER)


def range_of(operator: OperatorFields, dim: str, problems: Sequence[Problem]) -> tuple[int, int]:
    """The least and the largest extent that callers have for a dim; if it is not declared, judged by some problems."""
    if dim in operator.values:
        values = [as_expr(n) for n in operator.values[dim]]
        needed = {d: range_of(operator, d, problems) for d in frozenset().union(*(e.facts() for e in values))}
        extents = [e.evaluate({d: between[i] for d, between in needed.items()}) for e in values for i in (0, 1)]
        return min(extents), max(extents)
    if dim in operator.ranges:
        return operator.ranges[dim]
    extents = [max(p.dims[dim], 1) for p in problems]
    return max(min(extents) // _WIDER, 1), max(extents) * _WIDER


def extents_of_regime(operator: OperatorFields, name: str, dim: str, between: tuple[int, int]) -> tuple[int, int]:
    """The range of a dim within `between` in a regime, by its conditions on this dim alone; (1, 0) if it is empty."""
    for other, conditions in regimes_of(operator):
        for condition in conditions if other == name or len(conditions) == 1 else ():
            between = _narrowed(condition, dim, between, holds=other == name)
        if other == name:
            break
    return between


def _narrowed(condition: Expr, name: str, between: tuple[int, int], *, holds: bool) -> tuple[int, int]:
    """From the first to the last extent of a range for which a condition holds, or does not, if only a dim decides."""
    if condition.facts() != {name} or not _only_compares(condition):
        return between
    least, most = between
    begins = [least, *sorted({n for _, n in _thresholds(condition) if least < n <= most})]
    pieces = [
        (begin, end - 1)
        for begin, end in zip(begins, [*begins[1:], most + 1], strict=True)
        if begin < end and bool(condition.evaluate({name: begin})) is holds
    ]
    return (pieces[0][0], pieces[-1][1]) if pieces else (1, 0)


def _only_compares(expr: Expr) -> bool:
    return expr.op in _LOGIC and all(map(_only_compares, expr.args))


def _thresholds(expr: Expr) -> Iterator[tuple[str, int]]:
    """The dims or other facts that an expression compares with numbers, each with the first value that differs."""
    for arg in expr.args:
        yield from _thresholds(arg)
    op, args = expr.op, expr.args
    if op in _SWAPPED and args[0].op == "const":
        op, args = _SWAPPED[op], args[::-1]
    if op in _OFFSETS and args[0].op == "fact" and args[1].op == "const":
        yield from ((str(args[0].value), int(args[1].value) + offset) for offset in _OFFSETS[op])


def _implied(operator: OperatorFields) -> tuple[Regime, ...]:
    """Regimes between the thresholds that most kernels have."""
    parts = [list(_parts(name, sorted(begins))) for name, begins in _cuts(operator).items()]
    products = itertools.product(*parts) if parts else ()
    return tuple((", ".join(text for text, _ in each), tuple(c for _, c in each)) for each in products)


def _parts(name: str, begins: Sequence[int]) -> Iterator[tuple[str, Expr]]:
    """A text and a condition for the extents below each begin that are not below another, and for all others."""
    for least, above in itertools.pairwise((1, *begins)):
        last = above - 1
        one = least == last
        yield f"{name} = {last}" if one else f"{name} <= {last}", dim(name) == last if one else dim(name) <= last
    yield f"{name} >= {begins[-1]}", dim(name) >= begins[-1]


def _cuts(operator: OperatorFields) -> dict[str, list[int]]:
    """The dims that thresholds cut, and the first extents above these: of most kernels first, as many as count."""
    problems = [p for family in operator._workloads.values() for p in family]
    between = {d: range_of(operator, d, problems) for d in operator.dims}
    kernels = (k for k in operator.kernels if not (k.generic or k.fills_in))
    stated = Counter(cut for k in kernels for cut in {c for e in (*k.requires, *k.worthwhile) for c in _thresholds(e)})
    inside = [(d, n) for d, n in stated if d in between and between[d][0] < n <= between[d][1]]
    cuts: dict[str, list[int]] = {}
    for d, n in sorted(inside, key=lambda cut: (-stated[cut], operator.dims.index(cut[0]), cut[1])):
        begins = [*cuts.get(d, ()), n]
        number = math.prod(1 + len(b) for b in {**cuts, d: begins}.values())
        if number <= _MOST and all(max(n, m) >= _APART * min(n, m) for m in begins[:-1]):
            cuts[d] = begins
    return {d: cuts[d] for d in operator.dims if d in cuts}
