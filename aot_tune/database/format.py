"""The text of a database: one JSON object per line, sorted, made for review; read strictly or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from aot_tune.bench.protocol.measurement_records import Device, Measurement, Status, is_baseline
from aot_tune.compile.object_records import CompileStatus
from aot_tune.database.database_records import (
    CandidateRecord,
    OperatorDatabase,
    SurveyedShape,
    canonical_database,
    half_width,
    rounded,
)
from aot_tune.database.survey_lines import SurveyLine, shapes_of, survey_lines
from aot_tune.render import Candidate
from aot_tune.spec import ConfigValue, Problem
from aot_tune.support.errors import DatabaseError
from aot_tune.support.shared_fields import shared_fields

__all__ = ["SCHEMA", "decode", "encode"]

SCHEMA = 4
_FORMAT = "aot_tune database"
_RESTORE = "restore the file"


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    schema: int
    operator: str
    contract: str


class _Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    digest: str
    fields: dict[str, object]


class _Candidate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    id: str
    kernel: str
    backend: str
    target: str
    config: dict[str, ConfigValue] = {}
    pins: dict[str, int] = {}
    generic: bool = False
    dtypes: dict[str, str] = {}
    status: CompileStatus
    source: str
    object: str = ""
    device: str = ""
    error: str = ""


class _Problem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    id: str
    dims: dict[str, int]
    order: dict[str, tuple[int, ...]] = {}
    strides: dict[str, tuple[int, ...]] = {}
    present: tuple[str, ...] = ()
    attributes: dict[str, str] = {}
    alignment: dict[str, int] = {}
    dtypes: dict[str, str] = {}


class _Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    problem: str
    candidate: str
    status: Status
    reason: str = ""
    ns: float | None = None
    spread: float | None = None
    error: float | None = None
    bitwise: bool | None = None
    overhead: float = 0.0
    leak: int = 0
    race: str | None = None
    final: tuple[float, ...] | None = None
    screen: tuple[float, ...] = ()


class _End(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    candidates: int
    problems: int
    measurements: int
    surveyed: int = 0


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line: exactly one of these is there."""

    header: _Header | None = None
    device: Device | None = None
    policy: _Policy | None = None
    toolchains: dict[str, dict[str, str]] | None = None
    baselines: dict[str, str] | None = None
    candidate: _Candidate | None = None
    problem: _Problem | None = None
    measurement: _Measurement | None = None
    survey: SurveyLine | None = None
    end: _End | None = None


class _Schema(msgspec.Struct, frozen=True):
    schema: int
    format: str


class _First(msgspec.Struct, frozen=True):
    header: _Schema


def encode(database: OperatorDatabase) -> bytes:
    """The text of a database; equal databases give equal bytes.

    Raises:
        DatabaseError: when the database contradicts itself.
    """
    return b"".join(_encode_line(line) for line in _lines(canonical_database(database)))


def decode(text: bytes, name: str = "database") -> OperatorDatabase:
    """The database of a text.

    Raises:
        DatabaseError: with `name` and the line, when any of it is not as `encode` writes it, or the end is missing.
    """
    rows = text.split(b"\n")
    _check_schema(rows[0], name)
    if rows[-1] != b"":
        raise DatabaseError(f"{name}:{len(rows)}: the last line is cut off", fix=_RESTORE)
    lines = [_decode_line(row, f"{name}:{number}") for number, row in enumerate(rows[:-1], 1)]
    return _assemble(lines, name)


def _lines(database: OperatorDatabase) -> Iterator[_Line]:
    yield _Line(header=_Header(format=_FORMAT, schema=SCHEMA, operator=database.operator, contract=database.contract))
    identity = dict(sorted(database.device.identity.items()))
    yield _Line(device=msgspec.structs.replace(database.device, identity=identity))
    yield _Line(policy=_Policy(digest=database.policy_digest, fields=_ordered(database.policy)))
    yield _Line(toolchains=database.toolchains)
    yield _Line(baselines=database.baselines)
    for record in database.candidates:
        yield _Line(candidate=_candidate_line(record))
    for problem in database.problems:
        yield _Line(problem=_Problem(id=problem.id, **msgspec.structs.asdict(problem)))
    for measurement in database.measurements:
        yield _Line(measurement=_measurement_line(measurement))
    for line in survey_lines(database.survey):
        yield _Line(survey=line)
    yield _Line(
        end=_End(
            candidates=len(database.candidates),
            problems=len(database.problems),
            measurements=len(database.measurements),
            surveyed=len(database.survey),
        )
    )


def _candidate_line(record: CandidateRecord) -> _Candidate:
    return _Candidate(**_ordered(shared_fields(record, _Candidate) | shared_fields(record.candidate, _Candidate)))


def _measurement_line(m: Measurement) -> _Measurement:
    ns = None if m.ns is None else rounded(m.ns)
    spread = None if m.ns is None else half_width(m.final or m.screen)
    return _Measurement(**shared_fields(m, _Measurement) | {"problem": m.problem.id, "ns": ns, "spread": spread})


