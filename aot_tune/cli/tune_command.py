"""`aot-tune tune`: records of a project's libraries, measured on the machine with the devices."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from aot_tune.cli.compile_commands import add_build_options, add_project, add_repeated, build_options
from aot_tune.cli.explain_command import json_text
from aot_tune.database import OperatorDatabase
from aot_tune.plan.configure_project import configure_project, source_folder
from aot_tune.plan.library_plan import Paths, Plan, read_plan
from aot_tune.report.report_text import counted
from aot_tune.support.errors import BuildError, OptionError, did_you_mean
from aot_tune.support.installed_paths import PACKAGE
from aot_tune.support.interrupts import end_with_the_build
from aot_tune.support.progress import Progress
from aot_tune.support.run_program import python_module
from aot_tune.support.storage import scratch_folder

_GRACE, _TO_END = 2.0, 20.0
"""Seconds that the measuring process has to end: first by itself, then after it was asked to."""
_Library = tuple[Path, Plan, Paths]


class TunedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record that was written, and how much it holds."""

    path: str
    operator: str
    device: str
    problems: int
    candidates: int


class TunedLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a library, and what did not work: `error` is empty if all operators were recorded."""

    library: str
    records: tuple[TunedRecord, ...]
    notes: tuple[str, ...] = ()
    error: str = ""


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """The libraries that were tuned, up to the first that failed."""

    libraries: tuple[TunedLibrary, ...]
    schema: int = 1


def add_tune(commands: Any) -> None:
    """Add the command to the parser."""
    tune = commands.add_parser(
        "tune",
        help="tune a project on this machine and write its records; installs nothing",
        description="Tune the libraries of a project on the devices of this machine and write the records, as "
        "`aot-tune records export` does after a build. Nothing is linked or installed. Each measurement is kept at "
        "once. An interrupted run continues where it ended, and a later build measures nothing again.",
    )
    add_project(tune)
    tune.add_argument("operators", nargs="*", metavar="OPERATOR", help="only these operators")
    tune.add_argument(
        "-o", "--output", type=Path, metavar="DIR",
        help="folder of the records; default: DATABASE of aot_tune_add_library, else `tuning` in the project",
    )  # fmt: skip
    for name, shown, text in (
        ("library", "NAME", "only these targets of aot_tune_add_library"),
        ("target", "TARGET", "as AOT_TUNE_TARGETS; each must have a device here"),
        ("devices", "NAME", "only devices of such names, such as 'NVIDIA L4*'; default: each model that is here"),
    ):
        add_repeated(tune, f"--{name}", shown, f"{text}; may be repeated")
    text = "as AOT_TUNE_WORKLOAD: in place of the declared problems, with `+` in front beside them; may be repeated"
    add_repeated(tune, "--workload", "FILE", text)
    tune.add_argument("--budget", default="", metavar="SECONDS", help="for all libraries; default: no limit")
    tune.add_argument("--effort", default="", metavar="EFFORT", help="as AOT_TUNE_EFFORT, such as quick or thorough")
    tune.add_argument("--again", action="store_true", help="measure again what is known, as AOT_TUNE_MODE=tune")
    tune.add_argument(
        "--executor", default="", metavar="NAME",
        help="as AOT_TUNE_EXECUTOR: `ray` tunes on the devices of a Ray cluster, all of its models in one run",
    )  # fmt: skip
    add_build_options(tune)
    tune.add_argument(
        "-D", dest="define", action="append", default=[], metavar="NAME=VALUE",
        help="for the project's CMake, such as an option of AOT_TUNE; may be repeated",
    )  # fmt: skip
    tune.add_argument(
        "--json", action="store_true",
        help="print the records as JSON, see docs/report.md, and all other lines to standard error",
    )  # fmt: skip
    tune.set_defaults(run=_tune)


def add_planned(commands: Any) -> None:
    """Add `tune-planned`, which `tune` runs."""
    planned = commands.add_parser("tune-planned", description="Tune and record a planned library; run by `tune`.")
    planned.add_argument("--directory", required=True, type=Path)
    planned.add_argument("--output", required=True)
    for name in ("--operator", "--devices"):
        planned.add_argument(name, action="append", default=[])
    planned.add_argument("--named", action="store_true")
    planned.add_argument("--seconds", type=float)
    planned.add_argument("--json", action="store_true")
    planned.set_defaults(run=_tune_planned)


def _tune(given: argparse.Namespace) -> int:
    began = time.monotonic()
    source = source_folder(given.directory)
    project = given.directory if given.directory.is_dir() else given.directory.parent
    options = build_options(given) | {
        "AOT_TUNE_MODE": "tune" if given.again else "auto",
        "AOT_TUNE_WORKLOAD": ";".join(map(_absolute, given.workload)),
        "AOT_TUNE_BUDGET": given.budget,
        "AOT_TUNE_EFFORT": given.effort,
        "AOT_TUNE_EXECUTOR": given.executor,
    }
    with end_with_the_build(), scratch_folder() as build:
        print(f"aot_tune: configuring {source}", file=sys.stderr if given.json else sys.stdout, flush=True)
        plans = configure_project(source, project, Path(build), options, given.define)
        libraries = _chosen([(plan, *read_plan(plan)) for plan in plans], given.library, given.operators)
        status, tuned = 0, list[TunedLibrary]()
        for i, (directory, plan, paths) in enumerate(libraries):
            out = given.output or (Path(paths.database) if paths.database else project / "tuning")
            arguments = ["--directory", str(directory), "--output", str(out.absolute())]
            arguments += [f"--operator={name}" for name in given.operators if name in plan.operators]
            arguments += [f"--devices={name}" for name in given.devices]
            arguments += ["--named"] if given.target else []
            if given.budget and plan.options.budget is not None:
                left = max(plan.options.budget - (time.monotonic() - began), 1.0)
                arguments.append(f"--seconds={left / (len(libraries) - i):.1f}")
            status, told = run_planned([*arguments, *(["--json"] if given.json else [])], paths)
            tuned += [msgspec.json.decode(told, type=TunedLibrary)] if told else []
            if status != 0:
                break
            if not given.output and not paths.database:
                print(
                    f"NOTE for builds to use the records, write DATABASE tuning in aot_tune_add_library({plan.name})",
                    file=sys.stderr,
                )
    if given.json:
        print(json_text(Tuned(libraries=tuple(tuned))))
    return status


def _absolute(path: str) -> str:
    """A path that is right in any folder. A `+` in front of it stays."""
    return "+" * path.startswith("+") + str(Path(path.removeprefix("+")).expanduser().absolute())


def _chosen(libraries: Sequence[_Library], names: Sequence[str], operators: Sequence[str]) -> list[_Library]:
    """The chosen libraries: those with the given names, and of these those that have one of the operators."""
    library_names = {plan.name for _, plan, _ in libraries}
    for name in names:
        if name not in library_names:
            raise OptionError(f"the project has no library {name!r}", fix=did_you_mean(name, library_names))
    chosen = [library for library in libraries if not names or library[1].name in names]
    all_of_them = {operator for _, plan, _ in chosen for operator in plan.operators}
    for operator in operators:
        if operator not in all_of_them:
            raise OptionError(f"the project has no operator {operator!r}", fix=did_you_mean(operator, all_of_them))
    return [library for library in chosen if not operators or set(operators).intersection(library[1].operators)]


def run_planned(arguments: Sequence[str], paths: Paths) -> tuple[int, bytes]:
    """Tune in a new process, for operators of one library only. Returns its status, and what `--json` prints."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    search = os.pathsep.join(filter(None, (str(PACKAGE.parent), *given)))  # an empty item is the current folder
    environment = {**os.environ, "PYTHONPATH": search, **({"CXX": paths.cxx} if paths.cxx else {})}
    command = python_module("aot_tune.cli.main", "tune-planned", *arguments, flags=("-B", "-u"))
    captured = subprocess.PIPE if "--json" in arguments else None
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=captured) as process:
        try:
            told = process.communicate()[0] or b""
            status = process.returncode
        except KeyboardInterrupt:
            status, told = _ended(process), b""
    if status < 0:
        raise BuildError(
            f"the tuning was ended by signal {-status}", fix="run the command again: it continues where it ended"
        )
    return status, told


