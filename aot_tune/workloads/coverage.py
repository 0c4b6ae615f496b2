"""How much of the calls a build has measured, by number and by time, from the manifest and the report of the build."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from aot_tune.link.manifest import read_manifest
from aot_tune.link.measured_problems import TunedFacts, tuned_facts
from aot_tune.report import read_report
from aot_tune.report.report_records import ProblemRow
from aot_tune.report.report_text import columns, counted, format_time, percent_text
from aot_tune.spec import Operator, Problem
from aot_tune.spec.workload import problem_named
from aot_tune.support.errors import BuildError, OptionError, SpecError, did_you_mean, tell_all
from aot_tune.support.installed_paths import installed_report
from aot_tune.workloads.workload_lines import CountedProblem, TraceHeader, known_problems, stranger

_FILES = ("manifest.json", "report.json")
_INSTALLED = Path("share/aot_tune/ops")

_FIX = "name the build that was traced with --build, or"

_HEAD = ("operator", "problems", "measured", "calls", "covered", "time", "covered")


class BuiltLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """`tuned` has the measured problems by operator and target. `rows` has the report's rows for them.

    `build` is the digest of the manifest.
    """

    name: str
    prefix: str
    build: str
    place: str
    operators: tuple[str, ...]
    targets: tuple[str, ...]
    tuned: Mapping[tuple[str, str], frozenset[str]]
    rows: Mapping[tuple[str, str], tuple[ProblemRow, ...]]


class TimedProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that a build measured, and how long a call of the library takes there."""

    problem: Problem
    ns: float
    flops: int
    bytes: int


def find_library(path: Path | None, module: str) -> Path:
    """The folder with manifest and report of a named library, or of a module. Raises BuildError."""
    if path is None:
        folder = installed_report(module).parent
        places = [folder]
    elif path.is_dir() or not path.exists():
        places = [path]
    else:
        places = [path.parent, path.parent / _INSTALLED, path.parent.parent / _INSTALLED]
    for folder_named in places:
        if all((folder_named / name).is_file() for name in _FILES):
            return folder_named
    raise BuildError(
        f"there is no {' and '.join(_FILES)} at {path or places[0]}",
        why="these files say what was measured for a library. Its build leaves them beside it",
        fix="name the folder where its build left them, such as build/aot_tune/my_kernels, with --build",
    )


def read_library(folder: Path) -> BuiltLibrary:
    """What the files in a folder say.

    Raises:
        ManifestError: when the manifest cannot be read.
        BuildError: when the report cannot be read, or belongs to another library.
    """
    data = (folder / _FILES[0]).read_bytes()
    manifest = read_manifest(data, f"{folder / _FILES[0]}")
    report = read_report(folder / _FILES[1])
    if report.library != manifest.library:
        raise BuildError(
            f"{folder / _FILES[1]} is of library {report.library!r}, the manifest beside it of {manifest.library!r}",
            fix="name the folder that a build left them in",
        )
    tables = {(op.name, t.target): frozenset(t.tuned) for op in manifest.operators for t in op.tables}
    return BuiltLibrary(
        name=manifest.library,
        prefix=manifest.prefix,
        build=hashlib.sha256(data).hexdigest(),
        place=str(folder),
        operators=tuple(op.name for op in manifest.operators),
        targets=tuple(dict.fromkeys(target for _, target in tables)) or report.targets,
        tuned=tables,
        rows={(part.operator, part.target): part.problems for part in report.operators},
    )


def _timed_problems(library: BuiltLibrary, operator: Operator, target: str) -> list[TimedProblem]:
    """What was measured of an operator on a target, with times of what calls get. Raises BuildError."""
    tuned = library.tuned.get((operator.name, target), frozenset())
    timed = []
    for row in library.rows.get((operator.name, target), ()):
        if row.problem not in tuned:
            continue
        try:
            problem = problem_named(operator, row.problem)
        except OptionError as error:
            raise BuildError(
                f"{library.place}: operator {operator.name!r} was measured on {row.problem!r}",
                why=f"this is not a problem of the operator here: {error.what}",
                fix="with --templates, name the template root that the library was built from, or build it again",
            ) from error
        timed.append(TimedProblem(problem=problem, ns=row.ns * (1 + row.regret), flops=row.flops, bytes=row.bytes))
    return timed


def of_library(
    lines: Iterable[CountedProblem], library: BuiltLibrary, operators: Mapping[str, Operator]
) -> tuple[list[CountedProblem], list[str]]:
    """The lines, checked, and warnings: one for a trace of another build whose problems this build has too.

    Lines without the head of a trace count for any library.

    Raises:
        SpecError: for a trace of another library, and for problems that this one's operators do not have.
    """
    lines = list(lines)
    headers = list(dict.fromkeys(line.trace for line in lines if line.trace is not None))
    here, fix = f"the build at {library.place}", f"{_FIX} trace a program that uses the one at {library.place}"
    strangers = (stranger(header, library.name, library.prefix, here, fix) for header in headers)
    tell_all(error for error in strangers if error is not None)
    others = [header for header in headers if header.build and not library.build.startswith(header.build)]
    declared = {name: operator for name, operator in operators.items() if name in library.operators}
    try:
        tell_all(error for line in lines if (error := _absent(line, library, declared)) is not None)
        problems = known_problems(lines, declared)
    except SpecError as error:
        if not others:
            raise
        raise SpecError(
            f"{others[0].place}: this is a trace of another build of {library.name!r}, with other operators",
            why=f"it is of build {others[0].build[:12]}, and {error.what}",
            fix=f"{_FIX} trace the one at {library.place}",
        ) from error
    return problems, [_warning(header, library) for header in others]