def _encode_line(line: _Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _ordered(value: Any) -> Any:
    """The same plain data with the keys of every mapping sorted."""
    if isinstance(value, Mapping):
        return {k: _ordered(v) for k, v in sorted(value.items())}
    return [_ordered(v) for v in value] if isinstance(value, (list, tuple)) else value


def _check_schema(row: bytes, name: str) -> None:
    try:
        first = msgspec.json.decode(row, type=_First).header
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(row, f"{name}:1", f"this is not a database: {error}") from error
    if first.format != _FORMAT or first.schema != SCHEMA:
        raise DatabaseError(
            f"{name}:1: it is of format {first.format!r}, schema {first.schema}",
            why=f"this version reads {_FORMAT!r}, schema {SCHEMA}, and no part of another",
            fix="remove it and record again with `aot-tune record`, or use the version that wrote it",
        )


def _unreadable(row: bytes, where: str, why: str) -> DatabaseError:
    if row.startswith((b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>")):
        return DatabaseError(
            f"{where}: two versions of it were merged, and the conflict stands",
            fix="take one of the two whole, as by `git checkout --ours`, and record again with `aot-tune record`",
        )
    return DatabaseError(
        f"{where}: {why}", fix="restore the file, or remove it and record again with `aot-tune record`"
    )


def _decode_line(row: bytes, where: str) -> _Line:
    try:
        line = msgspec.json.decode(row, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(row, where, str(error)) from error
    there = [name for name, value in msgspec.structs.asdict(line).items() if value is not None]
    if len(there) != 1:
        raise DatabaseError(f"{where}: a line holds one thing, this one {there or 'nothing'}", fix=_RESTORE)
    return line


def _assemble(lines: list[_Line], name: str) -> OperatorDatabase:
    kinds = ("header", "device", "policy", "toolchains", "baselines")
    for number, kind in enumerate(kinds):
        if number >= len(lines) or getattr(lines[number], kind) is None:
            raise DatabaseError(f"{name}:{number + 1}: the {kind} belongs here", fix=_RESTORE)
    header, device, policy = lines[0].header, lines[1].device, lines[2].policy
    assert header is not None
    assert device is not None
    assert policy is not None
    if lines[-1].end is None:
        raise DatabaseError(f"{name}:{len(lines)}: its end is missing", why="lines were lost", fix=_RESTORE)
    candidates: dict[str, CandidateRecord] = {}
    problems: dict[str, Problem] = {}
    measurements: list[Measurement] = []
    survey: list[SurveyedShape] = []
    for number, line in enumerate(lines[len(kinds) : -1], len(kinds) + 1):
        where = f"{name}:{number}"
        if line.candidate is not None:
            _add(candidates, line.candidate.id, _candidate(line.candidate, header.operator, where), where)
        elif line.problem is not None:
            _add(problems, line.problem.id, _problem(line.problem, where), where)
        elif line.measurement is not None:
            measurements.append(
                _measurement(line.measurement, candidates, problems, (device.digest, policy.digest), where)
            )
        elif line.survey is not None:
            survey += _shapes(line.survey, where)
        else:
            raise DatabaseError(f"{where}: a line of the header stands here", fix=_RESTORE)
    counts = _End(
        candidates=len(candidates), problems=len(problems), measurements=len(measurements), surveyed=len(survey)
    )
    if counts != lines[-1].end:
        raise DatabaseError(
            f"{name}:{len(lines)}: it holds {_counts(counts)}, but its end says {_counts(lines[-1].end)}",
            why="lines were lost, or two versions were merged by hand",
            fix="restore one version of the file, and record it again with `aot-tune record`",
        )
    try:
        return canonical_database(
            OperatorDatabase(
                operator=header.operator,
                contract=header.contract,
                device=device,
                policy=policy.fields,
                policy_digest=policy.digest,
                toolchains=lines[3].toolchains or {},
                baselines=lines[4].baselines or {},
                candidates=tuple(candidates.values()),
                problems=tuple(problems.values()),
                measurements=tuple(measurements),
                survey=tuple(survey),
            )
        )
    except DatabaseError as error:
        raise DatabaseError(f"{name}: {error.what}", why=error.why, fix=error.fix) from error


def _add(known: dict[str, Any], name: str, value: object, where: str) -> None:
    if name in known:
        raise DatabaseError(f"{where}: {name!r} is listed twice", fix="keep one of the two lines")
    known[name] = value


def _candidate(line: _Candidate, operator: str, where: str) -> CandidateRecord:
    candidate = Candidate(operator=operator, **shared_fields(line, Candidate))
    if candidate.id != line.id:
        raise DatabaseError(f"{where}: candidate {line.id!r} has the config of {candidate.id!r}", fix=_RESTORE)
    return CandidateRecord(candidate=candidate, **shared_fields(line, CandidateRecord))


def _problem(line: _Problem, where: str) -> Problem:
    problem = Problem(**shared_fields(line, Problem))
    if problem.id != line.id:
        raise DatabaseError(f"{where}: problem {line.id!r} has the dims of {problem.id!r}", fix=_RESTORE)
    return problem


def _measurement(
    line: _Measurement,
    candidates: Mapping[str, CandidateRecord],
    problems: Mapping[str, Problem],
    digests: tuple[str, str],
    where: str,
) -> Measurement:
    problem = problems.get(line.problem)
    if problem is None:
        raise DatabaseError(f"{where}: no line above has the problem {line.problem!r}", fix=_RESTORE)
    record = candidates.get(line.candidate)
    if record is None and not is_baseline(line.candidate):
        raise DatabaseError(f"{where}: no line above has the candidate {line.candidate!r}", fix=_RESTORE)
    code = record.code if record is not None else ""
    known = {"problem": problem, "code": code, "device": digests[0], "policy": digests[1]}
    found = Measurement(**shared_fields(line, Measurement) | known)
    if (None if found.ns is None else rounded(found.ns)) != line.ns:
        raise DatabaseError(f"{where}: ns {line.ns} is not the median of its times", fix=_RESTORE)
    return found


def _shapes(line: SurveyLine, where: str) -> Iterator[SurveyedShape]:
    try:
        yield from shapes_of(line)
    except ValueError as error:
        raise DatabaseError(f"{where}: {error}", fix=_RESTORE) from None


def _counts(end: _End) -> str:
    shapes = f", {end.surveyed} surveyed shapes" if end.surveyed else ""
    return f"{end.candidates} candidates, {end.problems} problems, {end.measurements} measurements{shapes}"
