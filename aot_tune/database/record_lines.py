"""The lines of a record's text: what each holds, how to read one, and the digests that are in them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from aot_tune.bench.protocol.measurement_records import BASELINE, Device, Policy, Seen, Status
from aot_tune.compile.toolchain import CompileStatus
from aot_tune.database.records import SurveyedShape
from aot_tune.spec import ConfigValue, Problem
from aot_tune.support.digests import canonical, canonical_digest
from aot_tune.support.errors import DatabaseError

SCHEMA = 6
STORE_SCHEMA = 7
"""That of a machine's own store. It rises with what verification looks at, too: older verdicts are not trusted."""
READ = 4
"""The first schema that builds read."""
COUNTED = 4
"""The last schema without digests of lines. Its end counts lines instead."""
OLDEST_KNOWN = 3
"""The first schema that `aot-tune records upgrade` reads. Before it, sources had other digests."""
FORMAT = "aot_tune database"
RESTORE = "restore the file"
_DIGITS = 16
_FORM = ("order", "strides", "present", "attributes", "alignment", "dtypes")

Columns = Mapping[str, Sequence[float | None]]


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """There are many, and none refers to what holds it."""


class HeaderLine(_Line, frozen=True, kw_only=True):
    """What a record is about. `opening` is as in `OperatorDatabase`."""

    format: str
    schema: int
    operator: str
    contract: str
    opening: str = ""


class PolicyLine(_Line, frozen=True, kw_only=True):
    """The measurement policy as data, and its digest."""

    digest: str
    fields: dict[str, object]

    @classmethod
    def of(cls, policy: Policy, kind: str = "") -> PolicyLine:
        """A policy's line. `kind` names what is measured under it in another way than candidates are."""
        digest = f"{kind}, {policy.digest}" if kind else policy.digest
        return cls(digest=digest, fields=msgspec.json.decode(canonical(policy)))


class CandidateLine(_Line, frozen=True, kw_only=True):
    """A candidate that was tried, and the result of compiling it. Only some have verdicts of sanitizers."""

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
    sanitized: dict[str, str] = {}


class ProblemLine(_Line, frozen=True, kw_only=True):
    """A problem, and the digest of everything that was measured on it. Schema 4 has no digest.

    Only a store's has `at`, when it was written in ns since the epoch, and says whether its measurements are a race.
    """

    id: str
    dims: dict[str, int]
    order: dict[str, tuple[int, ...]] = {}
    strides: dict[str, tuple[int, ...]] = {}
    present: tuple[str, ...] = ()
    attributes: dict[str, str] = {}
    alignment: dict[str, int] = {}
    dtypes: dict[str, str] = {}
    digest: str = ""
    at: int = 0
    raced: bool = False


class MeasurementLine(_Line, frozen=True, kw_only=True):
    """A measurement. `ns` and `spread` follow from its times, and are for people. Schema 5 has no `seen`.

    Only a store's has `code`, which is a baseline's version for a baseline, and `phases`.
    """

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
    threads: int = 0
    race: str | None = None
    final: tuple[float, ...] | None = None
    screen: tuple[float, ...] = ()
    seen: Seen | None = None
    code: str = ""
    phases: Mapping[str, float] = {}


class EndLine(_Line, frozen=True, kw_only=True):
    """The end: a digest of what no other digest covers. Schema 4 has counts of all lines instead."""

    digest: str = ""
    candidates: int | None = None
    problems: int | None = None
    measurements: int | None = None
    surveyed: int = 0


class SurveyLine(_Line, frozen=True, kw_only=True):
    """Shapes that only differ in their dims. The extents are by dim, one for each shape in a row.

    In schema 4, the same line has the times by candidate, and there is no id.
    """

    id: str = ""
    order: dict[str, tuple[int, ...]] = {}
    strides: dict[str, tuple[int, ...]] = {}
    present: tuple[str, ...] = ()
    attributes: dict[str, str] = {}
    alignment: dict[str, int] = {}
    dtypes: dict[str, str] = {}
    dims: dict[str, tuple[int, ...]]
    ns: dict[str, tuple[float | None, ...]] = {}


