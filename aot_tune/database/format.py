"""The text of a record and of a store: a JSON object on each line, of the same kinds.

A record is sorted and made for review. It is read strictly or not at all. A store grows: its lines are in groups, which
are appended at once, and what is torn or damaged costs itself alone. The first group is the head. Each other one is a
screen, or a race with all of its entrants: lines of candidates that the text did not have, the problem, and the
measurements. The problem's digest is of all these lines.
"""

from __future__ import annotations

import logging
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from aot_tune.bench.protocol.measurement_records import BASELINE, Device, Measurement, Policy, is_baseline, rounded
from aot_tune.database.record_lines import (
    COUNTED,
    FORMAT,
    READ,
    RESTORE,
    SCHEMA,
    STORE_SCHEMA,
    CandidateLine,
    EndLine,
    HeaderLine,
    MeasurementLine,
    PolicyLine,
    ProblemLine,
    RecordDigests,
    RecordLine,
    SurveyLine,
    TimesLine,
    decode_line,
    encode_line,
    form_id,
    schema_of,
    shapes_of,
    survey_lines,
)
from aot_tune.database.records import CandidateRecord, OperatorDatabase, SurveyedShape, canonical_database, out_of_race
from aot_tune.render import Candidate
from aot_tune.spec import Problem
from aot_tune.support.digests import canonical_digest, shared_fields
from aot_tune.support.errors import DatabaseError

STORE = "aot_tune store"
_GROUP_END = b'{"end":{}}'
END = b"\n" + _GROUP_END + b"\n"
"""Ends each group of a store."""
_START = re.compile(rb'{"header":{"format":"%s","schema":(\d+)' % STORE.encode())
_DIGITS = 24
_log = logging.getLogger("aot_tune.database")
_TAKEN = sorted(
    {*MeasurementLine.__struct_fields__} & {*Measurement.__struct_fields__} - {"problem", "candidate", "code"}
)


@dataclass(frozen=True)
class Head:
    """What all of a text has in common: the operator, where it was measured, and how."""

    header: HeaderLine
    device: Device
    policy: PolicyLine

    @classmethod
    def of(cls, operator: str, contract: str, device: Device, policy: Policy, kind: str = "") -> Head:
        """The head of a store's text for an operator of the digest `contract`. `kind` is as in `PolicyLine.of`."""
        header = HeaderLine(format=STORE, schema=STORE_SCHEMA, operator=operator, contract=contract)
        return cls(header, msgspec.structs.replace(device, unit=""), PolicyLine.of(policy, kind))

    @classmethod
    def read(cls, text: bytes, name: str) -> Head:
        """The head of a store's text. Raises DatabaseError with `name` and the line if it is not of this schema."""
        rows = text[: text.find(END)].split(b"\n")
        schema_of(rows[0], name, STORE_SCHEMA, STORE, STORE_SCHEMA)
        return _head_of([decode_line(row, f"{name}:{number}") for number, row in enumerate(rows, 1)], name)

    @cached_property
    def stem(self) -> str:
        """Name of a store's text, without its ending."""
        identity = [STORE, STORE_SCHEMA, self.header.contract, self.device.digest, self.policy.digest]
        return f"{self.header.operator}-{canonical_digest(identity)[:_DIGITS]}"

    @cached_property
    def text(self) -> bytes:
        """Its lines in a store."""
        lines = RecordLine(header=self.header), RecordLine(device=self.device), RecordLine(policy=self.policy)
        return b"".join(map(encode_line, lines)) + END[1:]

    @cached_property
    def digests(self) -> RecordDigests:
        """Makes the digests of a store's groups. These name code and versions themselves, so no other lines count."""
        return RecordDigests(self.header, self.device, self.policy, {}, {})


def encode(database: OperatorDatabase) -> bytes:
    """The text of a database. Equal ones give equal bytes. Raises DatabaseError when it contradicts itself."""
    return b"".join(map(encode_line, _lines(canonical_database(database))))


def decode(text: bytes, name: str = "database", *, oldest: int = READ, digests: bool = True) -> OperatorDatabase:
    """The database of a text.

    Args:
        name: of the file, for messages.
        oldest: the first schema that is read.
        digests: whether to check the lines against their digests.

    Raises:
        DatabaseError: with `name` and the line, if any of it is not as `encode` writes it, or the end is missing.
    """
    rows = text.split(b"\n")
    schema = schema_of(rows[0], name, oldest)
    if rows[-1] != b"":
        raise DatabaseError(f"{name}:{len(rows)}: the last line is cut off", fix=RESTORE)
    lines = [decode_line(row, f"{name}:{number}") for number, row in enumerate(rows[:-1], 1)]
    content = _read(lines, name)
    if schema <= COUNTED:
        _check_counts(content, name)
    altered = _altered_line(content, name) if digests and schema > COUNTED else None
    database = _assemble(content, name, as_written=digests and schema > COUNTED and altered is None)
    if altered is not None:  # if nothing else tells better what is wrong
        raise altered
    return database


