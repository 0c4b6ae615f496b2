"""The report as one HTML file: tables that work without a script, and data for charts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import msgspec

from aot_tune.report.report_records import (
    NOT_TRIED,
    DeviceRow,
    DispatchMap,
    OperatorReport,
    Report,
    SpentOf,
    SurveyPoint,
    TimeSpent,
    VariantRow,
)
from aot_tune.report.report_text import DECIDES, format_resources, format_time, held_out_of, slower_rows
from aot_tune.report.verdict import MACHINE_BUSY

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


_COUNTED = {"cores": "cores", "threads": "threads", "sm_count": "multiprocessors", "memory_gib": "GiB"}
"""What facts of a device count."""
_RATIOS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)


class Bar(msgspec.Struct, frozen=True):
    """A labelled amount: bytes or seconds, and the number of things that it is the sum of."""

    label: str
    amount: float
    count: int = 1


class _Places:
    """Numbers texts in the order of their first use."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


def _charts_of(part: OperatorReport) -> dict[str, object]:
    """All that the charts of an operator show, as the page's scripts read it.

    Variants, candidates and baselines are places in `names`, and kinds of calls are places in `kinds`. `whose` says
    what each name is, "" if no race tells. Extents are by `dims`. What there is much of is lists without names.
    """
    names, kinds = _Places(), _Places()
    for curve in part.curves:
        kinds(curve.kind)
    dims = list(dict.fromkeys(d for row in part.problems for d in row.dims))
    whose = {r.name: r.whose for row in part.problems for r in row.runners}
    problems = [
        (
            *(row.problem, kinds(row.kind), [row.dims.get(d, 0) for d in dims], names(row.picked), names(row.winner)),
            *(row.regret, row.held_out),
            [(names(r.name), r.ns, r.low, r.high, r.samples, r.raced) for r in row.runners],
        )
        for row in part.problems
    ]
    curves = [
        {"kind": kinds(c.kind), "variants": [*map(names, c.variants)], "regret": c.regret, "served": c.served}
        for c in part.curves
    ]
    maps = [_map(m, kinds, names) for m in part.maps]
    points = [
        (
            *(p.problem, kinds(p.kind), [p.dims.get(d, 0) for d in dims], names(p.best), names(p.picked)),
            *(p.ns, p.regret, p.held_out),
        )
        for p in (part.survey.points if part.survey is not None else ())
    ]
    return {
        "dims": dims,
        "kinds": list(kinds.numbers),
        "names": list(names.numbers),
        "whose": [whose.get(n, "") for n in names.numbers],
        "problems": problems,
        "curves": curves,
        "maps": maps,
        "points": points,
        "sizes": _size_bars(part.variants),
        "seconds": [Bar(phase, seconds) for phase, seconds in part.seconds.items()],
    }


def _map(grid: DispatchMap, kinds: _Places, names: _Places) -> dict[str, object]:
    places = [*map(names, grid.variants), -1]
    picks = [[places[p] for p in row] for row in grid.picks]
    whole = msgspec.structs.asdict(grid)
    del whole["variants"]
    return {**whole, "kind": kinds(grid.kind), "picks": picks}


def _size_bars(variants: Iterable[VariantRow]) -> list[Bar]:
    """Bytes of the code of each kernel's variants, the largest first. Variants of unknown size are left out."""
    by_kernel: dict[str, list[int]] = {}
    for row in variants:
        if row.bytes:
            by_kernel.setdefault(row.kernel or row.label.split()[0], []).append(row.bytes)
    bars = [Bar(kernel, sum(sizes), len(sizes)) for kernel, sizes in by_kernel.items()]
    return sorted(bars, key=lambda b: (-b.amount, b.label))


def _time_bars(spent: Iterable[TimeSpent], titles: Mapping[SpentOf, str]) -> dict[str, list[Bar]]:
    """Where the seconds went, the largest first, by title. If all have the same target, the title names it."""
    by_title = {}
    for of, title in titles.items():
        rows = [row for row in spent if row.of == of]
        targets = {row.target for row in rows}
        alone = len(targets) == 1
        bars = [Bar(row.what if alone or not row.target else f"{row.what}, {row.target}", row.seconds) for row in rows]
        of_all = f", for {rows[0].target}" if alone and rows[0].target else ""
        if bars:
            by_title[title + of_all] = sorted(bars, key=lambda b: (-b.amount, b.label))
    return by_title