class TimesLine(_Line, frozen=True, kw_only=True):
    """ns of a candidate on each shape of a survey line, or null if it was not timed."""

    survey: str
    candidate: str
    digest: str = ""
    ns: tuple[float | None, ...]


class RecordLine(_Line, frozen=True, kw_only=True):
    """One line. Exactly one of these fields is set."""

    header: HeaderLine | None = None
    device: Device | None = None
    policy: PolicyLine | None = None
    toolchains: dict[str, dict[str, str]] | None = None
    baselines: dict[str, str] | None = None
    candidate: CandidateLine | None = None
    problem: ProblemLine | None = None
    measurement: MeasurementLine | None = None
    survey: SurveyLine | None = None
    times: TimesLine | None = None
    end: EndLine | None = None


class _Schema(msgspec.Struct, frozen=True):
    schema: int
    format: str


class _First(msgspec.Struct, frozen=True):
    header: _Schema


_KINDS = RecordLine.__struct_fields__
_DECODER = msgspec.json.Decoder(RecordLine)
_ENCODER = msgspec.json.Encoder()


def encode_line(line: RecordLine) -> bytes:
    """A line of the text, with its end."""
    return _ENCODER.encode(line) + b"\n"


def decode_line(row: bytes, where: str) -> RecordLine:
    """A line without its end. `where` is file and number. Raises DatabaseError, also for a git conflict."""
    try:
        line = _DECODER.decode(row)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(row, where, str(error)) from error
    if msgspec.structs.astuple(line).count(None) != len(_KINDS) - 1:
        kinds = [name for name in _KINDS if getattr(line, name) is not None]
        raise DatabaseError(
            f"{where}: a line must hold one thing, but this one holds {kinds or 'nothing'}", fix=RESTORE
        )
    return line


def schema_of(row: bytes, name: str, oldest: int, form: str = FORMAT, newest: int = SCHEMA) -> int:
    """The schema, from `oldest` to `newest`, that the first line of a text of `form` names. Raises DatabaseError."""
    try:
        first = msgspec.json.decode(row, type=_First).header
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(row, f"{name}:1", f"this is not a database: {error}") from error
    if first.format == form and oldest <= first.schema <= newest:
        return first.schema
    fix = "remove it and record again with `aot-tune records export`, or use the version that wrote it"
    if first.format == form == FORMAT and OLDEST_KNOWN <= first.schema < oldest:
        fix = "rewrite it with `aot-tune records upgrade`"
    if first.format == form and first.schema > newest:
        fix = "use the version of aot_tune that wrote it, or a newer one"
    raise DatabaseError(
        f"{name}:1: it is of format {first.format!r}, schema {first.schema}",
        why=f"this version reads {form!r}, schemas {oldest} to {newest}, and no part of another",
        fix=fix,
    )


