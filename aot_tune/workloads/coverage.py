"""How much of the calls a build has measured, by number and by time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from aot_tune.link.emit.tuned_facts import TunedFacts, tuned_facts
from aot_tune.spec import Operator, Problem
from aot_tune.workloads.built_library import BuiltLibrary, TimedProblem, timed_problems
from aot_tune.workloads.workload_records import CountedProblem

__all__ = ["CoveredProblem", "coverage_on", "estimate"]


class CoveredProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that is called, and what a build knows of it.

    `ns` is the time of a call. If the problem is `tuned`, it was measured, else it is estimated from the problem
    `near`. It is None if nothing of the operator was measured.
    """

    operator: str
    problem: Problem
    calls: float
    tuned: bool
    ns: float | None
    near: str = ""

    @property
    def total(self) -> float:
        """The time of all its calls; None if unknown."""
        return (self.ns or 0.0) * self.calls


def coverage_on(
    target: str, problems: Iterable[CountedProblem], library: BuiltLibrary, operators: Mapping[str, Operator]
) -> list[CoveredProblem]:
    """What a build knows of each problem on a target.

    Raises:
        BuildError: when an operator differs from the build's.
    """
    timed: dict[str, list[TimedProblem]] = {}
    by_facts: dict[str, dict[TunedFacts, TimedProblem]] = {}
    found = []
    for one in problems:
        operator = operators[one.operator]
        if one.operator not in timed:
            timed[one.operator] = timed_problems(library, operator, target)
            by_facts[one.operator] = {tuned_facts(operator, t.problem): t for t in timed[one.operator]}
        same = by_facts[one.operator].get(tuned_facts(operator, one.problem))
        if same is not None:
            known = CoveredProblem(
                operator=one.operator, problem=one.problem, calls=one.weight, tuned=True, ns=same.ns
            )  # fmt: skip
        else:
            ns, near = estimate(operator, one.problem, timed[one.operator])
            known = CoveredProblem(
                operator=one.operator, problem=one.problem, calls=one.weight, tuned=False, ns=ns, near=near
            )
        found.append(known)
    return found


def estimate(operator: Operator, problem: Problem, timed: Sequence[TimedProblem]) -> tuple[float | None, str]:
    """The time of a problem, estimated from the nearest one, and the nearest one's name; None if there is none.

    The nearest has the same dtypes, if possible, and the smallest ratios of FLOPs and bytes to this problem. The
    estimate is its time multiplied by the larger ratio, because that work decides how long a kernel takes.
    """
    if not timed:
        return None, ""
    flops = max(operator.flops.evaluate(operator.facts(problem)), 1)
    moved = max(operator.compulsory_bytes(problem), 1)

    def distance(other: TimedProblem) -> tuple[bool, float, str]:
        steps = abs(math.log(flops / max(other.flops, 1))) + abs(math.log(moved / max(other.bytes, 1)))
        return other.problem.dtypes != problem.dtypes, steps, other.problem.id

    near = min(timed, key=distance)
    return near.ns * max(flops / max(near.flops, 1), moved / max(near.bytes, 1)), near.problem.id
