"""The report as people read it in a terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from aot_tune.report.code_resources import format_resources
from aot_tune.report.report_records import NOT_TRIED, OperatorReport, ProblemRow, Report, VariantRow

__all__ = ["columns", "format_report", "format_time"]

_ENOUGH = 5
"""A mean over fewer problems says nothing of others: leaving out one of two says how unlike they are."""


def format_time(ns: float) -> str:
    """A time in the unit that leaves one to four digits before the point."""
    for unit, size in (("ns", 1.0), ("us", 1e3), ("ms", 1e6)):
        if ns < 1000 * size:
            return f"{ns / size:.{0 if unit == 'ns' else 2}f} {unit}"
    return f"{ns / 1e9:.2f} s"


def format_report(report: Report, *, operators: Sequence[str] = (), failures: int = 5, candidates: bool = False) -> str:
    """The whole report as text.

    Args:
        report: what to show.
        operators: only these; all when empty.
        failures: at most so many dropped candidates per operator are listed.
        candidates: list those that were timed, too.
    """
    lines = [
        f"library   {report.library}",
        f"mode      {report.mode}",
        f"targets   {', '.join(report.targets) or 'none: generic variants only'}",
    ]
    lines += [f"device    {d}" for d in report.devices]
    lines += [f"workload  {line}" for line in report.workload]
    lines += [f"compiler  {name}: {version}" for name, version in sorted(report.toolchains.items())]
    tuned = any(one.tried for one in report.operators)  # else no time was taken
    for name, *words in (report.measuring or ((report.policy,),)) if tuned else ():
        lines += [f"policy    {name}", *(line for text in words for line in _wrapped(text))]
    lines += [f"NOTE      {note}" for note in report.notes]
    for one in report.operators:
        if not operators or one.operator in operators:
            lines += ["", *_operator(one, failures)]
            lines += ["  " + line for line in _candidates(one)] if candidates and one.candidates else []
    return "\n".join(lines) + "\n"


def _operator(one: OperatorReport, failures: int) -> list[str]:
    lines = [f"{one.operator} on {one.target}: {_tried(one)}, kept {len(one.variants)}"]
    if one.note:
        lines.append(f"  NOTE {one.note}")
    if one.problems:
        lines += ["  " + line for line in _problems(one)]
        mean = f"{_percent(one.mean_regret)} in the mean"
        if one.weighted_regret is not None:
            mean = f"{_percent(one.weighted_regret)} in the mean by weight, {_percent(one.mean_regret)} without weights"
        text = f"  regret of dispatch: {mean}" + _on_others(one)
        curves = _curves(one)
        speedup = _mean_speedup(one.problems)
        lines.append(text + (f"; {speedup:.2f} x the baseline in the geometric mean" if speedup else ""))
        lines += [*curves, *_remarks(one.problems)]
    if one.roofline_of:
        lines.append(f"  roofline: shares are of {one.roofline_of}")
    for variant in one.variants:
        rebuilt = ", rebuilt by another compiler than the record's" if variant.rebuilt else ""
        rebuilt += ", results vary between runs" if variant.varies else ""
        lines.append(
            f"  kept {variant.name}: {variant.label} ({variant.bytes} bytes, "
            f"{variant.wins} problem{'s' * (variant.wins != 1)}{rebuilt}{_code(variant)})"
        )
    for failure in one.failures[:failures]:
        times = f" on {failure.count} problems" if failure.count > 1 else ""
        lines.append(f"  dropped {failure.candidate}: {failure.status}{times}: {failure.reason}")
        if failure.again:
            lines.append(f"    again: {failure.again}")
    if len(one.failures) > failures:
        lines.append(f"  and {len(one.failures) - failures} more dropped; `--failures` of `aot-tune report` lists them")
    return lines


def _code(row: VariantRow) -> str:
    """What the code of a variant takes, and how near to the roofline it comes."""
    parts = [format_resources(row.resources)]
    parts += [f"{100 * row.roofline:.0f} % of the roofline at best"] if row.roofline is not None else []
    return "".join(f"; {part}" for part in parts if part)


def _candidates(one: OperatorReport) -> list[str]:
    """The table of candidates that were timed."""
    head = ("candidate", "config", "problems", "roofline", "on", "code")
    rows = [
        (
            row.name,
            row.label,
            str(row.problems),
            "-" if row.roofline is None else f"{100 * row.roofline:.0f} %",
            row.where or "-",
            format_resources(row.resources) or "not compiled here",
        )
        for row in one.candidates
    ]
    return columns([head, *rows])


def _problems(one: OperatorReport) -> list[str]:
    """The table of problems; their weights are in it where these differ."""
    head = ("problem", "winner", "time", "spread", "noise", "rate", "roofline", "baseline", "its time", "x", "dispatch")
    rows = [head, *(_problem(row) for row in one.problems)]
    if one.weighted_regret is not None:
        weights = ["weight", *(f"{row.weight:g}" for row in one.problems)]
        rows = [(row[0], weight, *row[1:]) for row, weight in zip(rows, weights, strict=True)]
    return columns(rows)


def _tried(one: OperatorReport) -> str:
    """How many candidates were tried and what came of them, and how many there was no reason or time to try."""
    left = one.statuses.get(NOT_TRIED, 0)
    if left and left == one.tried:
        return f"tried none of {left}"
    counts = ", ".join(f"{n} {status}" for status, n in sorted(one.statuses.items()) if n and status != NOT_TRIED)
    return f"tried {one.tried - left} ({counts or 'nothing'})" + (f" and not {left} more" if left else "")


def _curves(one: OperatorReport) -> list[str]:
    """What each variant that is kept is good for: the regret with the first, the first two, and so on."""
    found = []
    for curve in one.curves if one.survey is not None else ():
        percents = ", ".join(f"{100 * regret:.1f}" for regret in curve.regret)
        of = f" of {curve.kind}" if curve.kind else ""
        found.append(f"  mean regret with 1, 2, ... variants{of}: {percents} %")
    return found


def _remarks(rows: Sequence[ProblemRow]) -> list[str]:
    """What is to be said of times, once for all problems of which it is to be said."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.remark:
            found.setdefault(row.remark, []).append(row.problem)
    return [
        f"  NOTE {first}{f' and {len(more)} more' if more else ''}: {remark}"
        for remark, (first, *more) in found.items()
    ]