def _ended(process: subprocess.Popen[bytes]) -> int:
    """The status of a process that should end. A terminal's Ctrl-C has reached it already, other signals have not."""
    for seconds, ask in ((_GRACE, process.terminate), (_TO_END, process.kill)):
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            ask()
    return process.wait()


def _tune_planned(given: argparse.Namespace) -> int:
    with end_with_the_build():  # first, because the imports below are slow
        from aot_tune.pipeline.tune_library import TuneOrder, tune_records

        only = {"operators": tuple(given.operator), "devices": tuple(given.devices)}
        order = TuneOrder(out=given.output, named=given.named, seconds=given.seconds, **only)
        recorded = tune_records(given.directory, order, Progress(sys.stderr if given.json else None))
    if given.json:
        library = TunedLibrary(
            library=read_plan(given.directory)[0].name,
            records=tuple(
                TunedRecord(
                    path=str(path),
                    operator=database.operator,
                    device=database.device.name,
                    problems=len(database.problems),
                    candidates=len(database.candidates),
                )
                for path, database in recorded.files.items()
            ),
            notes=tuple(recorded.notes),
            error=str(recorded.error or ""),
        )
        sys.stdout.buffer.write(msgspec.json.encode(library))
    else:
        print_records(recorded.files, recorded.notes)
    if recorded.error is not None:
        raise recorded.error
    return 0


def print_records(files: Mapping[Path, OperatorDatabase], notes: Iterable[str]) -> None:
    """Print the paths of records to standard output, and their contents in short to standard error."""
    for path, database in files.items():
        print(path, flush=True)
        counts = f"{counted(len(database.problems), 'problem')}, {counted(len(database.candidates), 'candidate')}"
        print(f"  {counts}", file=sys.stderr)
    for note in notes:
        print(f"NOTE {note}", file=sys.stderr)
