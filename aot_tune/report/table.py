"""The report as people read it in a terminal."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence

from aot_tune.report.code_resources import format_resources
from aot_tune.report.report_records import MemoryPeak, OperatorReport, ProblemRow, Report, VariantRow
from aot_tune.report.report_words import (
    curve_lines,
    format_time,
    on_others_text,
    percent_text,
    remark_lines,
    slower_line,
    speedup_text,
    tried_text,
    use_text,
)
from aot_tune.support.memory_limits import size_text

__all__ = ["columns", "format_report"]


def format_report(report: Report, *, failures: int = 5, candidates: bool = False) -> str:
    """The whole report as text.

    Args:
        report: what to show.
        failures: how many dropped candidates of an operator are listed at most.
        candidates: also list those that were timed.
    """
    lines = [
        f"library   {report.library}",
        f"mode      {report.mode}",
        f"targets   {', '.join(report.targets) or 'none: generic variants only'}",
    ]
    lines += [f"device    {d}" for d in report.devices]
    lines += [f"workload  {line}" for line in report.workload]
    lines += [f"compiler  {name}: {version}" for name, version in sorted(report.toolchains.items())]
    tuned = any(one.tried for one in report.operators)  # else nothing was timed
    for name, *words in (report.measuring or ((report.policy,),)) if tuned else ():
        lines += [f"policy    {name}", *(line for text in words for line in _wrapped(text))]
    lines += [f"memory    at most {_held(report.memory)}"] if report.memory else []
    lines += [f"NOTE      {note}" for note in report.notes]
    for one in report.operators:
        lines += ["", *_operator(one, failures)]
        lines += ["  " + line for line in _candidates(one)] if candidates and one.candidates else []
    return "\n".join(lines) + "\n"


def _held(peaks: Sequence[MemoryPeak]) -> str:
    """How much each kind of process held."""
    return ", ".join(f"{size_text(peak.bytes)} in {peak.what}" for peak in peaks)


def _operator(one: OperatorReport, failures: int) -> list[str]:
    lines = [f"{one.operator} on {one.target}: {tried_text(one)}, kept {len(one.variants)}"]
    if one.note:
        lines.append(f"  NOTE {one.note}")
    if one.problems:
        lines += ["  " + line for line in _problems(one)]
        began = Counter(p.began for p in one.problems if p.began)
        lines += [f"  began with {what}: {count} problems" for what, count in began.most_common()]
        regret = percent_text(one.mean_regret)
        mean = f"{regret} in the mean"
        if one.weighted_regret is not None:
            mean = f"{percent_text(one.weighted_regret)} in the mean by weight, {regret} without weights"
        text = f"  regret of dispatch: {mean}" + on_others_text(one)
        curves = curve_lines(one)
        speedup = one.speedup
        lines.append(text + (f"; {speedup:.2f} x the baseline in the geometric mean" if speedup else ""))
        lines += [*curves, *slower_line(one), *remark_lines(one.problems)]
    if one.roofline_of:
        lines.append(f"  roofline: shares are of {one.roofline_of}")
    for variant in one.variants:
        rebuilt = ", rebuilt by another compiler than the record's" if variant.rebuilt else ""
        rebuilt += ", results vary between runs" if variant.varies else ""
        lines.append(
            f"  kept {variant.name}: {variant.label} ({variant.bytes} bytes, "
            f"{use_text(one, variant)}{rebuilt}{_code(variant)})"
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
    """The resources of a variant's code, and how near it is to the roofline."""
    parts = [format_resources(row.resources)]
    parts += [f"{100 * row.roofline:.0f} % of the roofline at best"] if row.roofline is not None else []
    return "".join(f"; {part}" for part in parts if part)


def _candidates(one: OperatorReport) -> list[str]:
    """The table of timed candidates."""
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
    """The table of problems, with their weights if these differ."""
    head = ("problem", "winner", "time", "spread", "noise", "rate", "roofline", "baseline", "its time", "x", "dispatch")
    rows = [head, *(_problem(row) for row in one.problems)]
    if one.weighted_regret is not None:
        weights = ["weight", *(f"{row.weight:g}" for row in one.problems)]
        rows = [(row[0], weight, *row[1:]) for row, weight in zip(rows, weights, strict=True)]
    return columns(rows)


def _problem(row: ProblemRow) -> tuple[str, ...]:
    name, theirs = row.baseline or ("-", math.nan)
    return (
        row.problem,
        row.winner + (" (tie)" if row.tie else ""),
        format_time(row.ns),
        percent_text(row.spread),
        percent_text(row.noise),
        f"{row.flops / row.ns:.1f} GFLOP/s {row.bytes / row.ns:.1f} GB/s",
        "-" if row.roofline is None else f"{percent_text(row.roofline)} {row.bound}".rstrip(),
        name,
        "-" if math.isnan(theirs) else format_time(theirs),
        speedup_text(row),
        "=" if row.picked == row.winner else f"{row.picked} (+{percent_text(row.regret)})",
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 118, initial_indent="          ", subsequent_indent="            ")


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines of a table."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