@dataclass(frozen=True)
class _Section:
    """An operator on a target, as the template shows it."""

    id: str
    part: OperatorReport
    older: bool
    notes: Sequence[str]
    charts: Mapping[str, object]
    worst: Sequence[SurveyPoint]
    bytes: int

    @property
    def tried(self) -> int:
        return self.part.tried - self.part.statuses.get(NOT_TRIED, 0)


@dataclass(frozen=True)
class _SpeedRow:
    """An operator's speed-up over baselines: a bar from 1 to the mean, and marks. Places are in percent."""

    section: _Section
    left: float
    width: float
    marks: Sequence[float]
    slower: int

    @property
    def behind(self) -> bool:
        """Whether the mean is slower than baselines."""
        return (self.section.part.speedup or 1.0) < 1


class _Speed:
    """Speed-ups of all operators on one logarithmic axis."""

    def __init__(self, sections: Iterable[_Section]) -> None:
        ratios = {s.id: [r.speedup for r in s.part.problems if r.speedup] for s in sections if s.part.speedup}
        every = [ratio for several in ratios.values() for ratio in several]
        self._low = max(min(0.5, *every), 0.1) if every else 0.5
        self._high = min(max(2.0, *every), 50.0) if every else 2.0
        self.even = self._place(1.0)
        self.ticks = [(f"{t:g}", self._place(t)) for t in _RATIOS if self._low <= t <= self._high]
        self.rows = [self._row(s, ratios[s.id]) for s in sections if s.id in ratios]

    def _place(self, ratio: float) -> float:
        within = min(max(ratio, self._low), self._high)
        return round(100 * math.log(within / self._low) / math.log(self._high / self._low), 2)

    def _row(self, section: _Section, ratios: Sequence[float]) -> _SpeedRow:
        mean = self._place(section.part.speedup or 1.0)
        return _SpeedRow(
            section=section,
            left=min(mean, self.even),
            width=round(abs(mean - self.even), 2),
            marks=[self._place(r) for r in ratios],
            slower=len(slower_rows(section.part)),
        )


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
        "json": _json,
        "held_out": held_out_of,
        "about": _about,
    }
    older = _older(report)
    sections = [_section(part, report.notes, older=(part.operator, part.target) in older) for part in report.operators]
    on_parts = {note for part in report.operators for note in _on_part(part, report.notes)}
    return environment.get_template("page.html.j2").render(
        report=report,
        decides=DECIDES,
        sections=sections,
        speed=_Speed(sections),
        grave=MACHINE_BUSY,
        notes=[note for note in report.notes if note not in on_parts],
        spent=_time_bars(report.spent, _SPENT),
        # a variant that serves several targets is in several reports, but counts once
        total=sum({(o.operator, v.name): v.bytes for o in report.operators for v in o.variants}.values()),
        style=_files(_STYLES),
        script=_files(_SCRIPTS),
    )


def _older(report: Report) -> set[tuple[str, str]]:
    """Operators on CPU targets before the newest that they are for."""
    places = {target: number for number, target in enumerate(report.targets) if target.startswith("cpu-")}
    newest: dict[str, int] = {}
    for part in report.operators:
        newest[part.operator] = max(newest.get(part.operator, -1), places.get(part.target, -1))
    return {(p.operator, p.target) for p in report.operators if places.get(p.target, math.inf) < newest[p.operator]}


def _about(device: DeviceRow) -> str:
    """A device in a sentence or two."""
    words = [f"{v} {_COUNTED[name]}" if name in _COUNTED else f"{name} {v}" for name, v in device.facts.items()]
    load = f" Other processes used {device.load:.2g} cores in the middle one of {device.races} races"
    busy = f", and disturbed {device.busy}" if device.busy else ""
    return f"{device.name}: {', '.join(words)}." + f"{load}{busy}." * bool(device.races)


def _on_part(part: OperatorReport, notes: Iterable[str]) -> list[str]:
    """The notes on an operator on a target."""
    return [
        n for n in notes if n.startswith(f"{part.operator} on {part.target}: ") or n == f"{part.operator}: {part.note}"
    ]


def _section(part: OperatorReport, notes: Iterable[str], *, older: bool) -> _Section:
    points = part.survey.points if part.survey is not None else ()
    worst = sorted((p for p in points if p.held_out and p.regret), key=lambda p: (-(p.regret or 0.0), p.problem))
    return _Section(
        id=re.sub(r"[^A-Za-z0-9_-]", "-", f"{part.operator}-{part.target}"),
        part=part,
        older=older,
        notes=[note.partition(": ")[2] for note in _on_part(part, notes)],
        charts=_charts_of(part),
        worst=worst[:_WORST],
        bytes=sum(row.bytes for row in part.variants),
    )


def _json(value: object) -> str:
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