@dataclass
class _Content:
    """The lines of a text by their kind, with their numbers."""

    head: Head
    toolchains: dict[str, dict[str, str]]
    baselines: dict[str, str]
    end: EndLine
    length: int
    candidates: dict[str, tuple[int, CandidateLine]] = field(default_factory=dict)
    problems: dict[str, tuple[int, ProblemLine]] = field(default_factory=dict)
    measurements: dict[str, list[tuple[int, MeasurementLine]]] = field(default_factory=dict)
    surveys: dict[str, tuple[int, SurveyLine]] = field(default_factory=dict)
    times: dict[str, list[tuple[int, TimesLine]]] = field(default_factory=dict)

    @property
    def digests(self) -> RecordDigests:
        """Makes the digests of its lines."""
        lines = {name: line for name, (_, line) in self.candidates.items()}
        return RecordDigests(self.head.header, self.head.device, self.head.policy, self.baselines, lines)


def _lines(database: OperatorDatabase) -> Iterator[RecordLine]:
    header = HeaderLine(format=FORMAT, schema=SCHEMA, **shared_fields(database, HeaderLine))
    identity = dict(sorted(database.device.identity.items()))
    device = msgspec.structs.replace(database.device, identity=identity)
    policy = PolicyLine(digest=database.policy_digest, fields=_ordered(database.policy))
    yield RecordLine(header=header)
    yield RecordLine(device=device)
    yield RecordLine(policy=policy)
    yield RecordLine(toolchains=database.toolchains)
    yield RecordLine(baselines=database.baselines)
    candidates = {record.id: candidate_line(record) for record in database.candidates}
    for candidate in candidates.values():
        yield RecordLine(candidate=candidate)
    digests = RecordDigests(header, device, policy, database.baselines, candidates)
    measured: dict[str, list[MeasurementLine]] = {}
    for m in database.measurements:
        measured.setdefault(m.problem.id, []).append(measurement_line(m))
    for problem in database.problems:
        measurements = measured.get(problem.id, [])
        line = _problem_line(problem)
        yield RecordLine(problem=msgspec.structs.replace(line, digest=digests.of_problem(line, measurements)))
        for measurement in measurements:
            yield RecordLine(measurement=measurement)
    for survey, columns in survey_lines(database.survey):
        yield RecordLine(survey=survey)
        for times in columns:
            yield RecordLine(times=msgspec.structs.replace(times, digest=digests.of_times(survey, times)))
    yield RecordLine(end=EndLine(digest=digests.of_rest(database.toolchains)))


def candidate_line(record: CandidateRecord) -> CandidateLine:
    """A candidate's line."""
    fields = shared_fields(record, CandidateLine) | shared_fields(record.candidate, CandidateLine)
    return CandidateLine(**_ordered(fields))


def _problem_line(problem: Problem) -> ProblemLine:
    return ProblemLine(id=problem.id, **msgspec.structs.asdict(problem))


def measurement_line(m: Measurement, code: str | None = None) -> MeasurementLine:
    """A measurement's line. A store's has the code, and no figures for people."""
    fields: dict[str, object] = {"problem": m.problem.id, "code": code or "", "ns": None, "spread": None}
    if code is None and m.ns is not None:
        fields |= {"ns": rounded(m.ns), "spread": _half_width(m.final or m.screen)}
    return MeasurementLine(**shared_fields(m, MeasurementLine) | fields)


def _half_width(samples: Iterable[float]) -> float:
    """Half the width between the quartiles, in the unit of the samples. 0 for fewer than two."""
    values = sorted(samples)
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return rounded((high - low) / 2)


def _ordered(value: Any) -> Any:
    """The same plain data with the keys of every mapping sorted."""
    if isinstance(value, Mapping):
        return {k: _ordered(v) for k, v in sorted(value.items())}
    return [_ordered(v) for v in value] if isinstance(value, (list, tuple)) else value


