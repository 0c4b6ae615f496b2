"""The shapes of a survey: problems that nobody tuned, drawn over what an operator's callers may have."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from aot_tune.expr.integer_expressions import Expr, all_of
from aot_tune.spec.calls import extents_exist, followed, following_dims, is_taken, ways_to_follow
from aot_tune.spec.kernel import Kernel
from aot_tune.spec.operator import Operator
from aot_tune.spec.problem import Problem
from aot_tune.spec.regimes import OTHER, extents_of_regime, range_of, regime_of, regimes_of

Kind = tuple[tuple[str, int], ...]
"""Facts, with their values, of calls that have their own variants."""

_LARGER = 2.0
"""No shape has more FLOPs or bytes than twice the most in the workload."""
_TRIES = 60
_WHOLE = ((0.5, 64), (0.2, 8), (0.1, 256))
"""Shares of extents that are rounded to multiples, if most of the workload's extents are multiples of 8."""
_POWERS = 0.1
"""The share that is rounded to a power of two then."""
_STEPS = 4
"""No extent is rounded to a multiple of more than a quarter of it, so small numbers of rows may have any value."""
_TOLD_APART = 0.2
"""The share of extents that are what kernels compare the dim with, or a multiple of what they divide it by."""


def survey_shapes(
    operator: Operator, family: str, count: int, kernels: Iterable[Kernel], seed: str = ""
) -> dict[Kind, tuple[Problem, ...]]:
    """For each kind of the workload's problems, `count` other problems, or fewer if there are no more.

    The same arguments give the same shapes. Surveys leave `seed` empty; each seed gives other shapes than theirs.

    Each regime has as many, and they take turns. Each shape is one that some of these kernels take. Half of the shapes
    are problems of the workload, of the same regime if it has such, with some extents drawn again. Half have all
    extents drawn. All else, such as optional tensors and attributes, is from a problem of the workload; heavier
    problems are used more often.
    """
    kinds: dict[Kind, list[Problem]] = {}
    for problem in operator.workload_for(family):
        kinds.setdefault(kind_of(operator, operator.facts(problem)), []).append(problem)
    weights, tuned = operator.weights_for(family), tuple(k for k in kernels if not (k.generic or k.fills_in))
    if not tuned:
        return dict.fromkeys(sorted(kinds), ())
    return {kind: _of_kind(operator, kind, ps, weights, count, tuned, seed) for kind, ps in sorted(kinds.items())}


def without_shapes(operator: Operator, shapes: Mapping[Kind, Sequence[Problem]]) -> list[str]:
    """The declared regimes of which there are no shapes, of any kind."""
    drawn = {regime_of(operator, operator.facts(p)) for problems in shapes.values() for p in problems}
    return [name for name in operator.regimes if name not in drawn]


def kind_of(operator: Operator, facts: Mapping[str, int]) -> Kind:
    """What calls that share variants have in common: dtypes, and attributes that are a mode."""
    names = [f"dtype.{v}" for v in operator.dtypes] + [f"attribute.{a.name}" for a in operator.attributes if a.mode]
    return tuple((name, facts[name]) for name in names)


