"""A report that has something of everything, and a parser of the pages that are made of reports."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from aot_tune.report.report_records import (
    CandidateRow,
    DeviceRow,
    DispatchMap,
    DroppedCandidate,
    OperatorReport,
    ProblemRow,
    RaceRunner,
    RegimeRow,
    RegretCurve,
    Report,
    SurveyPoint,
    SurveyRow,
    TimeSpent,
    VariantRow,
)

HOSTILE = "</script><script>alert('1 & 2')</script>"


def runner(name: str, whose: Any, ns: float, *, raced: bool = True) -> RaceRunner:
    return RaceRunner(
        name=name, whose=whose, ns=ns, low=0.99 * ns, high=1.02 * ns, samples=13 if raced else 2, raced=raced
    )


def row(m: int, dtype: str, *, picked: str = "rows_2", held_out: float | None = 0.0) -> ProblemRow:
    """A problem of one of two kinds, on which `rows_1` won."""
    ours, vendors, theirs = 1000.0 * m, 1100.0 * m, 1250.0 * m
    return ProblemRow(
        problem=f"M={m} N=64 T={dtype}",
        winner="rows_1",
        ns=ours,
        spread=0.021,
        picked=picked,
        regret=0.0 if picked == "rows_1" else 0.031,
        tie=m == 1,
        baselines={"torch.product": theirs},
        flops=2 * m * 64,
        bytes=4 * m * 64,
        noise=0.01,
        paired=(1.25, 0.02),
        remark="cannot be captured in a CUDA graph: no; timed on a stream" if m == 1 else "",
        others=2 if m == 1 else 0,
        roofline=0.71,
        bound="memory",
        kind=f"T={dtype}",
        dims={"M": m, "N": 64},
        runners=(
            runner("rows_1", "kernel", ours),
            runner("rows_2", "kernel", 1.031 * ours, raced=False),
            runner("vendor_1", "vendor", vendors),
            runner("torch.product", "baseline", theirs),
        ),
        held_out=held_out,
    )


def point(m: int, dtype: str, regret: float | None, *, held_out: bool) -> SurveyPoint:
    return SurveyPoint(
        problem=f"M={m} N=77 T={dtype}",
        kind=f"T={dtype}",
        dims={"M": m, "N": 77},
        best="rows_1",
        ns=1500.0,
        picked="rows_1" if regret == 0 else "rows_2",
        regret=regret,
        held_out=held_out,
    )


def variant(name: str, bytes_: int, **about: Any) -> VariantRow:
    kernel = name.partition("_")[0]
    label = f"{kernel} W=4 {name}"
    return VariantRow(
        name=name, label=label, target="cuda-sm_90a", bytes=bytes_, wins=1, kernel=kernel, **{"rebuilt": False, **about}
    )


PRODUCT = OperatorReport(
    operator="product",
    target="cuda-sm_90a",
    tried=9,
    statuses={"ok": 6, "crashed": 1, "not-tried": 2},
    problems=(row(1, "f32"), row(16, "f32", picked="rows_1"), row(16, "bf16"), row(4096, "bf16", held_out=0.2)),
    variants=(
        variant(
            "rows_1", 7000, resources={"registers": 40, "spill_bytes": 0, "shared": 1032, "stack": 16}, roofline=0.71
        ),
        variant("rows_2", 3000, varies=True, rebuilt=True),
        variant("generic_1", 500),
    ),
    failures=(
        DroppedCandidate(
            candidate="rows W=16",
            status="crashed",
            reason=f"SIGSEGV in launch: {HOSTILE}",
            count=3,
            again="aot-tune try product rows_9 --problem 'M=1 N=64 T=f32'",
        ),
        DroppedCandidate(
            candidate="rows W=99", status="compile-failed", reason="rows.cu.j2:12: no such thing", count=1
        ),
    ),
    mean_regret=0.0155,
    held_out_regret=None,
    survey=SurveyRow(
        shapes=3,
        learned_from=2,
        mean=0.05,
        p95=0.12,
        worst=0.12,
        where="M=3 N=77 T=f32",
        points=(
            point(3, "f32", 0.12, held_out=True),
            point(5, "f32", 0.0, held_out=True),
            point(7, "bf16", 0.03, held_out=True),
            point(9, "bf16", None, held_out=False),
            point(11, "bf16", 0.0, held_out=False),
        ),
        regimes=(
            RegimeRow(
                kind="T=f32",
                regime="few rows",
                decides="expected",
                shapes=2,
                held_out=2,
                mean=0.06,
                p95=0.12,
                worst=0.12,
                where="M=3 N=77 T=f32",
            ),
            RegimeRow(kind="T=bf16", regime="few rows", decides="nearest", shapes=3, held_out=0),
        ),
    ),
    candidates=(
        CandidateRow(
            name="rows_1",
            label="rows W=4",
            problems=4,
            resources={"registers": 255, "spill_bytes": 64, "shared": 96, "dynamic_shared": 64},
            roofline=0.71,
            where="M=16 N=64 T=f32",
        ),
        CandidateRow(name="rows_2", label="rows W=8", problems=1),
    ),
    roofline_of="a data sheet",
    curves=(
        RegretCurve(kind="T=f32", variants=("generic_1", "rows_1"), regret=(3.5, 0.02), served=(0.5, 1.0)),
        RegretCurve(kind="T=bf16", variants=("rows_1", "rows_2"), regret=(0.2, 0.0), served=(1.0, 1.0)),
    ),
    maps=(
        DispatchMap(
            kind="T=f32",
            x="N",
            y="M",
            at={},
            xs=(32, 64, 128),
            ys=(1, 16),
            variants=("rows_1", "rows_2"),
            picks=((0, 0, 1), (1, 1, -1)),
        ),
        DispatchMap(
            kind="T=bf16", x="N", y="M", at={}, xs=(32, 64), ys=(1, 16), variants=("rows_2",), picks=((0, 0), (0, 0))
        ),
    ),
    seconds={"race": 12.5, "verify": 3.0},
)

UNTUNED = OperatorReport(
    operator="untuned",
    target="cpu-x86-64",
    tried=0,
    statuses={},
    problems=(),
    variants=(variant("generic_2", 900),),
    failures=(),
    mean_regret=0.0,
    held_out_regret=None,
    note="AOT_TUNE_FILTER names no kernel there",
)

REPORT = Report(
    library="ops",
    mode="auto",
    targets=("cuda-sm_90a",),
    devices=("NVIDIA H200",),
    toolchains={"nvcc": "13.0.88"},
    policy="cuda version 9, digest 0123456789ab",
    measuring=(
        ("cuda version 9, digest 0123456789ab", "graphs of calls", "samples of 50 us, " * 8 + "less"),
        ("cpu version 1, digest ba9876543210", "cold inputs rotate, the rest is warm"),
    ),
    notes=("beside all", f"untuned: {UNTUNED.note}", "product on cuda-sm_90a: slow there"),
    machine=(DeviceRow(name="NVIDIA H200", facts={"sm_count": "132", "driver": "580"}, load=0.04, busy=3, races=90),),
    made="2026-11-30 06:08+00:00",
    version="0.2.0",
    operators=(PRODUCT, UNTUNED),
    spent=(
        TimeSpent(of="clock", what="compiling and measuring", seconds=70.0),
        TimeSpent(of="compilers", what="nvcc", seconds=55.5, target="cuda-sm_90a"),
        TimeSpent(of="compilers", what="cxx", seconds=4.5, target="cpu-x86-64"),
        TimeSpent(of="device", what="race", seconds=12.5, target="cuda-sm_90a"),
    ),
)


@dataclass
class Page(HTMLParser):
    """Tables by section and name as rows of texts, data of charts by section, charts, and addresses that it loads."""

    tables: dict[tuple[str, str], list[list[str]]] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    charts: list[tuple[str, str]] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    scripts: int = 0
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self._section, self._table, self._cell, self._data, self._inside = "", "", False, "", ""

    @classmethod
    def of(cls, text: str) -> Page:
        page = cls()
        page.feed(text)
        page.close()
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [f"{tag} {k}={v}" for k, v in given.items() if k in ("src", "srcset", "data") and v]
        self.loads += [f"{tag} href={given['href']}" for _ in "1" if not (given.get("href") or "#").startswith("#")]
        if tag == "section":
            self._section = given["id"] or ""
        elif tag == "script":
            self._data, self._inside = given.get("data-for") or "", "script"
            self.scripts += "data-for" not in given
        elif tag == "style":
            self._inside = "style"
        elif tag == "table":
            self._table = given.get("data-table") or ""
            self.tables[self._section, self._table] = []
        elif tag == "tr":
            self.tables[self._section, self._table].append([])
        elif tag in ("td", "th"):
            self._cell = True
            self.tables[self._section, self._table][-1].append("")
        elif "data-chart" in given:
            self.charts.append((self._section, given["data-chart"] or ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False
        elif tag in ("script", "style"):
            self._data, self._inside = "", ""

    def handle_data(self, data: str) -> None:
        if self._data:
            self.data[self._data] = json.loads(data)
        elif not self._inside:
            self.text += data
            if self._cell:
                self.tables[self._section, self._table][-1][-1] += data