def _read(lines: Sequence[RecordLine], name: str) -> _Content:
    head, end = _head_of(lines, name, ("toolchains", "baselines")), lines[-1].end
    if end is None:
        raise DatabaseError(f"{name}:{len(lines)}: its end is missing", why="lines were lost", fix=RESTORE)
    toolchains, baselines = lines[3].toolchains or {}, lines[4].baselines or {}
    content = _Content(head, toolchains, baselines, end, len(lines))
    for number, line in enumerate(lines[5:-1], 6):
        where = f"{name}:{number}"
        if line.candidate is not None:
            _add(content.candidates, line.candidate.id, (number, line.candidate), where)
        elif line.problem is not None:
            _add(content.problems, line.problem.id, (number, line.problem), where)
        elif line.measurement is not None:
            if line.measurement.problem not in content.problems:
                raise DatabaseError(f"{where}: no line above has the problem {line.measurement.problem!r}", fix=RESTORE)
            if line.measurement.candidate not in content.candidates and not is_baseline(line.measurement.candidate):
                raise DatabaseError(
                    f"{where}: no line above has the candidate {line.measurement.candidate!r}", fix=RESTORE
                )
            content.measurements.setdefault(line.measurement.problem, []).append((number, line.measurement))
        elif line.survey is not None:
            survey = line.survey if line.survey.id else msgspec.structs.replace(line.survey, id=form_id(line.survey))
            _add(content.surveys, survey.id, (number, survey), where)
        elif line.times is not None:
            if line.times.survey not in content.surveys:
                raise DatabaseError(f"{where}: no line above has the survey {line.times.survey!r}", fix=RESTORE)
            content.times.setdefault(line.times.survey, []).append((number, line.times))
        else:
            raise DatabaseError(f"{where}: a line of the header is here", fix=RESTORE)
    return content


def _add(by_name: dict[str, Any], name: str, value: object, where: str) -> None:
    if name in by_name:
        raise DatabaseError(f"{where}: {name!r} is listed twice", fix="keep one of the two lines")
    by_name[name] = value


def _check_counts(content: _Content, name: str) -> None:
    """Compare a text without digests with the counts at its end."""
    surveyed = sum(len(next(iter(line.dims.values()), ())) for _, line in content.surveys.values())
    counts = EndLine(
        candidates=len(content.candidates),
        problems=len(content.problems),
        measurements=sum(map(len, content.measurements.values())),
        surveyed=surveyed,
    )
    if counts != content.end:
        raise DatabaseError(
            f"{name}:{content.length}: it holds {_counts(counts)}, but its end says {_counts(content.end)}",
            why="lines were lost, or two versions were merged by hand",
            fix="restore one version of the file, and record it again with `aot-tune records export`",
        )


def _counts(end: EndLine) -> str:
    shapes = f", {end.surveyed} surveyed shapes" if end.surveyed else ""
    return f"{end.candidates} candidates, {end.problems} problems, {end.measurements} measurements{shapes}"


def _altered_line(content: _Content, name: str) -> DatabaseError | None:
    """The error for the first line that does not match its digest, or None."""
    digests = content.digests
    for problem_id, (number, problem) in content.problems.items():
        measurements = [m for _, m in content.measurements.get(problem_id, ())]
        if problem.digest != digests.of_problem(problem, measurements):
            what = f"problem '{problem_id}' has another digest than its line and its measurements give"
            return _altered(f"{name}:{number}", what, "its line, one of its measurements, or of their candidates")
    for survey_id, (_, survey) in content.surveys.items():
        for number, times in content.times.get(survey_id, ()):
            if times.digest != digests.of_times(survey, times):
                what = f"the times of {times.candidate} on surveyed shapes have another digest than their lines give"
                return _altered(f"{name}:{number}", what, "this line, the survey's above it, or the candidate's")
    if content.end.digest != digests.of_rest(content.toolchains):
        what = "the end has another digest than the head and the candidates without measurements give"
        return _altered(f"{name}:{content.length}", what, "one of those lines, or this one")
    return None


def _altered(where: str, what: str, lines: str) -> DatabaseError:
    return DatabaseError(
        f"{where}: {what}",
        why=f"{lines} was changed by hand, lost, or merged by git as text",
        fix="restore the file, for example by `git checkout -- FILE`; after a merge, merge both versions by "
        "`aot-tune records merge`; `aot-tune records export` writes new measurements",
    )


