"""The lines of workload files and traces: plain records, read strictly, with the place of every mistake."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from aot_tune.spec import Problem
from aot_tune.support.errors import AotTuneError, Mistakes, SpecError, did_you_mean

__all__ = ["ENOUGH_MISTAKES", "CountedProblem", "TraceHeader", "decode_workload", "encode_workload", "tell"]

ENOUGH_MISTAKES = 10
"""After so many mistakes in a file no more are looked for: it is another kind of file, or of another library."""

_FORM = 'write lines such as {"operator": "gemm", "dims": {"M": 16, "N": 4096, "K": 4096}, "weight": 2}'


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Which process of which library wrote the lines that follow; `place` is where it says so.

    Fields that a later library adds are left alone.
    """

    library: str
    version: str = ""
    prefix: str = ""
    build: str = ""
    pid: int = 0
    begun: float = 0.0
    place: str = ""


class CountedProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of an operator and how much it counts; `captured` of that were calls while a graph was captured.

    `place` is the line that says so, `trace` the process that called it.
    """

    operator: str
    problem: Problem
    weight: float = 1.0
    captured: float = 0.0
    place: str = ""
    trace: TraceHeader | None = None


class _StatedLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    operator: str
    dims: dict[str, Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]]
    order: dict[str, tuple[int, ...]] = {}
    strides: dict[str, tuple[int, ...]] = {}
    present: tuple[str, ...] = ()
    attributes: dict[str, str] = {}
    alignment: dict[str, int] = {}
    dtypes: dict[str, str] = {}
    weight: float | None = None
    calls: Annotated[int, msgspec.Meta(ge=1)] | None = None
    captured: Annotated[int, msgspec.Meta(ge=0)] = 0


OTHERS = "others"
"""The only field of a trace's line that counts calls for whose kinds there was no room."""

_PROBLEM_FIELDS = tuple(f for f in _StatedLine.__struct_fields__ if f in Problem.__struct_fields__)


def decode_workload(text: bytes, name: str) -> list[CountedProblem]:
    """The problems of a workload file or a trace, in the order of its lines; `name` is the file's in messages.

    Whether an operator has such problems is not looked at.

    Raises:
        SpecError: for lines that cannot be read, each with its place.
    """
    found: list[CountedProblem] = []
    wrong: list[AotTuneError] = []
    trace: TraceHeader | None = None
    for number, row in enumerate(text.split(b"\n"), 1):
        if not row.strip():
            continue
        try:
            line = _decode(row, f"{name}:{number}")
        except SpecError as error:
            wrong.append(error)
            if len(wrong) == ENOUGH_MISTAKES:
                break
            continue
        if isinstance(line, TraceHeader):
            trace = line
        elif line is not None:
            found.append(msgspec.structs.replace(line, trace=trace))
    tell(wrong)
    return found


def tell(wrong: Iterable[AotTuneError]) -> None:
    """Raise all of these errors as one, if there are any."""
    mistakes = Mistakes()
    for error in wrong:
        with mistakes.gather():
            raise error
    mistakes.tell()


def _decode(row: bytes, place: str) -> CountedProblem | TraceHeader | None:
    """What a line says; None where it counts calls of which a trace had no room for more."""
    try:
        read = msgspec.json.decode(row)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(
            f"{place}: this is not a line of a workload: {error}",
            why="each line is one JSON object; the last one is cut off where its process was killed",
            fix=f"remove the line, or {_FORM}",
        ) from error
    if not isinstance(read, dict):
        raise SpecError(f"{place}: a line is a JSON object, this one {str(read)[:60]}", fix=_FORM)
    if "trace" in read:
        return _header(read, place)
    if set(read) == {OTHERS}:
        return None
    for key in read:
        if key not in _StatedLine.__struct_fields__:
            raise SpecError(f"{place}: unknown field {key!r}", fix=did_you_mean(key, _StatedLine.__struct_fields__))
    try:
        line = msgspec.convert(read, _StatedLine)
    except msgspec.ValidationError as error:
        raise SpecError(f"{place}: {_in_words(error)}", fix=_FORM) from error
    weight = _weight(line, place)
    fields = {field: getattr(line, field) for field in _PROBLEM_FIELDS}
    problem = Problem(**fields | {"present": tuple(sorted(set(line.present)))})
    return CountedProblem(
        operator=line.operator, problem=problem, weight=weight, captured=float(line.captured), place=place
    )


def _header(read: Mapping[str, Any], place: str) -> TraceHeader:
    if len(read) > 1:
        raise SpecError(f"{place}: the head of a trace has a line of its own", fix="put what else is there on the next")
    try:
        return msgspec.structs.replace(msgspec.convert(read["trace"], TraceHeader), place=place)
    except msgspec.ValidationError as error:
        raise SpecError(
            f"{place}: this is not the head of a trace: {_in_words(error)}",
            fix="leave the lines of a trace as the library wrote them, or remove this one to make it a workload file",
        ) from error


def _weight(line: _StatedLine, place: str) -> float:
    if line.weight is not None and line.calls is not None:
        raise SpecError(f"{place}: it has a weight and a number of calls", fix="keep one of the two")
    weight = line.calls if line.calls is not None else 1.0 if line.weight is None else line.weight
    if not 0 < weight < math.inf:
        raise SpecError(f"{place}: weight {weight:g} is not a positive number", fix="write one, or remove the line")
    if line.captured > weight:
        raise SpecError(
            f"{place}: {line.captured} of {weight:g} calls are said to be captured",
            why="captured calls are part of all calls",
            fix="correct one of the two numbers",
        )
    return float(weight)


def _in_words(error: Exception) -> str:
    """What msgspec found, without its name for the whole."""
    return str(error).replace(" - at `$.", " - at `").replace("Object missing", "it lacks the")


def encode_workload(problems: Iterable[CountedProblem]) -> bytes:
    """The text of a workload file; equal problems give equal bytes."""
    return b"".join(msgspec.json.encode(_plain(one)) + b"\n" for one in problems)


def _plain(one: CountedProblem) -> dict[str, object]:
    stated = msgspec.to_builtins(one.problem)
    weight = int(one.weight) if one.weight == int(one.weight) else one.weight
    return {"operator": one.operator, **stated, "weight": weight}
