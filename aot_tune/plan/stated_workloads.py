"""Workloads of AOT_TUNE_WORKLOAD: files of JSON lines, one problem each, checked against a library's operators."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from aot_tune.compile import families_of, toolchain_for
from aot_tune.report.report_text import counted
from aot_tune.spec import Operator, Problem
from aot_tune.spec.calls import check_work, is_empty, is_taken
from aot_tune.spec.workload import (
    KnownProblems,
    StatedWorkload,
    WeightedProblem,
    added_up,
    declared_problems,
    in_known_form,
    known_forms,
    with_workload,
)
from aot_tune.support.errors import Mistakes, OptionError, SpecError
from aot_tune.workloads.workload_lines import CountedProblem, decode_workload, known_problems, stranger

_FORMAT = 'a line is {"operator": NAME, "dims": {...}} with the other fields of a problem; see docs/workload-files.md'
_ELSEWHERE = "in a project of several libraries, name each library's file as WORKLOAD of its aot_tune_add_library"
_OF_ANY = "if its operators are the same, `aot-tune workload merge` turns it into a workload for any library"


class WorkloadFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file, by its name without a folder."""

    name: str
    problems: int
    beside: bool = False


class WorkloadPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the files state, by operator. Like a plan, it holds contents and no paths."""

    files: tuple[WorkloadFile, ...] = ()
    operators: dict[str, StatedWorkload] = {}

    def told(self) -> list[str]:
        """A line for each file."""
        return [
            f"{file.name}: {counted(file.problems, 'problem')}" + (" added to the declared ones" if file.beside else "")
            for file in self.files
        ]

    def unserved(self, operator: Operator, families: Iterable[str]) -> dict[str, list[str]]:
        """By family of devices, ids of an operator's stated problems that no kernel takes."""
        problems = [entry.problem for entry in self.operators[operator.name].problems]
        left_out = {f: [p.id for p in problems if not is_served(operator, p, f)] for f in families}
        return {f: left for f, left in left_out.items() if left}

    def stated_for(self, operator: Operator, families: Iterable[str]) -> Operator:
        """The operator with its stated workload; the operator itself if there is none."""
        stated = self.operators.get(operator.name)
        return operator if stated is None else with_workload(operator, stated, self.unserved(operator, families))

    def notes(self, operators: Mapping[str, Operator], families: Sequence[str]) -> list[str]:
        """A line for each operator with stated problems that no kernel for some devices takes."""
        return [
            f"workload: no kernel of {name} for {family} takes {len(left)} of {len(stated.problems)} problems, such as "
            f"'{left[0]}': nothing is tuned for them"
            for name, stated in self.operators.items()
            for family, left in self.unserved(operators[name], families).items()
        ]


def is_served(operator: Operator, problem: Problem, devices: str) -> bool:
    """Whether any kernel for a family of devices takes a problem."""
    kernels = [k for k in operator.kernels if devices in families_of(toolchain_for(k.backend))]
    return is_taken(operator, problem, kernels)


