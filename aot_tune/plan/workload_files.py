"""Workloads of AOT_TUNE_WORKLOAD: files of JSON lines, a problem each, checked against the operators of a library."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from aot_tune.compile import families_of, toolchain_for
from aot_tune.spec import Operator, Problem, all_of
from aot_tune.spec.check_problem import check_problem, check_values_of, check_work, is_empty
from aot_tune.spec.workload import (
    KnownProblems,
    StatedWorkload,
    WeightedProblem,
    added_up,
    declared_problems,
    facts_of,
    in_known_form,
    with_workload,
)
from aot_tune.support.errors import Mistakes, OptionError, SpecError, did_you_mean
from aot_tune.support.shared_fields import shared_fields

__all__ = ["ReadWorkload", "WorkloadFile", "WorkloadPlan", "is_served", "read_workload"]

_FORMAT = 'a line is {"operator": NAME, "dims": {...}} and what else a problem has; see docs/workload-files.md'


class WorkloadFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file: its name without a folder, and the header of the trace that it is, if it is one."""

    name: str
    problems: int
    beside: bool = False
    trace: dict[str, Any] | None = None


class WorkloadPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the files state, by operator; it holds contents and no path, as a plan does."""

    files: tuple[WorkloadFile, ...] = ()
    operators: dict[str, StatedWorkload] = {}

    def told(self) -> list[str]:
        """A line for each file."""
        return [
            f"{one.name}: {one.problems} problem{'s' * (one.problems != 1)}"
            + (" beside the declared ones" if one.beside else "")
            for one in self.files
        ]

    def unserved(self, operator: Operator, families: Iterable[str]) -> dict[str, list[str]]:
        """Ids of the problems stated for an operator that no kernel takes, by family of devices."""
        problems = [one.problem for one in self.operators[operator.name].problems]
        found = {f: [p.id for p in problems if not is_served(operator, p, f)] for f in families}
        return {f: left for f, left in found.items() if left}

    def stated_for(self, operator: Operator, families: Iterable[str]) -> Operator:
        """The operator with the workload that is stated for it; itself where there is none."""
        stated = self.operators.get(operator.name)
        return operator if stated is None else with_workload(operator, stated, self.unserved(operator, families))

    def notes(self, operators: Mapping[str, Operator], families: Sequence[str]) -> list[str]:
        """A line for each operator of which no kernel for some devices takes some of the stated problems."""
        return [
            f"workload: no kernel of {name} for {family} takes {len(left)} of {len(stated.problems)} problems, such as "
            f"'{left[0]}': nothing is tuned for them there"
            for name, stated in self.operators.items()
            for family, left in self.unserved(operators[name], families).items()
        ]


def is_served(operator: Operator, problem: Problem, devices: str) -> bool:
    """Whether any kernel for a family of devices takes a problem."""
    facts = operator.facts(problem)
    dtypes = {v: problem.dtypes.get(v, choices[0]) for v, choices in operator.dtypes.items()}
    kernels = (k for k in operator.kernels if devices in families_of(toolchain_for(k.backend)))
    return any(dtypes in operator.dtype_choices(k) and all_of(k.requires, facts) for k in kernels)


@dataclass
class ReadWorkload:
    """A workload as it was read; `places` has the file and line of each problem, by operator and problem id."""

    plan: WorkloadPlan = field(default_factory=WorkloadPlan)
    paths: list[Path] = field(default_factory=list)
    places: dict[tuple[str, str], str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class _WorkloadLine(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a line; those of a problem are as databases write them, where they come with an `id`."""

    operator: str
    dims: dict[str, int]
    order: dict[str, tuple[int, ...]] = {}
    strides: dict[str, tuple[int, ...]] = {}
    present: tuple[str, ...] = ()
    attributes: dict[str, str] = {}
    alignment: dict[str, int] = {}
    dtypes: dict[str, str] = {}
    id: str = ""
    weight: float = 0.0
    calls: int = 0
    captured: int = 0


