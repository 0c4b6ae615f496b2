"""A library as its build described it: the manifest says what was measured, the report says the times."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from aot_tune.link.manifest import SCHEMA
from aot_tune.report import ProblemRow, read_report
from aot_tune.spec import Operator, Problem
from aot_tune.spec.problem_named import problem_named
from aot_tune.support.errors import BuildError, ManifestError, OptionError
from aot_tune.support.installed_paths import installed_report

__all__ = ["BuiltLibrary", "TimedProblem", "find_library", "read_library", "timed_problems"]

_FILES = ("manifest.json", "report.json")
_INSTALLED = Path("share/aot_tune/ops")


class _ManifestTable(msgspec.Struct, frozen=True):
    target: str
    tuned: tuple[str, ...]


class _ManifestOperator(msgspec.Struct, frozen=True):
    name: str
    tables: tuple[_ManifestTable, ...]


class _Manifest(msgspec.Struct, frozen=True):
    schema: int
    library: str
    prefix: str
    operators: tuple[_ManifestOperator, ...]


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
    """The folder with the manifest and the report of a build: of the named library, or of a Python module.

    Raises:
        BuildError: when there is no such folder.
    """
    if path is None:
        folder = installed_report(module).parent
        places = [folder]
    elif path.is_dir() or not path.exists():
        places = [path]
    else:
        places = [path.parent, path.parent / _INSTALLED, path.parent.parent / _INSTALLED]
    for place in places:
        if all((place / name).is_file() for name in _FILES):
            return place
    raise BuildError(
        f"there is no {' and '.join(_FILES)} at {path or places[0]}",
        why="these files say what was measured for a library. Its build leaves them beside it",
        fix="name the folder where its build left them, such as build/aot_tune/my_kernels, with --library",
    )


def read_library(folder: Path) -> BuiltLibrary:
    """What the files in a folder say.

    Raises:
        ManifestError: when the manifest cannot be read.
        BuildError: when the report cannot be read, or belongs to another library.
    """
    data = (folder / _FILES[0]).read_bytes()
    try:
        manifest = msgspec.json.decode(data, type=_Manifest)
    except msgspec.DecodeError as error:
        raise ManifestError(
            f"{folder / _FILES[0]} is not a manifest: {error}", fix="build the library again, or name another"
        ) from error
    if manifest.schema != SCHEMA:
        raise ManifestError(
            f"{folder / _FILES[0]} has schema {manifest.schema}, wanted {SCHEMA}", fix="build the library again"
        )
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
        rows={(one.operator, one.target): one.problems for one in report.operators},
    )


def timed_problems(library: BuiltLibrary, operator: Operator, target: str) -> list[TimedProblem]:
    """What was measured of an operator on a target, with the times of the variants that calls get.

    Raises:
        BuildError: when the operator differs from the build's.
    """
    tuned = library.tuned.get((operator.name, target), frozenset())
    found = []
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
        found.append(
            TimedProblem(problem=problem, ns=row.ns * (1 + row.regret), flops=row.flops, bytes=row.bytes)
        )  # fmt: skip
    return found
