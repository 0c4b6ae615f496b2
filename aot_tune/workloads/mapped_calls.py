"""Calls of other libraries. Those that an operator computes become its problems, the others are counted by name."""

from __future__ import annotations

from collections.abc import Mapping

from aot_tune.spec import Operator, Problem
from aot_tune.spec.check_problem import check_call, is_empty
from aot_tune.spec.normal_form import normal_problem
from aot_tune.support.errors import SpecError
from aot_tune.workloads.call_table import counted
from aot_tune.workloads.workload_records import CountedProblem

__all__ = ["MappedCalls"]

_SHOWN = 12


class MappedCalls:
    """The calls of some files, mapped and not mapped. `operators` are those that calls are mapped to."""

    def __init__(self, operators: Mapping[str, Operator]) -> None:
        self.problems: list[CountedProblem] = []
        self.left: dict[tuple[str, str], float] = {}
        self._operators = operators

    def add(self, call: str, operator: str, problem: Problem, weight: float = 1.0) -> str:
        """Count a call as a problem of an operator. Returns why it is none, in words; empty if it is one."""
        declared = self._operators[operator]
        try:
            check_call(declared, problem)
        except SpecError as error:
            return error.what
        if is_empty(declared, problem):
            return "it has no elements"
        normal = normal_problem(declared, problem)
        self.problems.append(CountedProblem(operator=operator, problem=normal, weight=weight, place=call))
        return ""

    def leave(self, call: str, reason: str, count: float = 1.0) -> None:
        """Count a call that is not mapped."""
        self.left[call, reason] = self.left.get((call, reason), 0.0) + count

    def told(self) -> list[str]:
        """Lines on calls that were not mapped, the most frequent first."""
        if not self.left:
            return []
        rows = sorted(self.left.items(), key=lambda item: (-item[1], item[0]))
        mapped, total = sum(one.weight for one in self.problems), sum(self.left.values())
        lines = [f"mapped {counted(mapped)}; {counted(total)} could not be mapped:"]
        lines += [f"  {counted(n)} of {call}: {reason}" for (call, reason), n in rows[:_SHOWN]]
        if len(rows) > _SHOWN:
            lines.append(f"  and {counted(sum(n for _, n in rows[_SHOWN:]))} of {len(rows) - _SHOWN} more kinds")
        return lines