def read_workload(
    given: Sequence[str],
    operators: Mapping[str, Operator],
    others: Collection[str],
    recorded: Mapping[str, Sequence[Problem]],
    mistakes: Mistakes,
) -> ReadWorkload:
    """Read the files of a workload; `mistakes` get what is wrong with them, by file and line.

    Args:
        given: paths; with a `+` in front, the file's problems come beside the declared ones.
        operators: those of the library.
        others: operators that there are and that the library is built without: their lines are left out.
        recorded: problems of databases by operator: an equal one is taken as it is written there.
    """
    found = ReadWorkload()
    reader = _Reader(operators, others, recorded)
    for text in given:
        with mistakes.gather():
            path = Path(os.path.abspath(text.removeprefix("+")))  # noqa: PTH100 - links are kept as they are named
            found.paths.append(path)
            reader.read(path, text.startswith("+"), found, mistakes)
    stated = {
        name: StatedWorkload(problems=added_up(problems), beside=name not in reader.replaced)
        for name, problems in sorted(reader.problems.items())
    }
    found.plan = WorkloadPlan(files=tuple(reader.files), operators=stated)
    found.notes += [
        f"workload: {count} problem{'s' * (count != 1)} of {name} left out, which this library is built without"
        for name, count in sorted(reader.left_out.items())
    ]
    return found


class _Reader:
    """Reads files in turn; `replaced` are the operators whose declared problems do not count any more."""

    def __init__(
        self, operators: Mapping[str, Operator], others: Collection[str], recorded: Mapping[str, Sequence[Problem]]
    ) -> None:
        self._operators, self._others, self._recorded = operators, others, recorded
        self._known: dict[str, KnownProblems] = {}
        self.files: list[WorkloadFile] = []
        self.problems: dict[str, list[WeightedProblem]] = {}
        self.replaced: set[str] = set()
        self.left_out: dict[str, int] = {}

    def read(self, path: Path, beside: bool, found: ReadWorkload, mistakes: Mistakes) -> None:
        """Take a file's problems in."""
        rows = [(n, row) for n, row in enumerate(_contents(path).split(b"\n"), 1) if row.strip()]
        trace: dict[str, Any] | None = None
        count = 0
        for number, row in rows:
            where = f"{path}:{number}"
            with mistakes.gather():
                count += 1
                fields = _fields(row, where)
                if set(fields) == {"trace"} or set(fields) == {"others"}:  # what a trace has beside problems
                    trace = _header(fields["trace"], where) if "trace" in fields else trace
                    count -= 1
                    continue
                line = _line(fields, where)
                problem = self._problem(line, where)
                if problem is None and line.operator in self._operators:  # a trace has calls without elements, too
                    count -= 1
                    continue
                if problem is None:
                    self.left_out[line.operator] = self.left_out.get(line.operator, 0) + 1
                    continue
                weight = float(line.weight or line.calls or 1)
                found.places.setdefault((line.operator, problem.id), where)
                self.problems.setdefault(line.operator, []).append(WeightedProblem(problem=problem, weight=weight))
                if not beside:
                    self.replaced.add(line.operator)
        if not count:
            raise SpecError(
                f"{path}:{max(len(rows), 1)}: the workload's file has no problem",
                why="the header of a trace is all it holds" if rows else "it is empty",
                fix=f"write a line for each problem worth tuning, or do not name the file: {_FORMAT}",
            )
        self.files.append(WorkloadFile(name=path.name, problems=count, beside=beside, trace=trace))

    def _problem(self, line: _WorkloadLine, where: str) -> Problem | None:
        """The problem of a line; None for one of an operator that the library is built without, or of empty calls."""
        operator = self._operators.get(line.operator)
        if operator is None and line.operator in self._others:
            return None
        if operator is None:
            raise SpecError(
                f"{where}: unknown operator {line.operator!r}",
                why=f"the library has {_listed(self._operators)}",
                fix=f"{did_you_mean(line.operator, [*self._operators, *self._others])} A project of several libraries "
                "gives each its file by WORKLOAD of aot_tune_add_library",
            )
        stated = Problem(**shared_fields(line, Problem))
        try:
            check_problem(operator, stated)
            _check_stated(operator, stated, line.id)
            check_values_of(operator, stated)
            if line.calls and is_empty(operator, stated):
                return None
            check_work(operator, stated, f"operator {operator.name!r}: its workload")
        except SpecError as error:
            why = error.why or f"operator {operator.name!r} has {_arguments(operator)}"
            fix = error.fix or "mend the line, or remove it"
            raise SpecError(f"{where}: {error.what}", why=why, fix=fix) from error
        return in_known_form(operator, stated, self._known_of(operator))

    def _known_of(self, operator: Operator) -> KnownProblems:
        """The problems that are declared or recorded, by their facts."""
        if operator.name not in self._known:
            known: KnownProblems = {}
            for problem in (*declared_problems(operator), *self._recorded.get(operator.name, ())):
                try:
                    check_problem(operator, problem)  # a record may be of another version of the operator
                except SpecError:
                    continue
                known.setdefault(facts_of(operator, problem), problem)
            self._known[operator.name] = known
        return self._known[operator.name]


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OptionError(
            f"{path}: the workload's file cannot be read",
            why=f"{error.strerror}; AOT_TUNE_WORKLOAD or WORKLOAD names it",
            fix="mend the path: in CMake it is relative to the folder of the CMakeLists.txt, in the environment to the "
            "current folder",
        ) from error


