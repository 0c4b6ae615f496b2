"""The report on a terminal: it fits the width, and has colour if the terminal has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from aot_tune.report.report_records import OperatorReport, ProblemRow, Report
from aot_tune.report.report_text import (
    counted,
    curve_lines,
    format_resources,
    format_time,
    held_out_of,
    on_others_text,
    percent_text,
    regime_table,
    remark_lines,
    speedup_text,
    tried_text,
    use_text,
)

_NARROW, _ROOMY, _WIDE = 60, 100, 130
"""Widths in columns: below the first, tables become lists; from the second on, they have more columns."""
_COSTS = 0.0005
"""A narrow list mentions from this regret on that dispatch does not pick the winner."""
_GOOD, _BAD, _NOTE, _QUIET, _NAME = "green", "red", "yellow", "dim", "cyan"


def show_report(report: Report, *, failures: int, candidates: bool) -> None:
    """Print a report, with so many failures of each operator; plain text with NO_COLOR or TERM=dumb."""
    out = Console(highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")
    for part in _parts(report, failures, candidates, out.width):
        out.print(part, soft_wrap=False)


def _parts(report: Report, failures: int, candidates: bool, width: int) -> Iterator[RenderableType]:
    yield _facts(report)
    for note in report.general_notes:
        yield _hanging("NOTE", Text(note), _NOTE)
    if len(report.operators) > 1:
        yield ""
        yield _overview(report.operators, width)
    for part in report.operators:
        yield ""
        yield Rule(Text(f"{part.operator} on {part.target}", "bold"), align="left", style=_QUIET)
        yield from _operator(part, failures, candidates, width)
    yield ""
    yield Text("`--wide` has all columns, `--html` writes a page with charts.", _QUIET)


def _facts(report: Report) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style=_QUIET, no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("library", Text(report.library, "bold"))
    table.add_row("mode", report.mode)
    table.add_row("targets", ", ".join(report.targets) or "none: generic variants only")
    for device in (*report.devices, *report.units):
        table.add_row("device", Text(device))
    for line in report.workload:
        table.add_row("workload", Text(line))
    if any(part.tried for part in report.operators):
        for name, *_ in report.measuring or ((report.policy,),):
            table.add_row("policy", Text(name))
    return table


def _overview(operators: Sequence[OperatorReport], width: int) -> RenderableType:
    narrow = width < _NARROW
    table = _table("operator", *(() if narrow else ("target",)))
    for head in ("problems", *(() if narrow else ("kept",)), "x", "regret", *(() if narrow else ("held out",))):
        table.add_column(head, justify="right", no_wrap=True)
    for part in operators:
        held = held_out_of(part)
        named = [Text(part.operator, _NAME)] if narrow else [Text(part.operator, _NAME), Text(part.target)]
        cells: list[RenderableType] = [
            *named,
            str(len(part.problems)),
            *(() if narrow else (str(len(part.variants)),)),
            _ratio(part.speedup, "-" if part.speedup is None else f"{part.speedup:.2f}"),
            percent_text(part.mean_regret) if part.problems else "-",
            *(() if narrow else ("-" if held is None else percent_text(held),)),
        ]
        table.add_row(*cells)
    return table


def _operator(part: OperatorReport, failures: int, candidates: bool, width: int) -> Iterator[RenderableType]:
    yield Text(f"{tried_text(part)}, kept {len(part.variants)}")
    if part.note:
        yield _hanging("NOTE", Text(part.note), _NOTE)
    if part.problems:
        yield _listed(part.problems) if width < _NARROW else _problems(part, width)
        mean = part.mean_regret if part.weighted_regret is None else part.weighted_regret
        weight = "" if part.weighted_regret is None else " by weight"
        yield Text(f"regret of dispatch: {percent_text(mean)} in the mean{weight}{on_others_text(part)}")
        if part.speedup:
            yield Text.assemble(_ratio(part.speedup, f"{part.speedup:.2f}"), " x the baseline in the geometric mean")
        yield from _regimes(part, width)
        yield from (Text(line.strip()) for line in curve_lines(part))
        yield from (Text(line.strip(), _NOTE) for line in remark_lines(part.problems))
    if part.roofline_of:
        yield Text(f"roofline: shares are of {part.roofline_of}", _QUIET)
    yield from _kept(part)
    if candidates:
        yield from _candidates(part)
    yield from _failures(part, failures)


def _problems(part: OperatorReport, width: int) -> Table:
    """The problems as a table. A wider terminal gets more columns."""
    roomy, wide, weighed = width >= _ROOMY, width >= _WIDE, part.weighted_regret is not None
    table = _table("problem")
    for head in (*(("weight",) if weighed else ()), "time", *(("spread",) if roomy else ()), "x", "roof"):
        table.add_column(head, justify="right", no_wrap=True)
    for head in (*(("baseline",) if wide else ()), "winner", *(("dispatch",) if roomy else ())):
        table.add_column(head, overflow="fold")
    for row in part.problems:
        other = "" if row.picked == row.winner else f"{row.picked} +{percent_text(row.regret)}"
        winner = row.winner + (" (tie)" if row.tie else "")
        if not roomy and row.regret >= _COSTS:
            winner += f"\n> {other}"
        baseline, theirs = row.baseline or ("-", 0.0)
        table.add_row(
            Text(row.problem),
            *((f"{row.weight:g}",) if weighed else ()),
            format_time(row.ns),
            *((percent_text(row.spread),) if roomy else ()),
            _ratio(row.speedup, speedup_text(row) if roomy else speedup_text(row).split(" ")[0]),
            "-" if row.roofline is None else f"{100 * row.roofline:.0f} %",
            *((Text(f"{baseline} {format_time(theirs) if theirs else ''}".rstrip()),) if wide else ()),
            Text(winner, _NAME),
            *((Text(other or "="),) if roomy else ()),
        )
    return table


def _regimes(part: OperatorReport, width: int) -> Iterator[Table]:
    """What decides in each regime, and what that loses. A wider terminal gets more columns."""
    head, *rows = regime_table(part) or [()]
    few = {"shapes", "held out", "95 % within"} if width < _NARROW else set[str]()
    places = [p for p, name in enumerate(head) if name not in few and (name != "on" or width >= _WIDE)]
    if rows:
        table = _table()
        for place in places:
            number = head[place] not in ("calls", "regime", "decided by", "on")
            table.add_column(head[place], justify="right" if number else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(row[place]) for place in places))
        yield table


def _listed(rows: Sequence[ProblemRow]) -> Group:
    """The problems as a list, for a terminal that is too narrow for a table."""
    lines: list[RenderableType] = []
    for row in rows:
        lines.append(Text(row.problem))
        line = Text.assemble(format_time(row.ns), "  ")
        if row.speedup is not None and row.baseline is not None:
            line.append_text(_ratio(row.speedup, f"{row.speedup:.2f}")).append(f" x {row.baseline[0]}")
        lines += [Padding(line, (0, 0, 0, 2)), Padding(Text(row.winner, _NAME), (0, 0, 0, 2))]
        if row.regret >= _COSTS:
            lines.append(Padding(Text(f"> {row.picked} +{percent_text(row.regret)}"), (0, 0, 0, 2)))
    return Group(*lines)


def _kept(part: OperatorReport) -> Iterator[RenderableType]:
    for row in part.variants:
        facts = [f"{row.bytes} bytes", use_text(part, row)]
        facts += [format_resources(row.resources)] if row.resources else []
        facts += [f"{100 * row.roofline:.0f} % of the roofline at best"] if row.roofline is not None else []
        facts += ["rebuilt by another compiler than the record's"] if row.rebuilt else []
        facts += ["results vary between runs"] if row.varies else []
        line = Text.assemble((row.name, _NAME), f": {row.label} ", (f"({'; '.join(filter(None, facts))})", _QUIET))
        yield _hanging("kept", line)


def _candidates(part: OperatorReport) -> Iterator[RenderableType]:
    for row in part.candidates:
        best = "" if row.roofline is None else f"; {100 * row.roofline:.0f} % of the roofline on {row.where}"
        code = format_resources(row.resources) or "not compiled here"
        line = Text.assemble(
            (row.name, _NAME), f": {row.label} ", (f"({counted(row.problems, 'problem')}; {code}{best})", _QUIET)
        )
        yield _hanging("timed", line)


def _failures(part: OperatorReport, most: int) -> Iterator[RenderableType]:
    for failure in part.failures[:most]:
        times = f" on {failure.count} problems" if failure.count > 1 else ""
        line = Text.assemble(f"{failure.candidate}: ", (failure.status, _BAD), f"{times}: {failure.reason}")
        yield _hanging("dropped", line, _BAD)
        if failure.again:
            yield _hanging("again", Text(failure.again))
    if len(part.failures) > most:
        yield Text(f"and {len(part.failures) - most} more dropped; `--failures` lists them")


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=_QUIET)
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


def _hanging(word: str, text: Text, style: str = _QUIET) -> Table:
    """A word, and a text in a column of its own beside it."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(style=style, no_wrap=True, min_width=7)
    table.add_column(overflow="fold")
    table.add_row(word, text)
    return table


def _ratio(value: float | None, text: str) -> Text:
    """A speedup, coloured by whether it is above or below 1."""
    if value is None:
        return Text("-")
    return Text(text, _GOOD if value >= 1.005 else _BAD if value < 0.995 else "")
