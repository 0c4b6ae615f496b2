"""Compares problems of files with the operators that they name: checks each as a build would, then adds them up."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import msgspec

from aot_tune.spec import Operator, Problem
from aot_tune.spec.check_problem import check_call
from aot_tune.spec.normal_form import normal_problem
from aot_tune.support.errors import AotTuneError, SpecError, did_you_mean
from aot_tune.workloads.workload_records import ENOUGH_MISTAKES, CountedProblem, tell

__all__ = ["BY_TEMPLATES", "add_up", "known"]

BY_TEMPLATES = "--templates names the template root of a project's own operators"


def known(
    lines: Iterable[CountedProblem], operators: Mapping[str, Operator], elsewhere: str = BY_TEMPLATES
) -> list[CountedProblem]:
    """The lines, with their problems in the normal form.

    Args:
        elsewhere: where other operators may be, for the message.

    Raises:
        SpecError: for lines with a problem that its operator does not have. It names file and line.
    """
    found: list[CountedProblem] = []
    wrong: list[AotTuneError] = []
    checked: dict[tuple[str, str], Problem] = {}  # traces of many processes repeat the same problems
    for line in lines:
        key = line.operator, line.problem.id
        try:
            if key not in checked:
                checked[key] = _checked(line, operators, elsewhere)
            found.append(msgspec.structs.replace(line, problem=checked[key]))
        except SpecError as error:
            wrong.append(error)
            if len(wrong) == ENOUGH_MISTAKES:
                break
    tell(wrong)
    return found


def _checked(line: CountedProblem, operators: Mapping[str, Operator], elsewhere: str) -> Problem:
    operator = operators.get(line.operator)
    if operator is None:
        raise SpecError(
            f"{line.place}: unknown operator {line.operator!r}",
            why=f"there are {', '.join(operators)}",
            fix=f"{did_you_mean(line.operator, operators)} ({elsewhere})",
        )
    try:
        check_call(operator, line.problem)
    except SpecError as error:
        why = error.why or f"operator {operator.name!r} has {_arguments(operator)}"
        if line.trace is not None and line.trace.build:
            why += (
                f"; it was called in build {line.trace.build[:12]} of {line.trace.library!r}, whose operator may differ"
            )
        raise SpecError(
            f"{line.place}: {error.what}", why=why, fix=error.fix or "mend the line, or remove it"
        ) from error
    return normal_problem(operator, line.problem)


def _arguments(operator: Operator) -> str:
    """Everything that a problem of an operator can state, in words."""
    words = [f"dims {', '.join(operator.dims)}"]
    words += [f"dtypes {v}: {', '.join(choices)}" for v, choices in operator.dtypes.items()]
    words += [f"attribute {a.name}: {', '.join(a.choices)}" for a in operator.attributes]
    optional = [t.name for t in operator.tensors if t.optional]
    return "; ".join([*words, *([f"optional tensors {', '.join(optional)}"] if optional else [])])


def add_up(lines: Iterable[CountedProblem]) -> list[CountedProblem]:
    """One line for each problem, with the sum of its weights. The heaviest problem comes first."""
    sums: dict[tuple[str, str], CountedProblem] = {}
    for line in lines:
        key = line.operator, line.problem.id
        before = sums.get(key)
        if before is None:
            sums[key] = line
        else:
            weight = min(before.weight + line.weight, sys.float_info.max)
            captured = before.captured + line.captured
            sums[key] = msgspec.structs.replace(before, weight=weight, captured=captured)
    return sorted(sums.values(), key=lambda one: (-one.weight, one.operator, one.problem.id))