def _on_others(one: OperatorReport) -> str:
    """What dispatch costs on shapes that it did not learn from, where there are enough of them to say so."""
    if one.survey is not None:
        return (
            f", {_percent(one.survey.mean)} on {one.survey.shapes} surveyed shapes left out of learning "
            f"(95 % of them within {_percent(one.survey.p95)}; worst {_percent(one.survey.worst)} on "
            f"'{one.survey.where}')"
        )
    if one.held_out_regret is None:
        return ""
    judged = len(one.problems) - one.not_held_out
    if judged < _ENOUGH:
        return f", on other shapes unknown ({judged} could be left out of learning, it takes {_ENOUGH})"
    without = f" (without {one.not_held_out} of {len(one.problems)}: what is picked was never timed there)"
    return f", {_percent(one.held_out_regret)} on shapes left out of learning" + without * bool(one.not_held_out)


def _problem(row: ProblemRow) -> tuple[str, ...]:
    name, theirs = row.baseline or ("-", math.nan)
    return (
        row.problem,
        row.winner + (" (tie)" if row.tie else ""),
        format_time(row.ns),
        _percent(row.spread),
        _percent(row.noise),
        f"{row.flops / row.ns:.1f} GFLOP/s {row.bytes / row.ns:.1f} GB/s",
        "-" if row.roofline is None else f"{_percent(row.roofline)} {row.bound}".rstrip(),
        name,
        "-" if math.isnan(theirs) else format_time(theirs),
        _speedup(row),
        "=" if row.picked == row.winner else f"{row.picked} (+{_percent(row.regret)})",
    )


def _speedup(row: ProblemRow) -> str:
    if row.speedup is None:
        return "-"
    error = row.paired[1] if row.paired is not None else 0.0
    return f"{row.speedup:.2f}" + (f" ± {error:.2f}" if error >= 0.005 else "")


def _mean_speedup(rows: Sequence[ProblemRow]) -> float | None:
    logs = [math.log(row.speedup) for row in rows if row.speedup]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 118, initial_indent="          ", subsequent_indent="            ")


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines of a table."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
