"""The report's page: what its tables and charts hold, that it loads nothing, and that it draws in a browser."""

import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from whole_report import HOSTILE, PRODUCT, REPORT, UNTUNED, Page, point, row

from aot_tune.report.html_page import html_page
from aot_tune.report.report_records import OperatorReport, Report
from aot_tune.report.verdict import MACHINE_BUSY

PAGE = Page.of(html_page(REPORT))
HERE = "product-cuda-sm_90a"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def with_parts(*parts: OperatorReport) -> Report:
    return msgspec.structs.replace(REPORT, operators=parts)


def column(page: Page, table: str, head: str, section: str = HERE) -> list[str]:
    heads, *rows = page.tables[section, table]
    return [cells[heads.index(head)] for cells in rows]


def test_it_loads_nothing_and_runs_nothing_but_its_own() -> None:
    assert PAGE.loads == []
    assert PAGE.scripts == 1
    whole = html_page(REPORT)
    assert "default-src 'none'" in whole
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest|innerHTML|\beval\(", whole)
    assert HOSTILE not in whole
    assert HOSTILE in PAGE.text


def test_each_operator_has_a_table_of_its_problems() -> None:
    assert column(PAGE, "races", "Problem") == [r.problem for r in PRODUCT.problems]
    assert column(PAGE, "races", "Time") == ["1.00 us", "16.00 us", "16.00 us", "4.10 ms"]
    assert column(PAGE, "races", "\N{MULTIPLICATION SIGN} baseline") == ["1.25 ± 0.02"] * 4
    assert column(PAGE, "races", "Spread") == ["2.1 %"] * 4
    assert column(PAGE, "races", "Roofline") == ["71 % memory"] * 4
    assert column(PAGE, "races", "Winner") == ["rows_1 tie", "rows_1", "rows_1", "rows_1"]
    assert column(PAGE, "races", "Dispatch") == ["rows_2 +3.1 %", "=", "rows_2 +3.1 %", "rows_2 +3.1 %"]
    assert ("untuned-cpu-x86-64", "races") not in PAGE.tables
    weighed = msgspec.structs.replace(PRODUCT, weighted_regret=0.02)
    page = Page.of(html_page(msgspec.structs.replace(REPORT, operators=(weighed,))))
    assert column(page, "races", "Weight") == ["1"] * 4


def test_the_other_tables_are_as_the_records() -> None:
    assert column(PAGE, "operators", "Operator", "overview") == ["product", "untuned"]
    assert column(PAGE, "operators", "Tried", "overview") == ["7", "0"]
    assert column(PAGE, "operators", "Held out", "overview") == ["5.0 %", "\N{EN DASH}"]
    assert column(PAGE, "variants", "Variant") == [v.name for v in PRODUCT.variants]
    assert column(PAGE, "variants", "Code") == ["7.0 kB", "3.0 kB", "500 B"]
    assert column(PAGE, "variants", "Variant", "untuned-cpu-x86-64") == [v.name for v in UNTUNED.variants]
    assert column(PAGE, "failures", "Status") == ["crashed", "compile-failed"]
    first, second = column(PAGE, "failures", "Reason and command")
    assert first == f"{PRODUCT.failures[0].reason}{PRODUCT.failures[0].again}copy"
    assert second == PRODUCT.failures[1].reason
    assert column(PAGE, "candidates", "On")[0] == "M=16 N=64 T=f32"
    assert column(PAGE, "worst", "Shape") == ["M=3 N=77 T=f32", "M=7 N=77 T=bf16"]
    assert column(PAGE, "regimes", "Decided by") == ["expected time", "nearest problem"]


def test_data_of_the_charts_is_that_of_the_records() -> None:
    charts = PAGE.data[HERE]
    name, kind = charts["names"].__getitem__, charts["kinds"].__getitem__
    assert dict(zip(charts["names"], charts["whose"], strict=True))["torch.product"] == "baseline"
    for drawn, known in zip(charts["problems"], PRODUCT.problems, strict=True):
        problem, of, extents, picked, winner, regret, held_out, drawn_runners = drawn
        assert (problem, kind(of)) == (known.problem, known.kind)
        assert dict(zip(charts["dims"], extents, strict=True)) == known.dims
        assert (name(picked), name(winner), regret) == (known.picked, known.winner, known.regret)
        assert held_out == known.held_out
        runners = [(name(number), *times) for number, *times in drawn_runners]
        assert runners == [(r.name, r.ns, r.low, r.high, r.samples, r.raced) for r in known.runners]
    for curve, known_curve in zip(charts["curves"], PRODUCT.curves, strict=True):
        assert (kind(curve["kind"]), tuple(map(name, curve["variants"]))) == (known_curve.kind, known_curve.variants)
        assert (tuple(curve["regret"]), tuple(curve["served"])) == (known_curve.regret, known_curve.served)
    for drawn_map, known_map in zip(charts["maps"], PRODUCT.maps, strict=True):
        assert (drawn_map["x"], drawn_map["y"], drawn_map["layout"]) == ("N", "M", known_map.layout)
        assert (tuple(drawn_map["xs"]), tuple(drawn_map["ys"])) == (known_map.xs, known_map.ys)
        drawn_names = [[name(p) if p >= 0 else "" for p in picks] for picks in drawn_map["picks"]]
        assert drawn_names == [[known_map.variants[p] if p >= 0 else "" for p in picks] for picks in known_map.picks]
    assert PRODUCT.survey is not None
    for drawn_point, known_point in zip(charts["points"], PRODUCT.survey.points, strict=True):
        problem, of, extents, best, picked, *times = drawn_point
        assert (problem, kind(of), extents) == (known_point.problem, known_point.kind, list(known_point.dims.values()))
        assert (name(best), name(picked)) == (known_point.best, known_point.picked)
        assert times == [known_point.ns, known_point.regret, known_point.held_out]
    assert charts["sizes"] == [
        {"label": "rows", "amount": 10000, "count": 2},
        {"label": "generic", "amount": 500, "count": 1},
    ]
    assert {b["label"]: b["amount"] for b in charts["seconds"]} == PRODUCT.seconds
    spent = [(title, bar["label"], bar["amount"]) for title, bars in PAGE.data["spent"].items() for bar in bars]
    assert spent == [
        ("On the clock", "compiling and measuring", 70.0),
        ("Compilers, all cores together", "nvcc, cuda-sm_90a", 55.5),
        ("Compilers, all cores together", "cxx, cpu-x86-64", 4.5),
        ("Measuring, all devices together, for cuda-sm_90a", "race", 12.5),
    ]


def test_the_overview_says_where_and_when_and_how_much_faster() -> None:
    said = " ".join(PAGE.text.split())
    assert "Built on 2026-11-30 06:08 UTC, by aot_tune 0.2.0. NVIDIA H200: 132 multiprocessors, driver 580." in said
    assert "Other processes used 0.04 cores in the middle one of 90 races, and disturbed 3." in said
    assert "1.25\N{MULTIPLICATION SIGN} not slower" in said
    whole = html_page(REPORT)
    assert re.findall(r'class="mark" style="left: ([\d.]+)%"', whole) == ["66.1"] * 4
    assert 'class="bar" style="left: 50.0%; width: 16.1%"' in whole
    slow = msgspec.structs.replace(PRODUCT, problems=(msgspec.structs.replace(row(1, "f32"), paired=(0.2, 0.0)),))
    assert "0.20\N{MULTIPLICATION SIGN} slower on 1 of 1" in " ".join(Page.of(html_page(with_parts(slow))).text.split())


def test_notes_on_an_operator_stand_in_its_section() -> None:
    noted = msgspec.structs.replace(REPORT, notes=(*REPORT.notes, f"{MACHINE_BUSY}: others"))
    parts = re.split(r"<section", html_page(noted))
    assert [re.findall(r'class="note(?: grave)?">([^<]*)<', part) for part in parts[1:]] == [
        ["beside all", f"{MACHINE_BUSY}: others"],
        ["slow there", "M=1 N=64 T=f32: cannot be captured in a CUDA graph: no; timed on a stream"],
        [UNTUNED.note],
    ]
    assert column(PAGE, "operators", "Notes", "overview") == ["1", "1"]


def test_older_cpus_are_folded_and_filtered() -> None:
    whole = [msgspec.structs.replace(PRODUCT, target=f"cpu-x86-64-v{n}") for n in (4, 3)]
    page = html_page(msgspec.structs.replace(with_parts(*whole, UNTUNED), targets=("cpu-x86-64-v3", "cpu-x86-64-v4")))
    assert [re.findall(r"<h2>(\w+) <small>on ([^<]*)", part) for part in page.split('class="fold"')] == [
        [("product", "cpu-x86-64-v4")],
        [("product", "cpu-x86-64-v3, for older CPUs"), ("untuned", "cpu-x86-64")],
    ]
    assert page.count('class="older"') == 3  # its bar, and two links
    assert page.count("<tr data-own>") == 2
    assert "targets" not in html_page(REPORT).partition("<main>")[2].partition("<script")[0]


def test_a_page_of_many_problems_is_small() -> None:
    """As many problems, runners and surveyed shapes as a build of all bundled operators has for a GPU."""
    rows = tuple(row(m, "bf16") for m in range(1, 81))
    points = tuple(point(m, "f32", 0.01 * (m % 7), held_out=m % 5 == 0) for m in range(1000))
    assert PRODUCT.survey is not None
    survey = msgspec.structs.replace(PRODUCT.survey, points=points)
    many = tuple(
        msgspec.structs.replace(PRODUCT, operator=f"product{i}", problems=rows, survey=survey) for i in range(7)
    )
    assert len(html_page(msgspec.structs.replace(REPORT, operators=many)).encode()) < 3_000_000


@pytest.mark.skipif(BROWSER is None, reason="no Chromium to draw the page with")
def test_a_browser_draws_what_the_data_says(tmp_path: Path) -> None:
    """Sorted by time, filtered to one dtype, and with its first row opened."""
    act = """<script>
      addEventListener("error", (event) => document.body.dataset.error = event.message);
      addEventListener("load", () => {
        const table = document.querySelector("table.races");
        [...table.tHead.rows[0].cells].find((head) => head.textContent === "Time").click();
        [...table.tHead.rows[0].cells].find((head) => head.textContent === "Time").click();
        const filter = table.closest(".table").querySelector(".filter");
        filter.value = "BF16";
        filter.dispatchEvent(new Event("input"));
        [...table.tBodies[0].rows].find((row) => !row.hidden).click();
        for (const chart of document.querySelectorAll(".chart")) drawChart(chart);
        document.querySelector(".theme").click();
      });
    </script></body>"""
    path = tmp_path / "report.html"
    path.write_text(html_page(REPORT).replace("</body>", act), encoding="utf-8")
    argv = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,3000"]
    argv += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000", "--dump-dom", path.as_uri()]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
    dom = done.stdout
    assert "data-error" not in dom
    assert 'data-theme="dark"' in dom.partition(">")[2].partition(">")[0]
    body = dom[dom.index('data-table="races"') : dom.index("Regret by number of variants")]
    shown = re.findall(
        r'<tr data-i="(\d)"((?: hidden="")?)', re.sub(r' (?:data-tie|data-other|tabindex|class)="[^"]*"', "", body)
    )
    assert shown == [("3", ""), ("1", ' hidden=""'), ("2", ""), ("0", ' hidden=""')]
    (detail,) = re.findall(r'<tr class="detail">.*?</table>', body, re.DOTALL)
    assert re.findall(r'<td class="name">([^<]*)</td>', detail) == [
        "rows_1", "rows_2 (dispatch picks it)", "vendor_1", "torch.product"
    ]  # fmt: skip
    regrets = [float(r) for r in re.findall(r'class="dot[^"]*" data-regret="([^"]*)"', dom)]
    assert regrets == [3.5, 0.02, 0.2, 0.0, 0.12, 0.03]  # of the curves, then what is over none of the held-out shapes
    assert sum(map(int, re.findall(r'data-cells="(\d+)"', dom))) == 6
    assert len(re.findall(r'<circle [^>]*class="point"', dom)) == 2  # held-out shapes of the kind
    assert dom.count("<span>all row-major</span>") == 1
