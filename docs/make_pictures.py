"""The pictures of report.md, by headless Chromium: `python docs/make_pictures.py report.json docs`."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from aot_tune.report import read_report
from aot_tune.report.html_page import html_page
from aot_tune.report.report_records import Report
from aot_tune.report.report_text import in_reading_order

__all__ = ["PICTURES", "Picture", "main"]

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Picture:
    """One picture: its size in pixels, and what a script does to the page first."""

    name: str
    width: int
    height: int
    script: str


_BARE = """
  for (const other of document.querySelectorAll("main > section")) if (other !== section) other.remove();
  section.style.margin = section.style.padding = section.style.border = 0;
  for (const frame of document.querySelectorAll("nav, header.top")) frame.remove();
  document.querySelector(".layout").style.display = "block";
  document.querySelector("main").style.padding = "0.75rem 1rem";
"""

PICTURES = (
    Picture(
        "report-races",
        1180,
        640,
        f"""
      const section = document.querySelector("[data-table=races]").closest("section");
      const kept = ["h2", ".stats", ".table"].map((one) => section.querySelector(one));
      for (const other of [...section.children]) if (!kept.includes(other)) other.remove();
      {_BARE}
    """,
    ),
    Picture(
        "report-map",
        1180,
        640,
        f"""
      const points = (chart) => dataFor(chart.closest("section").id).points.length;
      const [chart] = [...document.querySelectorAll("[data-chart=map]")].sort((a, b) => points(b) - points(a));
      const section = chart.closest("section");
      for (const other of [...section.children]) if (!other.contains(chart)) other.remove();
      {_BARE}
      drawChart(chart);
    """,
    ),
)


def main(argv: list[str] | None = None) -> int:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="a report.json")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    given = parser.parse_args(argv)
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        print("no Chromium: apt install chromium", file=sys.stderr)
        return 1
    given.folder.mkdir(parents=True, exist_ok=True)
    report = in_reading_order(read_report(given.report))
    for picture in PICTURES:
        path = given.folder / f"{picture.name}.png"
        take(browser, report, picture, path)
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    return 0


def take(browser: str, report: Report, picture: Picture, path: Path) -> None:
    """Make one picture."""
    light = 'document.documentElement.dataset.theme = "light";'
    script = f'<script>addEventListener("load", () => {{ {light} {picture.script} }});</script></body>'
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "page.html"
        page.write_text(html_page(report).replace("</body>", script), encoding="utf-8")
        argv = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        argv += [f"--window-size={picture.width},{picture.height}", f"--user-data-dir={scratch}/profile"]
        argv += ["--virtual-time-budget=3000", f"--screenshot={path.resolve()}", page.as_uri()]
        subprocess.run(argv, check=True, timeout=120, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
