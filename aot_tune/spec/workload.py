"""Workloads that users state, in addition to the declared ones or in their place: problems and their weights."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import msgspec

from aot_tune.spec.check_problem import check_problem
from aot_tune.spec.normal_form import normal_problem
from aot_tune.spec.operator import Operator
from aot_tune.spec.problem import Problem
from aot_tune.support.errors import SpecError

__all__ = [
    "KnownProblems",
    "StatedWorkload",
    "WeightedProblem",
    "added_up",
    "declared_problems",
    "facts_of",
    "in_known_form",
    "known_forms",
    "with_workload",
]

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
    known = declared_problems(operator) if stated.beside else []
    workload: dict[str, tuple[Problem, ...]] = {}
    for family in sorted({*(given if isinstance(given, Mapping) else ()), *unserved, ""}):
        new = (one.problem for one in stated.problems if one.problem.id not in unserved.get(family, ()))
        workload[family] = _each_once((*(operator.workload_for(family) if stated.beside else ()), *new))
    weights = added_up([*(WeightedProblem(problem=p) for p in known), *stated.problems])
    return replace(operator, workload=workload, weights={one.problem.id: one.weight for one in weights})


def _each_once(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple({p.id: p for p in problems}.values())


def added_up(problems: Iterable[WeightedProblem]) -> tuple[WeightedProblem, ...]:
    """The problems in the order of their first occurrence. The weights of equal problems are added up."""
    found: dict[str, WeightedProblem] = {}
    for one in problems:
        before = found.get(one.problem.id)
        weight = one.weight if before is None else min(before.weight + one.weight, sys.float_info.max)
        found[one.problem.id] = WeightedProblem(problem=one.problem, weight=weight)
    return tuple(found.values())


def facts_of(operator: Operator, problem: Problem) -> tuple[tuple[str, int], ...]:
    """What dispatch sees of a problem. Equal calls give equal facts."""
    return tuple(sorted(operator.facts(problem).items()))


def known_forms(operator: Operator, problems: Iterable[Problem]) -> KnownProblems:
    """Problems by their facts, in the form that comes first. Problems that do not fit the operator are left out."""
    known: KnownProblems = {}
    for problem in problems:
        try:
            check_problem(operator, problem)  # a record may be of another version of the operator
        except SpecError:
            continue
        known.setdefault(facts_of(operator, normal_problem(operator, problem)), problem)
    return known


def in_known_form(operator: Operator, problem: Problem, known: KnownProblems) -> Problem:
    """A problem in the form in which it is known: equal calls are one problem, however they are written.

    Args:
        known: the known forms. A problem that is not among them is added in its normal form.
    """
    normal = normal_problem(operator, problem)
    return known.setdefault(facts_of(operator, normal), normal)
