"""Whether traces come from a library. Traces of another one say nothing about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aot_tune.spec import Operator
from aot_tune.support.errors import SpecError, did_you_mean
from aot_tune.workloads.built_library import BuiltLibrary
from aot_tune.workloads.known_problems import known
from aot_tune.workloads.workload_records import CountedProblem, TraceHeader, tell

__all__ = ["of_library", "stranger"]

_FIX = "name the build that was traced with --library, or"


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
    tell(error for error in strangers if error is not None)
    others = [header for header in headers if header.build and not library.build.startswith(header.build)]
    declared = {name: operator for name, operator in operators.items() if name in library.operators}
    try:
        tell(error for line in lines if (error := _absent(line, library, declared)) is not None)
        problems = known(lines, declared)
    except SpecError as error:
        if not others:
            raise
        raise SpecError(
            f"{others[0].place}: this is a trace of another build of {library.name!r}, with other operators",
            why=f"it is of build {others[0].build[:12]}, and {error.what}",
            fix=f"{_FIX} trace the one at {library.place}",
        ) from error
    return problems, [_warning(header, library) for header in others]


def stranger(header: TraceHeader, name: str, prefix: str, here: str, fix: str) -> SpecError | None:
    """The error for a trace of another library than the given one. `here` says where that is."""
    if header.library == name and header.prefix in ("", prefix):
        return None
    said = f"{header.library!r}" + (f" with the prefix {header.prefix!r}" if header.prefix else "")
    ours = f"{name!r}" + (f" with the prefix {prefix!r}" if header.prefix else "")
    return SpecError(f"{header.place}: this is a trace of library {said}", why=f"{here} is {ours}", fix=fix)


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
