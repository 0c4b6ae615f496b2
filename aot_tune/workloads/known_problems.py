"""Problems of files against the operators that they name: each is checked as a build would, then they add up."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping

import msgspec

from aot_tune.spec import Operator, Problem, all_of
from aot_tune.spec.check_problem import check_problem
from aot_tune.support.errors import AotTuneError, SpecError, did_you_mean
from aot_tune.workloads.normal_form import normal_problem
from aot_tune.workloads.workload_records import ENOUGH_MISTAKES, CountedProblem, tell

__all__ = ["add_up", "check_call", "computes", "known"]


def known(lines: Iterable[CountedProblem], operators: Mapping[str, Operator]) -> list[CountedProblem]:
    """The lines with their problems in the normal form.

    Raises:
        SpecError: for lines with a problem that its operator does not have, by file and line.
    """
    found: list[CountedProblem] = []
    wrong: list[AotTuneError] = []
    checked: dict[tuple[str, str], Problem] = {}  # a trace of many processes has the same problems again and again
    for line in lines:
        key = line.operator, line.problem.id
        try:
            if key not in checked:
                checked[key] = _checked(line, operators)
            found.append(msgspec.structs.replace(line, problem=checked[key]))
        except SpecError as error:
            wrong.append(error)
            if len(wrong) == ENOUGH_MISTAKES:
                break
    tell(wrong)
    return found


def _checked(line: CountedProblem, operators: Mapping[str, Operator]) -> Problem:
    operator = operators.get(line.operator)
    if operator is None:
        near = difflib.get_close_matches(line.operator, operators)
        own = "" if near else ", or name the template root of its project with --templates"
        raise SpecError(
            f"{line.place}: there is no operator {line.operator!r}", fix=did_you_mean(line.operator, operators) + own
        )
    try:
        check_call(operator, line.problem)
    except SpecError as error:
        raise SpecError(f"{line.place}: {error.what}", why=error.why, fix=error.fix or "correct the line") from error
    return normal_problem(operator, line.problem)


def check_call(operator: Operator, problem: Problem) -> None:
    """Check that a problem is one of the operator, and a legal call.

    Raises:
        SpecError: naming the problem and the offending value.
    """
    check_problem(operator, problem)
    facts = operator.facts(problem)
    for condition in operator.legal:
        if not condition.evaluate(facts):
            raise SpecError(
                f"operator {operator.name!r}: {condition.key()} does not hold on problem '{problem.id}'",
                why="no call may be so",
                fix="leave the problem out",
            )
    operator.flops.evaluate(facts)
    for kernel in operator.kernels:
        all_of((*kernel.requires, *kernel.worthwhile), facts)


def computes(operator: Operator, problem: Problem) -> bool:
    """Whether there is anything to compute: a call without an element of output returns at once, and is not tuned."""
    return any(math.prod(operator.shape(problem, t)) for t in operator.outputs if operator.is_present(problem, t))


def add_up(lines: Iterable[CountedProblem]) -> list[CountedProblem]:
    """One line for each problem, of all that is said of it; what counts most comes first."""
    sums: dict[tuple[str, str], CountedProblem] = {}
    for line in lines:
        key = line.operator, line.problem.id
        before = sums.get(key)
        if before is None:
            sums[key] = line
        else:
            weight, captured = before.weight + line.weight, before.captured + line.captured
            sums[key] = msgspec.structs.replace(before, weight=weight, captured=captured)
    return sorted(sums.values(), key=lambda one: (-one.weight, one.operator, one.problem.id))