def _absent(line: CountedProblem, library: BuiltLibrary, declared: Mapping[str, Operator]) -> SpecError | None:
    """The error for an operator that the library lacks, or that no operator.py here declares."""
    if line.operator in declared:
        return None
    if line.operator not in library.operators:
        return SpecError(
            f"{line.place}: library {library.name!r} has no operator {line.operator!r}",
            why=f"according to the manifest at {library.place}",
            fix=did_you_mean(line.operator, library.operators),
        )
    return SpecError(
        f"{line.place}: operator {line.operator!r} of library {library.name!r} is not declared here",
        why="to compare its problems, its operator.py is needed",
        fix="with --templates, name the template root that the library was built from",
    )


def _warning(header: TraceHeader, library: BuiltLibrary) -> str:
    return (
        f"{header.place}: the trace is of build {header.build[:12]} of {library.name!r}, but it is compared with build "
        f"{library.build[:12]} at {library.place}, which has the same operators"
    )


class CoveredProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that is called, and what a build knows of it.

    `ns` is the time of a call. If the problem is `tuned`, it was measured, else it is estimated from the problem
    `near`. It is None if nothing of the operator was measured.
    """

    operator: str
    problem: str
    calls: float
    tuned: bool
    ns: float | None
    near: str = ""

    @property
    def total(self) -> float:
        """The time of all its calls; None if unknown."""
        return (self.ns or 0.0) * self.calls


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a workload a build of a library has measured, by target, and where the build's files are."""

    library: str
    build: str
    place: str
    targets: dict[str, list[CoveredProblem]]
    schema: int = 1


def coverage_on(
    target: str, problems: Iterable[CountedProblem], library: BuiltLibrary, operators: Mapping[str, Operator]
) -> list[CoveredProblem]:
    """What a build knows of each problem on a target. Raises BuildError when an operator differs from the build's."""
    timed: dict[str, list[TimedProblem]] = {}
    by_facts: dict[str, dict[TunedFacts, TimedProblem]] = {}
    covered = []
    for row in problems:
        operator = operators[row.operator]
        if row.operator not in timed:
            timed[row.operator] = _timed_problems(library, operator, target)
            by_facts[row.operator] = {tuned_facts(operator, t.problem): t for t in timed[row.operator]}
        same = by_facts[row.operator].get(tuned_facts(operator, row.problem))
        ns, near = (same.ns, "") if same is not None else _estimate(operator, row.problem, timed[row.operator])
        covered.append(
            CoveredProblem(
                operator=row.operator,
                problem=row.problem.id,
                calls=row.weight,
                tuned=same is not None,
                ns=ns,
                near=near,
            )
        )
    return covered


def _estimate(operator: Operator, problem: Problem, timed: Sequence[TimedProblem]) -> tuple[float | None, str]:
    """The time of a problem, estimated from the nearest one, and the nearest one's name; None if there is none.

    The nearest has the same dtypes, if possible, and the smallest ratios of FLOPs and bytes to this problem. The
    estimate is its time multiplied by the larger ratio, because that work decides how long a kernel takes.
    """
    if not timed:
        return None, ""
    flops = max(operator.flops.evaluate(operator.facts(problem)), 1)
    moved = max(operator.compulsory_bytes(problem), 1)

    def distance(other: TimedProblem) -> tuple[bool, float, str]:
        steps = abs(math.log(flops / max(other.flops, 1))) + abs(math.log(moved / max(other.bytes, 1)))
        return other.problem.dtypes != problem.dtypes, steps, other.problem.id

    near = min(timed, key=distance)
    return near.ns * max(flops / max(near.flops, 1), moved / max(near.bytes, 1)), near.problem.id


def coverage_table(target: str, covered: Sequence[CoveredProblem], top: int) -> str:
    """The coverage of one target, with the `top` problems that were not measured, those of most time first."""
    operators = sorted({row.operator for row in covered})
    rows = [_row(name, [row for row in covered if row.operator == name]) for name in operators]
    lines = [f"on {target}", *("  " + line for line in columns([_HEAD, *rows, _row("all", covered)]))]
    left = sorted((row for row in covered if not row.tuned), key=lambda row: (-row.total, -row.calls, row.problem))
    if any(row.ns is not None for row in left):
        lines += [
            "  the time of problems that were not measured is an estimate: the time of the nearest measured",
            "  problem, times the larger ratio of FLOPs or bytes",
        ]
    unknown = sorted({row.operator for row in left if row.ns is None})
    if unknown:
        calls = sum(row.calls for row in left if row.ns is None)
        lines.append(f"  without {counted(calls)} of {', '.join(unknown)}, of which nothing was measured for {target}")
    if left:
        lines.append("  not measured, most time first:")
        lines += ["    " + line for line in columns([_left(row) for row in left[:top]])]
    if len(left) > top:
        lines.append(f"    and {counted(len(left) - top, 'more problem')}")
    return "\n".join(lines) + "\n"


def _row(name: str, problems: Sequence[CoveredProblem]) -> tuple[str, ...]:
    tuned = [row for row in problems if row.tuned]
    calls, covered = sum(row.calls for row in problems), sum(row.calls for row in tuned)
    time, time_covered = sum(row.total for row in problems), sum(row.total for row in tuned)
    return (
        name,
        str(len(problems)),
        str(len(tuned)),
        f"{calls:.10g}",
        percent_text(covered / calls),
        format_time(time) if time else "unknown",
        percent_text(time_covered / time) if time else "-",
    )


def _left(row: CoveredProblem) -> tuple[str, ...]:
    about = "time unknown" if row.ns is None else f"about {format_time(row.total)}, by {row.near}"
    return row.operator, row.problem, counted(row.calls), about
