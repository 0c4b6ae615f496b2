"""Commands on what was measured: `report` and `record`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from aot_tune.database import OperatorDatabase
from aot_tune.report import format_report, read_report
from aot_tune.support.errors import BuildError, did_you_mean
from aot_tune.support.installed_paths import BUNDLED_MODULE, installed_report

__all__ = ["add_commands", "print_records"]


def add_commands(commands: Any) -> None:
    """Add the commands to the parser."""
    report = commands.add_parser(
        "report", help="why each kernel won", description="Print why each kernel of a built library won."
    )
    report.add_argument("operators", nargs="*", metavar="OPERATOR", help="only these operators")
    where = report.add_mutually_exclusive_group()
    where.add_argument(
        "--module",
        default=BUNDLED_MODULE,
        help="Python module of the library, such as my_kernels.ops; its report.json is installed beside it; "
        "default: %(default)s",
    )
    where.add_argument("--file", type=Path, help="a report.json, as a build leaves in build/aot_tune/<library>/")
    report.add_argument("--failures", action="store_true", help="list all candidates that were dropped")
    report.add_argument(
        "--candidates", action="store_true", help="list the candidates that were timed, with what their code takes"
    )
    report.add_argument("--json", action="store_true", help="print the report as JSON")
    report.set_defaults(run=_report)

    record = commands.add_parser(
        "record",
        help="export measurements as a database",
        description="Write the measurements of the last build on this machine as text files to commit.",
    )
    record.add_argument("directory", type=Path, metavar="DIR", help="folder of the database, such as tuning/")
    record.add_argument(
        "--library", default="ops", help="the target of aot_tune_add_library; default: ops, the bundled operators"
    )
    record.set_defaults(run=_record)


def _report(given: argparse.Namespace) -> int:
    report = read_report(given.file or installed_report(given.module))
    known = {one.operator for one in report.operators}
    for name in given.operators:
        if name not in known:
            raise BuildError(f"the report has no operator {name!r}", fix=did_you_mean(name, known))
    limit = 1_000_000 if given.failures else 5
    if given.json:
        shown = tuple(r for r in report.operators if not given.operators or r.operator in given.operators)
        text = msgspec.json.encode(msgspec.structs.replace(report, operators=shown))
        print(msgspec.json.format(text, indent=1).decode())
        return 0
    print(
        format_report(report, operators=given.operators, failures=limit, candidates=given.candidates),
        end="",
    )
    return 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _record(given: argparse.Namespace) -> int:
    from aot_tune.pipeline.records.export_records import export_records

    exported = export_records(given.library, given.directory)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(exported.time))
    print(f"of the build of library {given.library!r} that recorded last, at {when}:", file=sys.stderr)
    print_records(exported.files, exported.notes)
    return 0


def print_records(files: Mapping[Path, OperatorDatabase], notes: Iterable[str]) -> None:
    """Print the paths of records, and to the standard error what they hold."""
    for path, database in files.items():
        print(path, flush=True)
        counts = f"{_count(len(database.problems), 'problem')}, {_count(len(database.candidates), 'candidate')}"
        print(f"  {counts}", file=sys.stderr)
    for note in notes:
        print(f"NOTE {note}", file=sys.stderr)
