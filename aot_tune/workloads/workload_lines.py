"""Workload files and traces: lines read strictly, checked against their operators, added up, written and shown."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from aot_tune.report.report_text import columns, counted, percent_text
from aot_tune.spec import Operator, Problem
from aot_tune.spec.calls import check_call
from aot_tune.spec.workload import normal_problem
from aot_tune.support.digests import shared_fields
from aot_tune.support.errors import AotTuneError, Mistakes, SpecError, did_you_mean, tell_all

_ENOUGH_MISTAKES = 10
"""After this many mistakes, a file is not read further: it is another kind of file, or from another library."""

_FORM = 'write lines such as {"operator": "gemm", "dims": {"M": 16, "N": 4096, "K": 4096}, "weight": 2}'
_NO_JSON = (
    "each line is one JSON object, without NaN or Infinity; the last one of a trace is cut off if its process "
    "was killed"
)
_TRACE_FORM = 1
_LONGEST = 2**63 - 1
_EXACT = 2**53
"""Weights below it are written as whole numbers if they are whole."""


_Count = Annotated[int, msgspec.Meta(ge=0, le=_LONGEST)]

_OTHERS = "others"
"""The only field of a trace's line that counts calls of kinds for which the trace had no room."""

_BY_TEMPLATES = "--templates names the template root of a project's own operators"


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Which process of which library wrote the lines that follow. `place` is where. Unknown fields are ignored."""

    library: str
    prefix: str = ""
    build: str = ""
    pid: int = 0
    begun: float = 0.0
    format: int = _TRACE_FORM
    place: str = ""


class CountedProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of an operator and its weight. `captured` is the part of it from calls while a graph was captured.

    `place` is the line that states it. `trace` is the process that called it. If it was `called`, its weight is a
    number of calls.
    """

    operator: str
    problem: Problem
    weight: float = 1.0
    captured: float = 0.0
    called: bool = False
    place: str = ""
    trace: TraceHeader | None = None


