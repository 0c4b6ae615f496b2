"""Problems of an operator: workloads that users state, problems in one form and by name, the shapes of surveys."""

from __future__ import annotations

import itertools
import random
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from aot_tune.expr.integers import all_of
from aot_tune.spec.calls import check_problem, extents_exist
from aot_tune.spec.operator import Operator
from aot_tune.spec.problem import DEFAULT_ALIGNMENT, Problem
from aot_tune.spec.problem import problem as make_problem
from aot_tune.spec.tensors import Tensor, canonical_strides, row_major
from aot_tune.support.errors import OptionError, SpecError

__all__ = [
    "Kind",
    "KnownProblems",
    "StatedWorkload",
    "WeightedProblem",
    "added_up",
    "declared_problems",
    "facts_of",
    "in_known_form",
    "kind_of",
    "known_forms",
    "normal_problem",
    "problem_named",
    "range_of",
    "survey_shapes",
    "with_workload",
]

Kind = tuple[tuple[str, int], ...]
"""Facts, with their values, of calls that have their own variants."""

_WIDER = 2
"""Without a declared range, a dim ranges from half the least extent of the workload to twice the largest."""
_LARGER = 2.0
"""No shape has more FLOPs or bytes than twice the most in the workload."""
_TRIES = 60
_WHOLE = ((0.6, 64), (0.2, 8), (0.1, 256))
"""Shares of extents that are rounded to multiples, if most of the workload's extents are multiples of 8."""
_STEPS = 4
"""No extent is rounded to a multiple of more than a quarter of it, so small numbers of rows may have any value."""

_PARTS = {
    "strides": re.compile(r"(\w+):\(([-\d,]*)\)"),
    "order": re.compile(r"(\w+):(\d+)"),
    "present": re.compile(r"\+(\w+)()"),
    "alignment": re.compile(r"(\w+)@(\d+)"),
    "value": re.compile(r"(\w+)=(\S+)"),
}

_MAX_PERMUTED = 6

KnownProblems = dict[tuple[tuple[str, int], ...], Problem]
"""Problems of one operator by the facts that dispatch sees, see `facts_of`."""


class WeightedProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem, and its weight beside the others of its operator."""

    problem: Problem
    weight: float = 1.0


class StatedWorkload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The problems that a user states for one operator. They replace the declared ones, unless `beside`."""

    problems: tuple[WeightedProblem, ...]
    beside: bool = False


def declared_problems(operator: Operator) -> list[Problem]:
    """The problems of an operator's workload for all families of devices, each once."""
    families = operator.workload if isinstance(operator.workload, Mapping) else ("",)
    return list({p.id: p for family in families for p in operator.workload_for(family)}.values())


def with_workload(operator: Operator, stated: StatedWorkload, unserved: Mapping[str, Collection[str]]) -> Operator:
    """The operator with a stated workload, which holds for all families of devices.

    If it is added to the declared one, each declared problem counts 1, in addition to its stated weight.

    Args:
        unserved: by family of devices, the ids of stated problems that no kernel takes. They are left out of the
            family's workload.
    """
    given = operator.workload if stated.beside else {}
    declared = declared_problems(operator) if stated.beside else []
    workload: dict[str, tuple[Problem, ...]] = {}
    for family in sorted({*(given if isinstance(given, Mapping) else ()), *unserved, ""}):
        new = (w.problem for w in stated.problems if w.problem.id not in unserved.get(family, ()))
        workload[family] = _each_once((*(operator.workload_for(family) if stated.beside else ()), *new))
    weights = added_up([*(WeightedProblem(problem=p) for p in declared), *stated.problems])
    return replace(operator, workload=workload, weights={w.problem.id: w.weight for w in weights})


