"""The lines of a record's text, and how to read one: strictly or not at all."""

from __future__ import annotations

import msgspec

from aot_tune.bench.protocol.measurement_records import Device, Seen, Status
from aot_tune.compile.object_records import CompileStatus
from aot_tune.database.survey_lines import SurveyLine, TimesLine
from aot_tune.spec import ConfigValue
from aot_tune.support.errors import DatabaseError

__all__ = [
    "COUNTED",
    "FORMAT",
    "OLDEST_KNOWN",
    "READ",
    "RESTORE",
    "SCHEMA",
    "CandidateLine",
    "EndLine",
    "HeaderLine",
    "MeasurementLine",
    "PolicyLine",
    "ProblemLine",
    "RecordLine",
    "decode_line",
    "encode_line",
    "schema_of",
]

SCHEMA = 6
READ = 4
"""The first schema that builds read."""
COUNTED = 4
"""The last schema without digests of lines. Its end counts lines instead."""
OLDEST_KNOWN = 3
"""The first schema that `aot-tune records upgrade` reads. Before it, sources had other digests."""
FORMAT = "aot_tune database"
RESTORE = "restore the file"


class HeaderLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a record is about. `opening` is as in `OperatorDatabase`."""

    format: str
    schema: int
    operator: str
    contract: str
    opening: str = ""


class PolicyLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measurement policy as data, and its digest."""

    digest: str
    fields: dict[str, object]


class CandidateLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A candidate that was tried, and the result of compiling it."""

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


class ProblemLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A problem, and the digest of everything that was measured on it. Schema 4 has no digest."""

    id: str
    dims: dict[str, int]
    order: dict[str, tuple[int, ...]] = {}
    strides: dict[str, tuple[int, ...]] = {}
    present: tuple[str, ...] = ()
    attributes: dict[str, str] = {}
    alignment: dict[str, int] = {}
    dtypes: dict[str, str] = {}
    digest: str = ""


class MeasurementLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A measurement. `ns` and `spread` follow from its times, and are for people. Schema 5 has no `seen`."""

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
    seen: Seen | None = None


class EndLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The end: a digest of what no other digest covers. Schema 4 has counts of all lines instead."""

    digest: str = ""
    candidates: int | None = None
    problems: int | None = None
    measurements: int | None = None
    surveyed: int = 0


class RecordLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
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
    """A line without its end. `where` is its file and number.

    Raises:
        DatabaseError: when it is no such line, or part of a git conflict.
    """
    try:
        line = _DECODER.decode(row)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(row, where, str(error)) from error
    if sum(value is not None for value in msgspec.structs.astuple(line)) != 1:
        there = [name for name in _KINDS if getattr(line, name) is not None]
        raise DatabaseError(
            f"{where}: a line must hold one thing, but this one holds {there or 'nothing'}", fix=RESTORE
        )
    return line


def schema_of(row: bytes, name: str, oldest: int) -> int:
    """The schema that the first line of a text names.

    Raises:
        DatabaseError: when it is not of a record, or of a schema before `oldest` or after this version's.
    """
    try:
        first = msgspec.json.decode(row, type=_First).header
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(row, f"{name}:1", f"this is not a database: {error}") from error
    if first.format == FORMAT and oldest <= first.schema <= SCHEMA:
        return first.schema
    fix = "remove it and record again with `aot-tune record`, or use the version that wrote it"
    if first.format == FORMAT and OLDEST_KNOWN <= first.schema < oldest:
        fix = "rewrite it with `aot-tune records upgrade`"
    raise DatabaseError(
        f"{name}:1: it is of format {first.format!r}, schema {first.schema}",
        why=f"this version reads {FORMAT!r}, schemas {oldest} to {SCHEMA}, and no part of another",
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
        f"{where}: {why}", fix="restore the file, or remove it and record again with `aot-tune record`"
    )
