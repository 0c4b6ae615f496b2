"""The verdict that ends a build, in a few lines. The report has the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from aot_tune.report.report_records import NOT_TRIED, OperatorReport, Report
from aot_tune.report.report_text import counted, slower_rows

MACHINE_BUSY = "the machine was busy"
"""The remark of a report on other programs begins so."""
_NAMED = 3
"""Of more operators with the same remark, only so many are named."""


def verdict_lines(report: Report, missing: Mapping[str, Sequence[str]]) -> list[str]:
    """How fast what was tuned is beside its baselines, and what was not compared or tuned.

    Args:
        report: of the build, its newest targets first.
        missing: operators without a baseline here, each with the modules that would bring one.
    """
    lines = []
    families: dict[str, dict[str, OperatorReport]] = {}
    for part in report.operators:
        if part.problems:
            families.setdefault(part.target.partition("-")[0], {}).setdefault(part.operator, part)
    for parts in families.values():
        compared = [_speed(part) for part in parts.values() if part.speedup]
        where = f"on {next(iter(parts.values())).target}: " if len(families) > 1 else ""
        lines += [where + "; ".join(compared)] if compared else []
    dropped = [text for parts in families.values() for part in parts.values() if (text := _dropped(part))]
    lines += [f"dropped candidates: {'; '.join(dropped)}"] if dropped else []
    for operators, fix in (
        ([name for name, modules in missing.items() if modules], f"install {' or '.join(_modules(missing))}"),
        ([name for name, modules in missing.items() if not modules], "declare `baselines`"),
    ):
        have = "has" if len(operators) == 1 else "have"
        lines += [f"{names_text(operators)} {have} no baseline: {fix} to compare"] if operators else []
    tuned = {operator for parts in families.values() for operator in parts}
    untuned = list(dict.fromkeys(part.operator for part in report.operators if part.operator not in tuned))
    if untuned:
        lines.append(f"not tuned, with generic kernels only: {names_text(untuned)}")
    return lines + [f"NOTE {note}" for note in report.notes if note.startswith(MACHINE_BUSY)]


def _speed(part: OperatorReport) -> str:
    """Such as `gemm 2.8 x numpy, slower on 1 of 34`."""
    names = Counter(row.baseline[0].partition(".")[0] for row in part.problems if row.baseline is not None)
    slower = len(slower_rows(part))
    behind = f", slower on {slower} of {len(part.problems)}" if slower else ""
    return f"{part.operator} {part.speedup:.1f} x {names.most_common(1)[0][0]}{behind}"


def _modules(missing: Mapping[str, Sequence[str]]) -> list[str]:
    return sorted({module for modules in missing.values() for module in modules})


def _dropped(part: OperatorReport) -> str:
    """Such as `gemm 3 of 6 (crashed)`; empty if none was."""
    bad = {status: count for status, count in part.statuses.items() if status not in ("ok", NOT_TRIED)}
    return f"{part.operator} {sum(bad.values())} of {part.tried} ({', '.join(sorted(bad))})" if bad else ""


def names_text(operators: Sequence[str]) -> str:
    """The names of operators, if they are few."""
    if len(operators) <= _NAMED:
        return ", ".join(operators)
    return f"{', '.join(operators[: _NAMED - 1])} and {counted(len(operators) - _NAMED + 1, 'other')}"


def told_together(remarks: Iterable[tuple[str, str]]) -> list[str]:
    """Remarks on operators, each once: `gemm, softmax: remark`. `remarks` are pairs of an operator and a remark."""
    by_remark: dict[str, list[str]] = {}
    for operator, remark in remarks:
        by_remark.setdefault(remark, []).append(operator)
    return [f"{names_text(operators)}: {remark}" for remark, operators in by_remark.items()]
