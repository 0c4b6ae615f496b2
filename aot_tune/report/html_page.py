"""The report as one HTML file: tables that work without a script, and data for charts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import msgspec

from aot_tune.report.chart_records import Bar, OperatorCharts, charts_of, code_bytes, time_bars
from aot_tune.report.code_resources import format_resources
from aot_tune.report.report_records import NOT_TRIED, OperatorReport, Report, SpentOf, SurveyPoint
from aot_tune.report.report_words import format_time, held_out_of

__all__ = ["html_page"]

_FOLDER = Path(__file__).parent / "page"
_STYLES = ("page.css", "tables.css", "charts.css")
_SCRIPTS = ("svg.js", "tables.js", "races.js", "curves.js", "maps.js", "page.js")
_WORST = 8
"""How many surveyed shapes are listed: those on which dispatch loses most."""
_SPENT: dict[SpentOf, str] = {
    "clock": "On the clock",
    "compilers": "Compilers, all cores together",
    "device": "Measuring, all devices together",
}


@dataclass(frozen=True)
class _Section:
    """An operator on a target, as the template shows it."""

    id: str
    one: OperatorReport
    charts: OperatorCharts
    worst: Sequence[SurveyPoint]
    bytes: int

    @property
    def data(self) -> str:
        """The charts as JSON."""
        return _json(self.charts)

    @property
    def tried(self) -> int:
        """How many candidates were tried."""
        return self.one.tried - self.one.statuses.get(NOT_TRIED, 0)


def html_page(report: Report) -> str:
    """One self-contained HTML file."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "time": format_time,
        "percent": _percent,
        "bytes": _bytes,
        "resources": format_resources,
        "number": _number,
        "held_out": held_out_of,
    }
    return environment.get_template("page.html.j2").render(
        report=report,
        sections=[_section(one) for one in report.operators],
        spent=_json(time_bars(report.spent, _SPENT)),
        total=code_bytes(report),
        style=_files(_STYLES),
        script=_files(_SCRIPTS),
    )


def _section(one: OperatorReport) -> _Section:
    points = one.survey.points if one.survey is not None else ()
    worst = sorted((p for p in points if p.held_out and p.regret), key=lambda p: (-(p.regret or 0.0), p.problem))
    return _Section(
        id=re.sub(r"[^A-Za-z0-9_-]", "-", f"{one.operator}-{one.target}"),
        one=one,
        charts=charts_of(one),
        worst=worst[:_WORST],
        bytes=sum(row.bytes for row in one.variants),
    )


def _json(value: OperatorCharts | dict[str, list[Bar]]) -> str:
    """JSON for a script element: it contains no `<`."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def _files(names: Sequence[str]) -> str:
    return "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in names)


def _percent(fraction: float) -> str:
    return "∞" if math.isinf(fraction) else f"{100 * fraction:.1f} %"


def _bytes(count: float) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def _number(value: float) -> str:
    """A number with three digits, or more if its whole part has more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
