"""The command that exports what was measured: `record`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aot_tune.database import OperatorDatabase

__all__ = ["add_commands", "print_records"]


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
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
    """Print the paths of records to standard output, and their contents in short to standard error."""
    for path, database in files.items():
        print(path, flush=True)
        counts = f"{_count(len(database.problems), 'problem')}, {_count(len(database.candidates), 'candidate')}"
        print(f"  {counts}", file=sys.stderr)
    for note in notes:
        print(f"NOTE {note}", file=sys.stderr)
