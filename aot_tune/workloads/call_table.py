"""Workloads in the form that people read: a table for each operator, the most called problem first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aot_tune.report import columns
from aot_tune.spec import Operator, Problem
from aot_tune.workloads.workload_records import CountedProblem

__all__ = ["call_tables", "counted"]


def counted(weight: float, what: str = "call") -> str:
    """A number of calls. A weight may be a fraction."""
    return f"{weight:.10g} {what}{'s' * (weight != 1)}"


def call_tables(problems: Sequence[CountedProblem], operators: Mapping[str, Operator], top: int | None = None) -> str:
    """A table for each operator, with its `top` problems, or with all of them by default."""
    total = sum(one.weight for one in problems)
    groups: dict[str, list[CountedProblem]] = {}
    for one in problems:
        groups.setdefault(one.operator, []).append(one)
    by_calls = sorted(groups, key=lambda name: (-sum(one.weight for one in groups[name]), name))
    return "\n\n".join(_table(operators[name], groups[name], total, top) for name in by_calls) + "\n"


def _table(operator: Operator, problems: Sequence[CountedProblem], total: float, top: int | None) -> str:
    calls, captured = sum(one.weight for one in problems), sum(one.captured for one in problems)
    shown = sorted(problems, key=lambda one: (-one.weight, one.problem.id))[:top]
    head = ("calls", "share", "captured", *operator.dims, *operator.dtypes, "else")
    rows = [head, *(_row(operator, one, total) for one in shown)]
    text = f"{operator.name}: {counted(calls)} of {counted(len(problems), 'problem')}"
    text += f", {_percent(calls, total)} of all, {_percent(captured, calls)} captured"
    lines = [text, *("  " + line for line in columns(rows))]
    left = len(problems) - len(shown)
    if left:
        rest = calls - sum(one.weight for one in shown)
        lines.append(f"  and {counted(rest)} of {counted(left, 'more problem')}")
    return "\n".join(lines)


def _row(operator: Operator, one: CountedProblem, total: float) -> tuple[str, ...]:
    dtypes = [one.problem.dtypes.get(v, choices[0]) for v, choices in operator.dtypes.items()]
    return (
        f"{one.weight:.10g}",
        _percent(one.weight, total),
        _percent(one.captured, one.weight),
        *(str(one.problem.dims[name]) for name in operator.dims),
        *dtypes,
        _else(one.problem),
    )


def _else(problem: Problem) -> str:
    """The rest of a problem's name, without dims and dtypes: layouts, optional tensors, attributes, alignment."""
    said = {f"{n}={v}" for n, v in (*problem.dims.items(), *problem.dtypes.items())}
    return " ".join(part for part in problem.id.split() if part not in said)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %"
