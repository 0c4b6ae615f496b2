"""The words and numbers of a report, the same in all of its forms."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aot_tune.report.report_records import NOT_TRIED, OperatorReport, ProblemRow, Report, VariantRow

__all__ = [
    "curve_lines",
    "format_time",
    "held_out_of",
    "in_reading_order",
    "on_others_text",
    "percent_text",
    "remark_lines",
    "slower_line",
    "speedup_text",
    "tried_text",
    "use_text",
]

_SLOWER = 0.95
"""A winner below this share of the baseline's speed is called slower."""
_ENOUGH = 5
"""A mean over fewer problems says nothing of others. With two, leaving out one only shows how unlike they are."""


def format_time(ns: float) -> str:
    """A time in the unit that leaves one to four digits before the point."""
    for unit, size in (("ns", 1.0), ("us", 1e3), ("ms", 1e6)):
        if ns < 1000 * size:
            return f"{ns / size:.{0 if unit == 'ns' else 2}f} {unit}"
    return f"{ns / 1e9:.2f} s"


def tried_text(one: OperatorReport) -> str:
    """How many candidates were tried, with their statuses, and how many were not tried."""
    left = one.statuses.get(NOT_TRIED, 0)
    if left and left == one.tried:
        return f"tried none of {left}"
    counts = ", ".join(f"{n} {status}" for status, n in sorted(one.statuses.items()) if n and status != NOT_TRIED)
    return f"tried {one.tried - left} ({counts or 'nothing'})" + (f", {left} more not tried" if left else "")


def curve_lines(one: OperatorReport) -> list[str]:
    """What each kept variant is good for: the regret with the first one, the first two, and so on."""
    found = []
    for curve in one.curves if one.survey is not None else ():
        percents = ", ".join(f"{100 * regret:.1f}" for regret in curve.regret)
        of = f" of {curve.kind}" if curve.kind else ""
        found.append(f"  mean regret with 1, 2, ... variants{of}: {percents} %")
    return found


def remark_lines(rows: Sequence[ProblemRow]) -> list[str]:
    """Remarks on times. A remark on several problems is given once."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.remark:
            found.setdefault(row.remark, []).append(row.problem)
    return [
        f"  NOTE {first}{f' and {len(more)} more' if more else ''}: {remark}"
        for remark, (first, *more) in found.items()
    ]


def held_out_of(one: OperatorReport) -> float | None:
    """The mean regret on shapes that dispatch did not learn from; None if there are too few of them."""
    if one.survey is not None:
        return one.survey.mean
    judged = len(one.problems) - one.not_held_out
    return one.held_out_regret if judged >= _ENOUGH else None


def use_text(one: OperatorReport, row: VariantRow) -> str:
    """What a variant is kept for."""
    if row.wins or one.survey is None:
        return f"{row.wins} problem{'s' * (row.wins != 1)}"
    return "other shapes"


def in_reading_order(report: Report) -> Report:
    """The report with the newest target of each operator first: on a CPU that built it, this is its own."""
    names = list(dict.fromkeys(one.operator for one in report.operators))
    places = {target: place for place, target in enumerate(report.targets)}
    order = sorted(report.operators, key=lambda one: (names.index(one.operator), -places.get(one.target, 0)))
    return msgspec.structs.replace(report, operators=tuple(order))


def on_others_text(one: OperatorReport) -> str:
    """The regret of dispatch on shapes that it did not learn from, if there are enough of them."""
    if one.survey is not None:
        return (
            f", {percent_text(one.survey.mean)} on {one.survey.shapes} surveyed shapes left out of learning "
            f"(95 % of them within {percent_text(one.survey.p95)}; worst {percent_text(one.survey.worst)} on "
            f"'{one.survey.where}')"
        )
    if one.held_out_regret is None:
        return ""
    judged = len(one.problems) - one.not_held_out
    if judged < _ENOUGH:
        return f", unknown on other shapes (only {judged} could be left out of learning, {_ENOUGH} are needed)"
    without = f" (without {one.not_held_out} of {len(one.problems)}: the choice was never timed there)"
    return f", {percent_text(one.held_out_regret)} on shapes left out of learning" + without * bool(one.not_held_out)


def slower_line(one: OperatorReport) -> list[str]:
    """A note if winners are slower than the fastest baseline beyond doubt."""
    slower = [row for row in one.problems if row.speedup is not None and row.speedup * (1 + 2 * _error(row)) < _SLOWER]
    if not slower:
        return []
    worst = min(slower, key=lambda row: row.speedup or 0.0)
    name = worst.baseline[0] if worst.baseline is not None else "the baseline"
    many = f"{len(slower)} of {len(one.problems)} problem{'s' * (len(one.problems) != 1)}"
    most = f"on {worst.problem} {name} takes {worst.speedup:.2f} of the winner's time"
    return [f"  NOTE slower than the fastest baseline on {many}; {most}"]


def _error(row: ProblemRow) -> float:
    """The standard error of the ratio to the baseline, as a share of the ratio."""
    return row.paired[1] / row.paired[0] if row.paired is not None and row.paired[0] > 0 else 0.0


def speedup_text(row: ProblemRow) -> str:
    """How many times faster a winner is than the fastest baseline, with a standard error that is not negligible."""
    if row.speedup is None:
        return "-"
    error = row.paired[1] if row.paired is not None else 0.0
    return f"{row.speedup:.2f}" + (f" ± {error:.2f}" if error >= 0.005 else "")


def percent_text(fraction: float) -> str:
    """A share in percent."""
    return f"{100 * fraction:.1f} %"