def _of_kind(
    operator: Operator,
    kind: Kind,
    problems: Sequence[Problem],
    weights: Mapping[str, float],
    count: int,
    kernels: Sequence[Kernel],
    more: str,
) -> tuple[Problem, ...]:
    drawing = _Drawing(operator, problems, weights, kernels)
    regimes = {name: drawing.extents(name) for name in (*(n for n, _ in regimes_of(operator)), OTHER)}
    possible = {name: extents for name, extents in regimes.items() if all(a <= b for a, b in extents.values())}
    each = -(-count // max(len(possible), 1))
    seed = f"{operator.name} {' '.join(f'{name}={value}' for name, value in kind)}{more}"
    drawn = [drawing.shapes(name, extents, each, f"{seed} {name}") for name, extents in possible.items()]
    return tuple(p for turn in itertools.zip_longest(*drawn) for p in turn if p is not None)


@dataclass(frozen=True)
class _Drawing:
    """What shapes of one kind of calls are drawn from, and what they must be."""

    operator: Operator
    problems: Sequence[Problem]
    weights: Mapping[str, float]
    kernels: Sequence[Kernel]

    def extents(self, regime: str) -> dict[str, tuple[int, int]]:
        """The least and the largest extent of each dim in a regime, (1, 0) if it has none there."""
        operator = self.operator
        between = {
            d: extents_of_regime(operator, regime, d, range_of(operator, d, self.problems)) for d in operator.dims
        }
        listed = {d: ns for d, ns in operator.values.items() if d not in following_dims(operator)}
        without = {d for d, ns in listed.items() if not any(between[d][0] <= n <= between[d][1] for n in ns)}
        return {d: (1, 0) if d in without else extents for d, extents in between.items()}

    def shapes(self, regime: str, extents: Mapping[str, tuple[int, int]], count: int, seed: str) -> list[Problem]:
        """So many different shapes of a regime, or fewer."""
        operator, draw = self.operator, random.Random(seed)
        own = [p for p in self.problems if regime_of(operator, operator.facts(p)) == regime] or self.problems
        following = following_dims(operator)
        dims = {d: _Extents(draw, self, d, between) for d, between in extents.items() if d not in following}
        follow = self._follow(draw)
        suits, drawn = self._conditions(), dict[str, Problem]()
        for _ in range(_TRIES * count):
            if len(drawn) == count:
                break
            varied = len(drawn) % 2 == 0
            among = own if varied else self.problems
            base = draw.choices(among, [self.weights.get(p.id, 1.0) for p in among])[0]
            free = {d: n for d, n in base.dims.items() if d in dims}
            kept = {d for d, n in free.items() if varied and draw.random() < 0.5 and dims[d].may_be(n)}
            given = {d: n if d in kept else dims[d].one() for d, n in free.items()}
            given = follow(given, base.dims if varied else None)
            shape = msgspec.structs.replace(base, dims={d: given[d] for d in base.dims}, strides={})
            if shape.id not in drawn and regime_of(operator, operator.facts(shape)) == regime and suits(shape):
                drawn[shape.id] = shape
        return list(drawn.values())

    def _follow(self, draw: random.Random) -> Callable[[dict[str, int], Mapping[str, int] | None], dict[str, int]]:
        """A function that adds extents that follow from others, in a legal way; of given dims, in a way of theirs."""
        operator = self.operator
        ways, names = ways_to_follow(operator), set(operator.dims)
        stated = tuple(e for e in (*operator.legal, *operator.expected) if e.facts() <= names)

        def follow(free: dict[str, int], alike: Mapping[str, int] | None) -> dict[str, int]:
            if len(ways) == 1:
                return followed(ways[0], free)
            same = [w for w in ways if alike and followed(w, alike) == alike]
            every = [followed(w, free) for w in same or ways]
            return draw.choice([extents for extents in every if all_of(stated, extents)] or every)

        return follow

    def _conditions(self) -> Callable[[Problem], bool]:
        """Whether a shape is legal and as expected, is not tuned, is not too large, and is one that a kernel takes."""
        operator, tuned = self.operator, {p.id for p in self.problems}
        most_flops = _LARGER * max(operator.flops.evaluate(operator.facts(p)) for p in self.problems)
        most_bytes = _LARGER * max(operator.compulsory_bytes(p) for p in self.problems)
        stated = (*extents_exist(operator), *operator.legal, *operator.expected)

        def suits(shape: Problem) -> bool:
            facts = operator.facts(shape)
            small = operator.flops.evaluate(facts) <= most_flops and operator.compulsory_bytes(shape) <= most_bytes
            expected = shape.id not in tuned and small and all_of(stated, facts)
            return expected and is_taken(operator, shape, self.kernels, worthwhile=True)

        return suits


class _Extents:
    """Draws extents of a dim."""

    def __init__(self, draw: random.Random, drawing: _Drawing, dim: str, between: tuple[int, int]) -> None:
        self._draw, self._between = draw, between
        least, most = between
        self._values = [int(n) for n in drawing.operator.values.get(dim, ()) if least <= n <= most]
        problems = drawing.problems
        self._even = 2 * sum(p.dims[dim] % 8 == 0 for p in problems) > len(problems)
        guards = (e for k in drawing.kernels for e in (*k.requires, *k.worthwhile))
        told_apart = {told for e in guards for told in _told_apart(e, dim)}
        self._told_apart = sorted(t for t in told_apart if least <= t[1] <= most and t != ("%", 1))

    def may_be(self, extent: int) -> bool:
        """Whether an extent is one that is drawn from."""
        return self._between[0] <= extent <= self._between[1]

    def one(self) -> int:
        """One of the values, or an extent that is drawn evenly in its logarithm.

        Most are rounded to multiples if those of the workload are.
        """
        draw, (least, most) = self._draw, self._between
        if self._values:
            return draw.choice(self._values)
        value = float(least * (most / least) ** draw.random())
        if self._told_apart and draw.random() < _TOLD_APART:
            operation, number = draw.choice(self._told_apart)
            value = number if operation == "==" else _rounded(value, number)
        elif self._even:
            value = self._whole(value)
        return min(max(round(value), least), most)

    def _whole(self, value: float) -> float:
        share = self._draw.random()
        for part, step in _WHOLE:
            if share < part:
                return _rounded(value, next((s for s in (step, 8) if value >= _STEPS * s), 1))
            share -= part
        return 2 ** round(math.log2(value)) if share < _POWERS else value


def _rounded(value: float, step: int) -> int:
    return max(round(value / step), 1) * step


def _told_apart(expr: Expr, dim: str) -> Iterator[tuple[str, int]]:
    """What an expression says of a dim itself: numbers that it may equal, `==`, and that may divide it, `%`."""
    for arg in expr.args:
        yield from _told_apart(arg, dim)
    if expr.op in ("==", "%") and expr.args[0].value == dim and expr.args[1].op == "const" and expr.args[1].value >= 1:
        yield expr.op, int(expr.args[1].value)