def _fields(row: bytes, where: str) -> dict[str, Any]:
    """The fields of a line, none that nobody knows."""
    try:
        found = msgspec.json.decode(row)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{where}: this is not JSON: {_shown(row)}", why=str(error), fix=_FORMAT) from error
    if not isinstance(found, dict):
        raise SpecError(f"{where}: this is no JSON object: {_shown(row)}", why="each line is a problem", fix=_FORMAT)
    return found


def _header(trace: object, where: str) -> dict[str, Any]:
    if not isinstance(trace, dict):
        raise SpecError(f"{where}: the header of a trace is no JSON object", why=str(trace)[:80], fix="trace again")
    return trace


def _line(found: dict[str, Any], where: str) -> _WorkloadLine:
    names = _WorkloadLine.__struct_fields__
    for name in found:
        if name not in names:
            raise SpecError(f"{where}: unknown field {name!r}", why=f"a line has {_listed(names)}", fix=_remedy(name))
    for name in ("weight", "calls"):
        value = found.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
            raise SpecError(
                f"{where}: {name} {value!r} is no positive number",
                why="it says how much the problem counts beside the others: what is heavy is tuned first",
                fix=f'write a number above 0, such as "{name}": 1, or remove the line',
            )
    try:
        line = msgspec.convert(found, _WorkloadLine)
    except msgspec.ValidationError as error:
        raise SpecError(f"{where}: the line is no problem", why=str(error), fix=_FORMAT) from error
    for name, extent in line.dims.items():
        if not 0 <= extent < 1 << 63:
            raise SpecError(
                f"{where}: dim {name}={extent} is no extent",
                why="an axis has from 0 to 2^63 - 1 elements",
                fix="state what calls have",
            )
    for tensor, strides in line.strides.items():
        if any(not 0 <= s < 1 << 63 for s in strides):
            raise SpecError(
                f"{where}: strides {list(strides)} of {tensor!r} are none that tensors have",
                why="a stride is the elements from one to the next along an axis, 0 or more",
                fix="state what calls have",
            )
    return line


def _remedy(name: str) -> str:
    if name == "trace":
        return "the header of a trace has a line of its own"
    if name == "problem":
        return 'write what "problem" holds beside "operator", one level up'
    near = difflib.get_close_matches(name, _WorkloadLine.__struct_fields__, n=1)
    return f"did you mean {near[0]!r}?" if near else "remove it"


def _check_stated(operator: Operator, problem: Problem, name: str) -> None:
    """Raise for dtypes that are left out, unless the line is a database's, which leaves the first choice out."""
    if name and name != problem.id:
        raise SpecError(
            f"id {name!r} is of another problem",
            why=f"the fields are those of '{problem.id}'",
            fix="mend the fields, or remove the id",
        )
    for variable, choices in operator.dtypes.items():
        if not name and len(choices) > 1 and variable not in problem.dtypes:
            raise SpecError(
                f"operator {operator.name!r}: problem '{problem.id}': dtype {variable} is not stated",
                why=f"there are {_listed(choices)}",
                fix=f'write "dtypes": {{"{variable}": "{choices[0]}"}}',
            )


def _arguments(operator: Operator) -> str:
    """What a problem of an operator can state, in words."""
    words = [f"dims {_listed(operator.dims)}"]
    words += [f"dtypes {v}: {_listed(choices)}" for v, choices in operator.dtypes.items()]
    words += [f"attribute {a.name}: {_listed(a.choices)}" for a in operator.attributes]
    optional = [t.name for t in operator.tensors if t.optional]
    return "; ".join([*words, *([f"optional tensors {_listed(optional)}"] if optional else [])])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _shown(row: bytes) -> str:
    text = row.decode(errors="replace").strip()
    return text if len(text) <= 80 else text[:77] + "..."
