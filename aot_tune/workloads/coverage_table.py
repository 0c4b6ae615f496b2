"""Coverage in the form that people read: a table for each target, then the heaviest unmeasured problems."""

from __future__ import annotations

from collections.abc import Sequence

from aot_tune.report import columns, format_time
from aot_tune.workloads.call_table import counted
from aot_tune.workloads.coverage import CoveredProblem

__all__ = ["coverage_table"]

_HEAD = ("operator", "problems", "measured", "calls", "covered", "time", "covered")


def coverage_table(target: str, found: Sequence[CoveredProblem], top: int) -> str:
    """The coverage of one target, with the `top` problems that were not measured, those of most time first."""
    operators = sorted({one.operator for one in found})
    rows = [_row(name, [one for one in found if one.operator == name]) for name in operators]
    lines = [f"on {target}", *("  " + line for line in columns([_HEAD, *rows, _row("all", found)]))]
    left = sorted((one for one in found if not one.tuned), key=lambda one: (-one.total, -one.calls, one.problem.id))
    if any(one.ns is not None for one in left):
        lines += [
            "  the time of problems that were not measured is an estimate: the time of the nearest measured",
            "  problem, times the larger ratio of FLOPs or bytes",
        ]
    unknown = sorted({one.operator for one in left if one.ns is None})
    if unknown:
        calls = sum(one.calls for one in left if one.ns is None)
        lines.append(f"  without {counted(calls)} of {', '.join(unknown)}, of which nothing was measured for {target}")
    if left:
        lines.append("  not measured, most time first:")
        lines += ["    " + line for line in columns([_left(one) for one in left[:top]])]
    if len(left) > top:
        lines.append(f"    and {counted(len(left) - top, 'more problem')}")
    return "\n".join(lines) + "\n"


def _row(name: str, found: Sequence[CoveredProblem]) -> tuple[str, ...]:
    tuned = [one for one in found if one.tuned]
    calls, covered = sum(one.calls for one in found), sum(one.calls for one in tuned)
    time, known = sum(one.total for one in found), sum(one.total for one in tuned)
    return (
        name,
        str(len(found)),
        str(len(tuned)),
        f"{calls:.10g}",
        _percent(covered, calls),
        format_time(time) if time else "unknown",
        _percent(known, time) if time else "-",
    )


def _left(one: CoveredProblem) -> tuple[str, ...]:
    about = "time unknown" if one.ns is None else f"about {format_time(one.total)}, by {one.near}"
    return one.operator, one.problem.id, counted(one.calls), about


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %"