def _each_once(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple({p.id: p for p in problems}.values())


def added_up(problems: Iterable[WeightedProblem]) -> tuple[WeightedProblem, ...]:
    """The problems in the order of their first occurrence. The weights of equal problems are added up."""
    by_id: dict[str, WeightedProblem] = {}
    for weighted in problems:
        before = by_id.get(weighted.problem.id)
        weight = weighted.weight if before is None else min(before.weight + weighted.weight, sys.float_info.max)
        by_id[weighted.problem.id] = WeightedProblem(problem=weighted.problem, weight=weight)
    return tuple(by_id.values())


def facts_of(operator: Operator, problem: Problem) -> tuple[tuple[str, int], ...]:
    """What dispatch sees of a problem. Equal calls give equal facts."""
    return tuple(sorted(operator.facts(problem).items()))


def known_forms(operator: Operator, problems: Iterable[Problem]) -> KnownProblems:
    """Problems by their facts, in the form that comes first. Problems that do not fit the operator are left out."""
    forms: KnownProblems = {}
    for problem in problems:
        try:
            check_problem(operator, problem)  # a record may be of another version of the operator
        except SpecError:
            continue
        forms.setdefault(facts_of(operator, normal_problem(operator, problem)), problem)
    return forms


def in_known_form(operator: Operator, problem: Problem, forms: KnownProblems) -> Problem:
    """A problem in the form in which it is known: equal calls are one problem, however they are written.

    Args:
        known: the known forms. A problem that is not among them is added in its normal form.
    """
    normal = normal_problem(operator, problem)
    return forms.setdefault(facts_of(operator, normal), normal)


def problem_named(operator: Operator, text: str) -> Problem:
    """The problem with that id.

    Raises:
        OptionError: for a text that is not a problem of the operator.
    """
    parts: dict[str, dict[str, object]] = {"strides": {}, "order": {}, "alignment": {}, "attributes": {}, "dtypes": {}}
    dims: dict[str, int] = {}
    present: list[str] = []
    choices = {**operator.choices, **operator.dtypes}
    tensors = {t.name for t in operator.tensors}
    for part in text.split():
        kind, name, value = next(
            ((k, m[1], m[2]) for k, p in _PARTS.items() if (m := p.fullmatch(part)) is not None), ("", "", "")
        )
        if kind == "value" and name in operator.dims and value.isdecimal():
            dims[name] = int(value)
        elif kind == "value" and value in choices.get(name, ()):
            parts["dtypes" if name in operator.dtypes else "attributes"][name] = value
        elif kind == "present" and name in tensors:
            present.append(name)
        elif kind in ("strides", "order") and name in tensors:
            numbers = value.split(",") if kind == "strides" else list(value)
            parts[kind][name] = tuple(int(n) for n in numbers if n)
        elif kind == "alignment" and name in tensors:
            parts[kind][name] = int(value)
        else:
            raise OptionError(
                f"{part!r} is not a part of a problem of operator {operator.name!r}",
                fix="copy a problem from the report, such as 'M=16 N=4096 +bias b:10'",
            )
    if set(dims) != set(operator.dims):
        raise OptionError(
            f"{text!r} is not a problem of operator {operator.name!r}",
            fix=f"give each of its dims once, as {' '.join(f'{n}=1' for n in operator.dims)}",
        )
    return make_problem(present=present, **parts, **{n: dims[n] for n in operator.dims})  # type: ignore[arg-type]


def normal_problem(operator: Operator, problem: Problem) -> Problem:
    """An equal problem without defaults. Strides that an order of the axes gives are written as that order.

    The problem must fit the operator, as `check_problem` checks it.
    """
    order: dict[str, tuple[int, ...]] = {}
    strides: dict[str, tuple[int, ...]] = {}
    for name in sorted({*problem.order, *problem.strides}):
        tensor = operator.tensor(name)
        if operator.is_present(problem, tensor):
            _lay_out(operator, problem, tensor, order, strides)
    aligned = {t: a for t, a in sorted(problem.alignment.items()) if a != DEFAULT_ALIGNMENT}
    defaults = {a.name: a.choices[0] for a in operator.attributes}
    return msgspec.structs.replace(
        problem,
        dims={name: problem.dims[name] for name in operator.dims},
        order=order,
        strides=strides,
        present=tuple(sorted(set(problem.present))),
        attributes={a: c for a, c in sorted(problem.attributes.items()) if c != defaults[a]},
        alignment={t: a for t, a in aligned.items() if operator.is_present(problem, operator.tensor(t))},
        dtypes={v: d for v, d in sorted(problem.dtypes.items()) if d != operator.dtypes[v][0]},
    )


def _lay_out(
    operator: Operator,
    problem: Problem,
    tensor: Tensor,
    order: dict[str, tuple[int, ...]],
    strides: dict[str, tuple[int, ...]],
) -> None:
    """Note how a tensor lies in memory, if it is not row-major."""
    shape = operator.shape(problem, tensor)
    given = operator.canonical_strides(problem, tensor)
    axes = range(len(shape))
    for permuted in itertools.permutations(axes) if len(shape) <= _MAX_PERMUTED else [tuple(axes)]:
        if canonical_strides(shape, row_major(shape, permuted)) == given:
            if permuted != tuple(axes):
                order[tensor.name] = permuted
            return
    strides[tensor.name] = given


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


def range_of(operator: Operator, dim: str, problems: Sequence[Problem]) -> tuple[int, int]:
    """The least and the largest extent to draw for a dim, judged by some problems."""
    if dim in operator.ranges:
        return operator.ranges[dim]
    extents = [max(p.dims[dim], 1) for p in problems]
    return max(min(extents) // _WIDER, 1), max(extents) * _WIDER


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
