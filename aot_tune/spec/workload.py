"""Problems of an operator: workloads that users state, problems in one form and by name."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import msgspec

from aot_tune.spec.calls import check_problem
from aot_tune.spec.operator import Operator
from aot_tune.spec.problem import DEFAULT_ALIGNMENT, Problem
from aot_tune.spec.problem import problem as make_problem
from aot_tune.spec.tensors import Tensor, canonical_strides, row_major
from aot_tune.support.errors import OptionError, SpecError

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
        before = operator.workload_for(family) if stated.beside else ()
        workload[family] = tuple({p.id: p for p in (*before, *new)}.values())
    weights = added_up([*(WeightedProblem(problem=p) for p in declared), *stated.problems])
    return replace(operator, workload=workload, weights={w.problem.id: w.weight for w in weights})


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
    """The problem with that id. Raises OptionError for a text that is not a problem of the operator."""
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
    """An equal problem without defaults; strides become orders of axes where they can. It must fit the operator."""
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