class _StatedLine(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a line. Databases write problems with these fields and an `id`."""

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
    calls: _Count = 0
    captured: _Count = 0
    online: dict[str, Any] = {}


_FIELDS = _StatedLine.__struct_fields__


def decode_workload(text: bytes, name: str, mistakes: Mistakes | None = None) -> list[CountedProblem]:
    """The problems of a workload file or a trace, in the order of its lines. Messages use `name` for the file.

    Whether an operator has such problems is not checked.

    Args:
        mistakes: collects what is wrong with lines, each with its place. Without it, errors are raised.

    Raises:
        SpecError: for lines that cannot be read, if there is no `mistakes`.
    """
    problems: list[CountedProblem] = []
    wrong: list[AotTuneError] = []
    trace: TraceHeader | None = None
    for number, row in enumerate(text.split(b"\n"), 1):
        if not row.strip():
            continue
        try:
            line = _decode(row, f"{name}:{number}")
        except SpecError as error:
            wrong.append(error)
            if len(wrong) == _ENOUGH_MISTAKES:
                break
            continue
        if isinstance(line, TraceHeader):
            trace = line
        elif line is not None:
            problems.append(msgspec.structs.replace(line, trace=trace))
    if mistakes is None:
        tell_all(wrong)
    else:
        for mistake in wrong:
            mistakes.add(mistake)
    return problems


def _decode(row: bytes, where: str) -> CountedProblem | TraceHeader | None:
    """What a line says; None if it only counts calls for which the trace had no room."""
    try:
        read = msgspec.json.decode(row)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(
            f"{where}: this is not JSON: {_shown(row)}", why=f"{error}; {_NO_JSON}", fix=f"remove the line, or {_FORM}"
        ) from error
    if not isinstance(read, dict):
        raise SpecError(f"{where}: this is not a JSON object: {_shown(row)}", why="each line is a problem", fix=_FORM)
    if set(read) == {"trace"}:
        return _header(read["trace"], where)
    if set(read) == {_OTHERS}:
        return None
    _check_fields(read, where)
    try:
        line = msgspec.convert(read, _StatedLine)
    except msgspec.ValidationError as error:
        raise SpecError(f"{where}: the line is not a problem: {_in_words(error)}", why=_has(), fix=_FORM) from error
    _check_extents(line, where)
    return _stated_problem(line, where)


def _header(read: object, where: str) -> TraceHeader:
    try:
        header = msgspec.convert(read, TraceHeader)
    except msgspec.ValidationError as error:
        raise SpecError(
            f"{where}: this is not the header of a trace: {_in_words(error)}",
            why="a library writes one before the lines of each process",
            fix="leave the lines of a trace as the library wrote them, or remove this one to make it a workload file",
        ) from error
    if header.format != _TRACE_FORM:
        raise SpecError(
            f"{where}: this is a trace of form {header.format}",
            why=f"it was written by a library of another aot_tune; this one reads form {_TRACE_FORM}",
            fix="read it with the aot_tune that built the library, or trace a library that this one built",
        )
    return msgspec.structs.replace(header, place=where)


def _check_fields(read: Mapping[str, Any], where: str) -> None:
    """Raise for a field that lines do not have, and for an invalid weight."""
    for name in read:
        if name not in _FIELDS:
            raise SpecError(f"{where}: unknown field {name!r}", why=_has(), fix=_remedy(name))
    for name in ("weight", "calls"):
        value = read.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
            raise SpecError(
                f"{where}: {name} {value!r} is not a positive number",
                why="it says how much the problem counts, relative to the others: heavier problems are tuned first",
                fix=f'write a number above 0, such as "{name}": 1, or remove the line',
            )


def _check_extents(line: _StatedLine, where: str) -> None:
    for name, extent in line.dims.items():
        if not 0 <= extent <= _LONGEST:
            raise SpecError(
                f"{where}: dim {name}={extent} is not an extent",
                why="an axis has from 0 to 2^63 - 1 elements",
                fix="write the extents that calls have",
            )
    for tensor, strides in line.strides.items():
        if any(not 0 <= s <= _LONGEST for s in strides):
            raise SpecError(
                f"{where}: strides {list(strides)} of {tensor!r} are not strides of a tensor",
                why="a stride is the distance along an axis in elements, 0 or more",
                fix="write the strides that calls have",
            )


def _stated_problem(line: _StatedLine, where: str) -> CountedProblem:
    """The problem that a line states, and its weight."""
    if line.weight and line.calls:
        raise SpecError(
            f"{where}: it has a weight and a number of calls",
            why="calls are the weight of a trace's line",
            fix="keep one of the two",
        )
    weight = line.calls or line.weight or 1
    if line.captured > weight:
        raise SpecError(
            f"{where}: {line.captured} of {weight:g} calls are stated as captured",
            why="captured calls are part of all calls",
            fix="correct one of the two numbers",
        )
    problem = Problem(**shared_fields(line, Problem) | {"present": tuple(sorted(set(line.present)))})
    if line.id and line.id != problem.id:
        raise SpecError(
            f"{where}: id {line.id!r} belongs to another problem",
            why=f"the fields are those of '{problem.id}'",
            fix="correct the fields, or remove the id",
        )
    return CountedProblem(
        operator=line.operator,
        problem=problem,
        weight=float(weight),
        captured=float(line.captured),
        called=line.calls > 0,
        place=where,
    )


def _has() -> str:
    return f"a line has {', '.join(_FIELDS)}"


def _remedy(name: str) -> str:
    if name == "trace":
        return "the header of a trace has a line of its own"
    if name == "problem":
        return 'write the fields of "problem" beside "operator", one level up'
    near = difflib.get_close_matches(name, _FIELDS, n=1)
    return f"did you mean {near[0]!r}?" if near else "remove it"


def _in_words(error: Exception) -> str:
    """What msgspec found, without its name for the whole."""
    return str(error).replace(" - at `$.", " - at `").replace("Object missing", "it lacks the")


def _shown(row: bytes) -> str:
    text = row.decode(errors="replace").strip()
    return text if len(text) <= 80 else text[:77] + "..."


def stranger(header: TraceHeader, name: str, prefix: str, here: str, fix: str) -> SpecError | None:
    """The error for a trace of another library than the given one. `here` says where that is."""
    if header.library == name and header.prefix in ("", prefix):
        return None
    library = f"{header.library!r}" + (f" with the prefix {header.prefix!r}" if header.prefix else "")
    ours = f"{name!r}" + (f" with the prefix {prefix!r}" if header.prefix else "")
    return SpecError(f"{header.place}: this is a trace of library {library}", why=f"{here} is {ours}", fix=fix)


def encode_workload(problems: Iterable[CountedProblem]) -> bytes:
    """The text of a workload file. Equal problems give equal bytes."""
    return b"".join(msgspec.json.encode(_plain(entry)) + b"\n" for entry in problems)


def _plain(entry: CountedProblem) -> dict[str, object]:
    stated = msgspec.to_builtins(entry.problem)
    whole = entry.weight < _EXACT and entry.weight == int(entry.weight)
    return {"operator": entry.operator, **stated, "weight": int(entry.weight) if whole else entry.weight}


def known_problems(
    lines: Iterable[CountedProblem], operators: Mapping[str, Operator], elsewhere: str = _BY_TEMPLATES
) -> list[CountedProblem]:
    """The lines, with their problems in the normal form.

    Args:
        elsewhere: where other operators may be, for the message.

    Raises:
        SpecError: for lines with a problem that its operator does not have. It names file and line.
    """
    problems: list[CountedProblem] = []
    wrong: list[AotTuneError] = []
    checked: dict[tuple[str, str], Problem] = {}  # traces of many processes repeat the same problems
    for line in lines:
        key = line.operator, line.problem.id
        try:
            if key not in checked:
                checked[key] = _checked(line, operators, elsewhere)
            problems.append(msgspec.structs.replace(line, problem=checked[key]))
        except SpecError as error:
            wrong.append(error)
            if len(wrong) == _ENOUGH_MISTAKES:
                break
    tell_all(wrong)
    return problems


def _checked(line: CountedProblem, operators: Mapping[str, Operator], elsewhere: str) -> Problem:
    operator = operators.get(line.operator)
    if operator is None:
        raise SpecError(
            f"{line.place}: unknown operator {line.operator!r}",
            why=f"there are {', '.join(operators)}",
            fix=f"{did_you_mean(line.operator, operators)} ({elsewhere})",
        )
    try:
        check_call(operator, line.problem)
    except SpecError as error:
        why = error.why or f"operator {operator.name!r} has {_arguments(operator)}"
        if line.trace is not None and line.trace.build:
            why += (
                f"; it was called in build {line.trace.build[:12]} of {line.trace.library!r}, whose operator may differ"
            )
        raise SpecError(
            f"{line.place}: {error.what}", why=why, fix=error.fix or "correct the line, or remove it"
        ) from error
    return normal_problem(operator, line.problem)


def _arguments(operator: Operator) -> str:
    """Everything that a problem of an operator can state, in words."""
    words = [f"dims {', '.join(operator.dims)}"]
    words += [f"dtypes {v}: {', '.join(choices)}" for v, choices in operator.dtypes.items()]
    words += [f"attribute {a.name}: {', '.join(a.choices)}" for a in operator.attributes]
    optional = [t.name for t in operator.tensors if t.optional]
    return "; ".join([*words, *([f"optional tensors {', '.join(optional)}"] if optional else [])])


def add_up(lines: Iterable[CountedProblem]) -> list[CountedProblem]:
    """One line for each problem, with the sum of its weights. The heaviest problem comes first."""
    sums: dict[tuple[str, str], CountedProblem] = {}
    for line in lines:
        key = line.operator, line.problem.id
        before = sums.get(key)
        if before is None:
            sums[key] = line
        else:
            weight = min(before.weight + line.weight, sys.float_info.max)
            captured = before.captured + line.captured
            sums[key] = msgspec.structs.replace(before, weight=weight, captured=captured)
    return sorted(sums.values(), key=lambda entry: (-entry.weight, entry.operator, entry.problem.id))


def call_tables(problems: Sequence[CountedProblem], operators: Mapping[str, Operator], top: int | None = None) -> str:
    """A table for each operator, with its `top` problems, or with all of them by default."""
    total = sum(entry.weight for entry in problems)
    groups: dict[str, list[CountedProblem]] = {}
    for entry in problems:
        groups.setdefault(entry.operator, []).append(entry)
    by_calls = sorted(groups, key=lambda name: (-sum(entry.weight for entry in groups[name]), name))
    return "\n\n".join(_table(operators[name], groups[name], total, top) for name in by_calls) + "\n"


def _table(operator: Operator, problems: Sequence[CountedProblem], total: float, top: int | None) -> str:
    calls, captured = sum(entry.weight for entry in problems), sum(entry.captured for entry in problems)
    shown = sorted(problems, key=lambda entry: (-entry.weight, entry.problem.id))[:top]
    head = ("calls", "share", "captured", *operator.dims, *operator.dtypes, "else")
    rows = [head, *(_row(operator, entry, total) for entry in shown)]
    text = f"{operator.name}: {counted(calls)} of {counted(len(problems), 'problem')}"
    text += f", {percent_text(calls / total)} of all, {percent_text(captured / calls)} captured"
    lines = [text, *("  " + line for line in columns(rows))]
    left = len(problems) - len(shown)
    if left:
        rest = calls - sum(entry.weight for entry in shown)
        lines.append(f"  and {counted(rest)} of {counted(left, 'more problem')}")
    return "\n".join(lines)


def _row(operator: Operator, entry: CountedProblem, total: float) -> tuple[str, ...]:
    dtypes = [entry.problem.dtypes.get(v, choices[0]) for v, choices in operator.dtypes.items()]
    return (
        f"{entry.weight:.10g}",
        percent_text(entry.weight / total),
        percent_text(entry.captured / entry.weight),
        *(str(entry.problem.dims[name]) for name in operator.dims),
        *dtypes,
        _else(entry.problem),
    )


def _else(problem: Problem) -> str:
    """The rest of a problem's name, without dims and dtypes: layouts, optional tensors, attributes, alignment."""
    stated = {f"{n}={v}" for n, v in (*problem.dims.items(), *problem.dtypes.items())}
    return " ".join(part for part in problem.id.split() if part not in stated)
