"""The command `aot-tune report`: on a terminal, as text, as JSON, as a page."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from aot_tune.cli.explain_command import OWN_LIBRARY, json_text
from aot_tune.report import read_report
from aot_tune.report.report_records import Report
from aot_tune.report.report_text import format_report, in_reading_order
from aot_tune.support.build_log import LOG_NAME, trace_of
from aot_tune.support.errors import BuildError, OptionError, did_you_mean
from aot_tune.support.installed_paths import BUNDLED_MODULE, installed_report

_ALL = 1_000_000
_FEW = 5
"""How many failures of an operator are listed by default."""


def add_report(commands: Any) -> None:
    """Add the command to the parser."""
    report = commands.add_parser(
        "report",
        help="show why each kernel won",
        description="Show why each kernel of a built library won. On a terminal the output fits the width. Elsewhere, "
        "and with --wide, every line is whole.",
    )
    report.add_argument("operators", nargs="*", metavar="OPERATOR", help="only these operators")
    where = report.add_mutually_exclusive_group()
    where.add_argument(
        "--module",
        default=BUNDLED_MODULE,
        help="Python module of the library, such as my_kernels.ops; its report.json is installed beside it; "
        "default: %(default)s",
    )
    where.add_argument(
        "--build",
        type=Path,
        metavar="PATH",
        help="folder of a library's build, such as build/aot_tune/my_kernels, or its report.json",
    )
    report.add_argument("--failures", action="store_true", help="list all candidates that were dropped")
    report.add_argument(
        "--candidates",
        action="store_true",
        help="list the candidates that were timed, with the resources of their code",
    )
    form = report.add_mutually_exclusive_group()
    form.add_argument("--wide", action="store_true", help="print all columns, even on a narrow terminal")
    form.add_argument("--json", action="store_true", help="print the report as JSON, see docs/report.md")
    form.add_argument(
        "--html",
        nargs="?",
        const="",
        metavar="FILE",
        help="write the report as one HTML file with charts; default: <library>-report.html; - is standard output",
    )
    form.add_argument(
        "--trace",
        metavar="FILE",
        help="with --build: write what the build did when, as a trace that Perfetto and Chrome open. PATH may be a "
        "file that AOT_TUNE_PROFILE names",
    )
    report.set_defaults(run=_report)


def _report(given: argparse.Namespace) -> int:
    if given.trace is not None:
        return _write_trace(given.build, given.trace)
    report = read_report(given.build or installed_report(given.module))
    reported = {part.operator for part in report.operators}
    for name in given.operators:
        if name not in reported:
            bundled = given.build is None and given.module == BUNDLED_MODULE
            fix = f"{did_you_mean(name, reported)}{OWN_LIBRARY if bundled else ''}"
            raise BuildError(f"the report has no operator {name!r}", fix=fix)
    shown = tuple(r for r in report.operators if not given.operators or r.operator in given.operators)
    report = msgspec.structs.replace(report, operators=shown)
    report = report if given.json else in_reading_order(report)
    if given.html is not None:
        _write_page(report, given.html)
        return 0
    if given.json:
        print(json_text(report))
        return 0
    failures = _ALL if given.failures else _FEW
    if sys.stdout.isatty() and not given.wide:
        from aot_tune.report.terminal_report import show_report

        show_report(report, failures=failures, candidates=given.candidates)
    else:
        print(format_report(report, failures=failures, candidates=given.candidates), end="")
    return 0


def _write_page(report: Report, name: str) -> None:
    """Write the page completely, or leave the file as it was.

    Raises:
        OptionError: when the name does not fit an HTML page.
        BuildError: when the file cannot be written.
    """
    from aot_tune.report.html_page import html_page

    if name == "-":
        print(html_page(report))
        return
    path = Path(name or f"{report.library}-report.html")
    if path.suffix not in (".html", ".htm"):
        raise OptionError(
            f"--html {name!r} is not the name of an HTML file",
            fix="write operators before --html, and a FILE that ends in .html behind it",
        )
    text = html_page(report)
    _write(path, text)
    print(f"{path}: {len(text.encode()) / 1e6:.1f} MB, open it in a browser")


def _write_trace(build: Path | None, name: str) -> int:
    if build is None:
        raise OptionError(
            "--trace needs --build", fix="name the folder of a build; builds by pip keep their log below AOT_TUNE_KEEP"
        )
    folder = build.parent if build.name == "report.json" else build
    text = trace_of(folder / LOG_NAME if folder.is_dir() else build)
    if name == "-":
        print(text, end="")
        return 0
    _write(Path(name), text)
    print(f"{name}: open it at https://ui.perfetto.dev or in chrome://tracing")
    return 0


def _write(path: Path, text: str) -> None:
    """Write a file completely, or leave it as it was."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise BuildError(
            f"{path} cannot be written",
            why=error.strerror or str(error),
            fix="name a file in a folder that exists and that you may write to",
        ) from error