def _unreadable(row: bytes, where: str, why: str) -> DatabaseError:
    if row.startswith((b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>")):
        return DatabaseError(
            f"{where}: two versions of it were merged, and the conflict stands",
            fix="set up the merge driver (`aot-tune records merge-driver --help`) and `git checkout --merge FILE`; or "
            "take one of the two whole, as by `git checkout --ours FILE`",
        )
    return DatabaseError(
        f"{where}: {why}", fix="restore the file, or remove it and record again with `aot-tune records export`"
    )


def survey_lines(shapes: Iterable[SurveyedShape]) -> Iterator[tuple[SurveyLine, list[TimesLine]]]:
    """The lines of a survey. Their order does not depend on that of the shapes."""
    alike: dict[bytes, list[SurveyedShape]] = {}
    for shape in sorted(shapes, key=lambda s: s.problem.id):
        form = {name: getattr(shape.problem, name) for name in _FORM}
        alike.setdefault(canonical(form), []).append(shape)
    for _, group in sorted(alike.items()):
        yield _lines(group)


def form_id(line: SurveyLine) -> str:
    """8 hex digits for what the shapes of a line have in common."""
    return canonical_digest({name: getattr(line, name) for name in _FORM})[:8]


def _lines(shapes: Sequence[SurveyedShape]) -> tuple[SurveyLine, list[TimesLine]]:
    first = shapes[0].problem
    line = SurveyLine(
        **{name: getattr(first, name) for name in _FORM},
        dims={d: tuple(s.problem.dims[d] for s in shapes) for d in first.dims},
    )
    name = form_id(line)
    times = [
        TimesLine(survey=name, candidate=c, ns=tuple(s.ns.get(c) for s in shapes))
        for c in sorted({c for s in shapes for c in s.ns})
    ]
    return msgspec.structs.replace(line, id=name), times


def shapes_of(line: SurveyLine, columns: Columns) -> Iterator[SurveyedShape]:
    """The shapes of a line with times of some candidates. Raises ValueError if columns differ in length."""
    lengths = {len(column) for column in (*line.dims.values(), *columns.values())}
    if len(lengths) != 1:
        raise ValueError("its columns have different lengths")
    form = {name: getattr(line, name) for name in _FORM}
    for number in range(lengths.pop()):
        ns = {c: time for c, column in columns.items() if (time := column[number]) is not None}
        yield SurveyedShape(problem=Problem(**form, dims={d: c[number] for d, c in line.dims.items()}), ns=ns)


class RecordDigests:
    """Digests of the lines of one record. `candidates` are its candidates' lines by id.

    They find a line that was changed by hand, lost, or merged by git as text. They are no seal: there is no key, so
    whoever changes a line on purpose can also change its digest. Each is of all lines that belong together. So it
    exposes a line from another record, even if every line is well formed.

    A measurement's digest covers the operator's contract, device and policy, the problem, the measurements with their
    candidates' lines, and the versions of the baselines that took part. It does not cover toolchains, because code has
    its own digest.
    """

    def __init__(
        self,
        header: HeaderLine,
        device: Device,
        policy: PolicyLine,
        baselines: Mapping[str, str],
        candidates: Mapping[str, CandidateLine],
    ) -> None:
        self._context = canonical([header.operator, header.contract, device.digest, policy.digest])
        opening = [header.opening] if header.opening else []
        self._head = canonical([header.operator, header.contract, device, policy, baselines, *opening])
        self._baselines = baselines
        self._candidates = {name: canonical(line) for name, line in candidates.items()}
        self._used: set[str] = set()

    def of_problem(
        self, problem: ProblemLine, measurements: Iterable[MeasurementLine], beside: Iterable[CandidateLine] = ()
    ) -> str:
        """The digest of a problem and its measurements, and of the candidates' lines beside it in a store."""
        parts = [self._context, canonical(msgspec.structs.replace(problem, digest="")), *map(canonical, beside)]
        for m in sorted(measurements, key=lambda m: m.candidate):
            parts += [self._subject(m.candidate), canonical(m)]
        return _digest(parts)

    def of_times(self, survey: SurveyLine, times: TimesLine) -> str:
        """The digest of a candidate's times on the shapes of a survey line."""
        parts = [self._context, canonical(survey), self._subject(times.candidate)]
        return _digest([*parts, canonical(msgspec.structs.replace(times, digest=""))])

    def of_rest(self, toolchains: Mapping[str, Mapping[str, str]]) -> str:
        """The digest of the head, and of the candidates that are in no digest that was asked for before."""
        rest = [line for name, line in sorted(self._candidates.items()) if name not in self._used]
        return _digest([self._head, canonical(toolchains), *rest])

    def _subject(self, candidate: str) -> bytes:
        self._used.add(candidate)
        if candidate.startswith(BASELINE):
            return self._baselines.get(candidate.removeprefix(BASELINE), "").encode()
        return self._candidates.get(candidate, b"")


def _digest(parts: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:_DIGITS]