@dataclass
class ReadWorkload:
    """A workload as it was read. By operator and problem id, `places` has the file and line of each problem."""

    plan: WorkloadPlan = field(default_factory=WorkloadPlan)
    paths: list[Path] = field(default_factory=list)
    places: dict[tuple[str, str], str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_workload(
    given: Sequence[str],
    library: tuple[str, str],
    operators: Mapping[str, Operator],
    others: Collection[str],
    recorded: Mapping[str, Sequence[Problem]],
    mistakes: Mistakes,
) -> ReadWorkload:
    """Read the files of a workload. `mistakes` collects what is wrong with them, by file and line.

    Args:
        given: paths. With a `+` in front, the file's problems are added to the declared ones.
        library: its name and prefix. Traces of other libraries do not count.
        operators: the library's operators.
        others: other existing operators, which the library is built without. Their lines are left out.
        recorded: problems of databases, by operator. An equal problem takes the form that it has there.
    """
    workload = ReadWorkload()
    reader = _Reader(library, operators, others, recorded)
    for text in given:
        with mistakes.gather():
            path = Path(os.path.abspath(text.removeprefix("+")))  # noqa: PTH100 - links are kept as they are named
            workload.paths.append(path)
            reader.read(path, text.startswith("+"), workload, mistakes)
    stated = {
        name: StatedWorkload(problems=added_up(problems), beside=name not in reader.replaced)
        for name, problems in sorted(reader.problems.items())
    }
    workload.plan = WorkloadPlan(files=tuple(reader.files), operators=stated)
    workload.notes += reader.notes()
    return workload


class _Reader:
    """Reads files one after the other. `replaced` are the operators whose declared problems no longer count."""

    def __init__(
        self,
        library: tuple[str, str],
        operators: Mapping[str, Operator],
        others: Collection[str],
        recorded: Mapping[str, Sequence[Problem]],
    ) -> None:
        self._library, self._operators, self._others, self._recorded = library, operators, others, recorded
        self._known: dict[str, KnownProblems] = {}
        self._told: Counter[str] = Counter()
        self.files: list[WorkloadFile] = []
        self.problems: dict[str, list[WeightedProblem]] = {}
        self.replaced: set[str] = set()

    def notes(self) -> list[str]:
        """A line on each kind of lines that are left out or completed."""
        return [f"workload: {counted(count, 'problem')} {told}" for told, count in sorted(self._told.items())]

    def read(self, path: Path, beside: bool, workload: ReadWorkload, mistakes: Mistakes) -> None:
        """Add a file's problems."""
        wrong = Mistakes()
        lines = decode_workload(_contents(path), str(path), wrong)
        checked: list[CountedProblem] = []
        count = 0
        with wrong.gather():
            stated = self._of_library(lines)
            served = [line for line in stated if line.operator in self._operators or line.operator not in self._others]
            self._tell_of(stated)
            checked = known_problems(served, self._operators, _ELSEWHERE)
            count = len(stated) - len(served)
        for line in checked:
            with wrong.gather():
                count += self._take(line, beside, workload)
        with mistakes.gather():
            wrong.tell()
            if not count:
                raise SpecError(
                    f"{path}:1: the workload's file has no problem",
                    why="it holds only calls without elements" if lines else "it is empty, or a trace of no call",
                    fix=f"write a line for each problem worth tuning, or do not name the file: {_FORMAT}",
                )
        self.files.append(WorkloadFile(name=path.name, problems=count, beside=beside))

    def _of_library(self, lines: Sequence[CountedProblem]) -> list[CountedProblem]:
        """Lines not from another library's trace: programs may use several. Raises SpecError when there are none."""
        headers = dict.fromkeys(line.trace for line in lines if line.trace is not None)
        here, fix = "the one that is built", f"name a trace of this library; {_OF_ANY}"
        wrong = {h: error for h in headers if (error := stranger(h, *self._library, here, fix)) is not None}
        accepted = [line for line in lines if line.trace not in wrong]
        if wrong and not accepted:
            raise next(iter(wrong.values()))
        for line in lines:
            if line.trace is not None and line.trace in wrong:
                self._told[f"called in library {line.trace.library!r} left out"] += 1
        return accepted

    def _tell_of(self, lines: Iterable[CountedProblem]) -> None:
        """Count lines that are left out, and lines without a dtype: they get the first one, perhaps by mistake."""
        for line in lines:
            operator = self._operators.get(line.operator)
            if operator is None:
                self._told[f"of {line.operator} left out, which this library is built without"] += 1
                continue
            for variable, choices in operator.dtypes.items() if not line.called else ():
                if len(choices) > 1 and variable not in line.problem.dtypes:
                    self._told[f"of {line.operator} without dtype {variable} taken as {choices[0]}"] += 1

    def _take(self, line: CountedProblem, beside: bool, workload: ReadWorkload) -> bool:
        """Add a checked line. Returns whether it counts: a trace may have calls without elements."""
        operator = self._operators[line.operator]
        if line.called and is_empty(operator, line.problem):
            return False
        check_work(operator, line.problem, f"{line.place}: operator {operator.name!r}: its workload")
        if operator.name not in self._known:
            self._known[operator.name] = known_forms(
                operator, (*declared_problems(operator), *self._recorded.get(operator.name, ()))
            )
        problem = in_known_form(operator, line.problem, self._known[operator.name])
        workload.places.setdefault((operator.name, problem.id), line.place)
        self.problems.setdefault(operator.name, []).append(WeightedProblem(problem=problem, weight=line.weight))
        if not beside:
            self.replaced.add(operator.name)
        return True


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OptionError(
            f"{path}: the workload's file cannot be read",
            why=f"{error.strerror}; AOT_TUNE_WORKLOAD or WORKLOAD names it",
            fix="correct the path: in CMake it is relative to the folder of the CMakeLists.txt, in the environment to "
            "the current folder",
        ) from error
