"""The shapes of a survey: problems that nobody tuned, drawn over what an operator's callers may have."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import msgspec

from aot_tune.expr.integer_expressions import all_of
from aot_tune.spec.calls import extents_exist
from aot_tune.spec.operator import Operator
from aot_tune.spec.problem import Problem
from aot_tune.spec.regimes import range_of

__all__ = ["Kind", "kind_of", "survey_shapes"]

Kind = tuple[tuple[str, int], ...]
"""Facts, with their values, of calls that have their own variants."""

_LARGER = 2.0
"""No shape has more FLOPs or bytes than twice the most in the workload."""
_TRIES = 60
_WHOLE = ((0.6, 64), (0.2, 8), (0.1, 256))
"""Shares of extents that are rounded to multiples, if most of the workload's extents are multiples of 8."""
_STEPS = 4
"""No extent is rounded to a multiple of more than a quarter of it, so small numbers of rows may have any value."""


def survey_shapes(operator: Operator, family: str, count: int) -> dict[Kind, tuple[Problem, ...]]:
    """For each kind of the workload's problems, `count` other problems, or fewer if there are no more. Always the same.

    Half of them are problems of the workload with some extents drawn again. Half have all extents drawn. All else, such
    as optional tensors and attributes, is from a problem of the workload; heavier problems are used more often.
    """
    kinds: dict[Kind, list[Problem]] = {}
    for problem in operator.workload_for(family):
        kinds.setdefault(kind_of(operator, operator.facts(problem)), []).append(problem)
    weights = operator.weights_for(family)
    return {kind: _drawn(operator, kind, problems, weights, count) for kind, problems in sorted(kinds.items())}


def kind_of(operator: Operator, facts: Mapping[str, int]) -> Kind:
    """What calls that share variants have in common: dtypes, and attributes that are a mode."""
    names = [f"dtype.{v}" for v in operator.dtypes] + [f"attribute.{a.name}" for a in operator.attributes if a.mode]
    return tuple((name, facts[name]) for name in names)


def _drawn(
    operator: Operator, kind: Kind, problems: Sequence[Problem], weights: Mapping[str, float], count: int
) -> tuple[Problem, ...]:
    draw = random.Random(f"{operator.name} {' '.join(f'{name}={value}' for name, value in kind)}")
    ranges = {d: range_of(operator, d, problems) for d in operator.dims}
    most_flops = _LARGER * max(operator.flops.evaluate(operator.facts(p)) for p in problems)
    most_bytes = _LARGER * max(operator.compulsory_bytes(p) for p in problems)
    shares = [weights.get(p.id, 1.0) for p in problems]
    exist = extents_exist(operator)
    drawn: dict[str, Problem] = {}
    tuned = {p.id for p in problems}
    for _ in range(_TRIES * count):
        if len(drawn) == count:
            break
        base = draw.choices(problems, shares)[0]
        keeps = 0.5 if len(drawn) % 2 == 0 else 0.0
        dims = {
            d: n if draw.random() < keeps else _extent(draw, ranges[d], _is_even(d, problems))
            for d, n in base.dims.items()
        }
        shape = msgspec.structs.replace(base, dims=dims, strides={})
        facts = operator.facts(shape)
        small = operator.flops.evaluate(facts) <= most_flops and operator.compulsory_bytes(shape) <= most_bytes
        if shape.id not in tuned and small and all_of((*exist, *operator.legal, *operator.expected), facts):
            drawn.setdefault(shape.id, shape)
    return tuple(drawn.values())


def _is_even(dim: str, problems: Sequence[Problem]) -> bool:
    return 2 * sum(p.dims[dim] % 8 == 0 for p in problems) > len(problems)


def _extent(draw: random.Random, between: tuple[int, int], even: bool) -> int:
    """An extent, drawn evenly in its logarithm. Most are rounded to multiples if those of the workload are."""
    least, most = between
    value = float(least * (most / least) ** draw.random())
    share = draw.random()
    for part, step in _WHOLE if even else ():
        if share < part:
            value = round(value / step) * step if value >= _STEPS * step else value
            break
        share -= part
    return min(max(round(value), least), most)