def _assemble(content: _Content, name: str, *, as_written: bool) -> OperatorDatabase:
    """The database of the lines. `as_written`: the digests match, so its numbers have the digits of a text."""
    operator = content.head.header.operator
    candidates = {i: _candidate_of(c, operator, f"{name}:{n}") for i, (n, c) in content.candidates.items()}
    problems = {i: _checked_problem(p, f"{name}:{n}") for i, (n, p) in content.problems.items()}
    codes = {i: c.code for i, c in candidates.items()}
    shared = content.head.device.digest, content.head.policy.digest
    measurements = []
    for i, numbered in content.measurements.items():
        for n, m in numbered:
            measurements.append(measurement_of(m, problems[i], m.candidate, codes.get(m.candidate, ""), *shared))
            if not as_written:
                _check_median(measurements[-1], m, f"{name}:{n}")
    survey = [s for i, (n, line) in content.surveys.items() for s in _shapes(content, i, line, f"{name}:{n}")]
    try:
        return _database(
            content.head,
            toolchains=content.toolchains,
            baselines=content.baselines,
            candidates=tuple(candidates.values()),
            problems=tuple(problems.values()),
            measurements=tuple(measurements),
            survey=tuple(survey),
        )
    except DatabaseError as error:
        raise DatabaseError(f"{name}: {error.what}", why=error.why, fix=error.fix) from error


def _head_of(lines: Sequence[RecordLine], name: str, also: Sequence[str] = ()) -> Head:
    """The head that lines begin with, before one of each kind in `also`."""
    for number, kind in enumerate(("header", "device", "policy", *also)):
        if number >= len(lines) or getattr(lines[number], kind) is None:
            raise DatabaseError(f"{name}:{number + 1}: the line with the {kind} belongs here", fix=RESTORE)
    header, device, policy = lines[0].header, lines[1].device, lines[2].policy
    assert header is not None
    assert device is not None
    assert policy is not None
    return Head(header, device, policy)


def _database(head: Head, **content: Any) -> OperatorDatabase:
    header, policy = head.header, head.policy
    database = OperatorDatabase(
        operator=header.operator,
        contract=header.contract,
        opening=header.opening,
        device=head.device,
        policy=policy.fields,
        policy_digest=policy.digest,
        **content,
    )
    return canonical_database(database)


def _candidate_of(line: CandidateLine, operator: str, where: str) -> CandidateRecord:
    candidate = Candidate(operator=operator, **shared_fields(line, Candidate))
    if candidate.id != line.id:
        raise DatabaseError(f"{where}: candidate {line.id!r} has the config of {candidate.id!r}", fix=RESTORE)
    return CandidateRecord(candidate=candidate, **shared_fields(line, CandidateRecord))


def measurement_of(
    line: MeasurementLine, problem: Problem, candidate: str, code: str, device: str, policy: str
) -> Measurement:
    """The measurement of a line, under this name of its candidate. `device` and `policy` are digests."""
    fields = {name: getattr(line, name) for name in _TAKEN}
    return Measurement(candidate=candidate, code=code, problem=problem, device=device, policy=policy, **fields)


def _problem_of(line: ProblemLine) -> Problem:
    return Problem(**{name: getattr(line, name) for name in Problem.__struct_fields__})


def _checked_problem(line: ProblemLine, where: str) -> Problem:
    problem = _problem_of(line)
    if problem.id != line.id:
        raise DatabaseError(f"{where}: problem {line.id!r} has the dims of {problem.id!r}", fix=RESTORE)
    return problem


def _check_median(measured: Measurement, line: MeasurementLine, where: str) -> None:
    if (None if measured.ns is None else rounded(measured.ns)) != line.ns:
        raise DatabaseError(f"{where}: ns {line.ns} is not the median of its times", fix=RESTORE)


def _shapes(content: _Content, survey: str, line: SurveyLine, where: str) -> Iterator[SurveyedShape]:
    columns: dict[str, Sequence[float | None]] = dict(line.ns)
    for number, times in content.times.get(survey, ()):
        _add(columns, times.candidate, times.ns, f"{where.rpartition(':')[0]}:{number}")
    try:
        yield from shapes_of(line, columns)
    except ValueError as error:
        raise DatabaseError(f"{where}: {error}", fix=RESTORE) from None


class Group(msgspec.Struct, frozen=True, gc=False):
    """A screen, or a race with all entrants, with lines of some candidates, written `at` so many ns since 1970."""

    at: int
    raced: bool
    problem: Problem
    measurements: tuple[MeasurementLine, ...]
    candidates: tuple[CandidateLine, ...] = ()

    @property
    def name(self) -> str:
        """Says what was measured, see `group_name`."""
        return group_name([subject_of(m.candidate, m.code) for m in self.measurements], self.problem, raced=self.raced)


def group_name(subjects: Iterable[str], problem: Problem, *, raced: bool) -> str:
    """Names the screen or the race of these subjects on a problem."""
    return "\n".join(["race" if raced else "screen", problem.key, *sorted(set(subjects))])


def subject_of(candidate: str, code: str) -> str:
    """What was measured: a code, or a version of a baseline."""
    return code if code and not is_baseline(candidate) else f"{candidate}@{code}"


def encode_group(group: Group, digests: RecordDigests) -> bytes:
    """The lines of a group."""
    line = msgspec.structs.replace(_problem_line(group.problem), at=group.at, raced=group.raced)
    line = msgspec.structs.replace(line, digest=digests.of_problem(line, group.measurements, group.candidates))
    lines = [
        *(RecordLine(candidate=c) for c in group.candidates),
        RecordLine(problem=line),
        *(RecordLine(measurement=m) for m in group.measurements),
    ]
    return b"".join(map(encode_line, lines)) + END[1:]


def read_groups(text: bytes, digests: RecordDigests) -> Iterator[Group | None]:
    """The groups of a text that ends with a whole one, without the head. None stands for a part that is damaged."""
    lines: list[RecordLine] = []
    problems: dict[str, Problem] = {}  # few, for many groups
    damaged = False
    for row in text.split(b"\n")[:-1]:
        if row != _GROUP_END:
            try:
                lines.append(decode_line(row, ""))
            except DatabaseError:
                lines, damaged = [], True
            continue
        group = _group(lines, digests, problems)
        if damaged or (group is None and not (lines and lines[0].header)):
            yield None
        if group is not None:
            yield group
        lines, damaged = [], False


def _group(lines: Sequence[RecordLine], digests: RecordDigests, problems: dict[str, Problem]) -> Group | None:
    candidates = tuple(line.candidate for line in lines if line.candidate is not None)
    line = lines[len(candidates)].problem if len(candidates) < len(lines) else None
    measurements = tuple(line.measurement for line in lines if line.measurement is not None)
    if line is None or len(candidates) + 1 + len(measurements) != len(lines) or not measurements:
        return None
    if line.digest != digests.of_problem(line, measurements, candidates):
        return None
    problem = problems.get(line.id) or problems.setdefault(line.id, _problem_of(line))
    return Group(line.at, line.raced, problem, measurements, candidates)


def is_store(text: bytes, *, other: bool = False) -> bool:
    """Whether a text is that of a store, of whatever schema or of another than this version's."""
    schema = _START.match(text)
    return schema is not None and not (other and int(schema[1]) == STORE_SCHEMA)


def database_of_store(text: bytes, name: str) -> OperatorDatabase:
    """What the text of a store says, as a record would. Of each candidate, only the code that was measured last counts.

    Times of races count before those of screens, and later ones before earlier ones. If something of a race does not
    count any more, its other entrants lose their final times.

    Raises:
        DatabaseError: with `name`, when it has no head of this schema, or contradicts itself.
    """
    head = Head.read(text, name)
    whole = text[: text.rfind(END) + len(END)]
    parts = list(read_groups(whole, head.digests))
    if None in parts:
        _log.warning("%d parts of %s are damaged and not used", parts.count(None), name)
    groups = sorted(filter(None, parts), key=lambda g: g.at)
    codes = {m.candidate: m.code for group in groups for m in group.measurements}
    lines = [line for group in groups for line in group.candidates]
    records = [_candidate_of(line, head.header.operator, name) for line in lines]
    candidates = {record.id: record for record in records if record.code == codes.get(record.id)}
    measured: dict[tuple[str, str], Measurement] = {}
    lost = set[tuple[str, str]]()  # races of which something does not count, each on its problem
    for group in sorted(groups, key=lambda g: g.raced):
        key = group.problem.key
        for m in group.measurements:
            before = measured.get((key, m.candidate))
            known = is_baseline(m.candidate) or m.candidate in candidates
            if not known or m.code != codes[m.candidate]:
                lost.add((m.race or "", key))
            elif m.status != "skipped" or (before is None and not is_baseline(m.candidate)):  # as a build takes them
                code = "" if is_baseline(m.candidate) else m.code
                made = measurement_of(m, group.problem, m.candidate, code, head.device.digest, head.policy.digest)
                measured[key, m.candidate] = made
                if before is not None and before.race != m.race:
                    lost.add((before.race or "", key))
    kept = (out_of_race(m) if (m.race, key) in lost else m for (key, _), m in measured.items())
    return _database(
        head,
        toolchains={},
        baselines={c.removeprefix(BASELINE): version for c, version in codes.items() if is_baseline(c)},
        candidates=tuple(candidates.values()),
        problems=(),
        measurements=tuple(filter(None, kept)),
    )
