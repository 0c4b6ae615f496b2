"""What a build and the nodes of a cluster say to each other: typed records as MessagePack, never code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from aot_tune.bench.host.runner import Entrant
from aot_tune.bench.protocol.measurement_records import Check, Device, Measurement, Policy, Prepared
from aot_tune.bench.protocol.messages import Checked
from aot_tune.compile import CompileOutcome
from aot_tune.plan.library_plan import Plan
from aot_tune.render import Candidate
from aot_tune.spec import CompileOptions, Expr, Problem
from aot_tune.support import errors
from aot_tune.support.errors import AotTuneError, BuildError

__all__ = [
    "Begin",
    "BenchAnswer",
    "BenchCall",
    "CompileOrder",
    "GpuFacts",
    "MadeObject",
    "NodeFacts",
    "NodeQuestion",
    "PrepareCall",
    "RaceCall",
    "ScreenCall",
    "SentEntrant",
    "SentError",
    "SurveyCall",
    "decode",
    "decode_call",
    "encode",
    "sent_options",
    "taken_options",
]

T = TypeVar("T")


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class SentError(_Record, frozen=True):
    """An error of the project, as its place told it; `kind` is its class."""

    kind: str
    what: str
    why: str = ""
    fix: str = ""

    @classmethod
    def of(cls, error: AotTuneError) -> SentError:
        """What an error says."""
        return cls(kind=type(error).__name__, what=error.what, why=error.why, fix=error.fix)

    def error(self, where: str = "") -> AotTuneError:
        """The error again; `where` is the node that told it."""
        kind = getattr(errors, self.kind, BuildError)
        return kind(f"{where}{': ' * bool(where)}{self.what}", why=self.why, fix=self.fix)


class NodeQuestion(_Record, frozen=True):
    """What a build asks each node: its compilers of `backends`, for targets by name, and its contents of `files`.

    `environ` are the variables that choose compilers, as the build has them. `roots` are folders of templates.
    """

    backends: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    environ: dict[str, str] = {}
    files: tuple[str, ...] = ()


class NodeFacts(_Record, frozen=True):
    """What a node says: the package's version and digest, Python's, what objects of each backend are made by.

    `missing` says of a backend why the node has no compiler for it. `files` are digests, empty of what is not there.
    """

    version: str
    code: str
    python: str
    makers: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    files: dict[str, str] = {}


class GpuFacts(_Record, frozen=True):
    """The device that a node's process has to itself, with the targets that it runs; or why there is none."""

    device: Device | None = None
    targets: tuple[str, ...] = ()
    error: str = ""


class CompileOrder(_Record, frozen=True):
    """A source to compile as the toolchain of a backend does, within so many seconds."""

    backend: str
    source: str
    target: str
    timeout: float
    options: dict[str, Any]
    environ: dict[str, str]


class MadeObject(_Record, frozen=True):
    """What a compiler run came to on a `node`, the files that are kept of it, and digests of what it included."""

    node: str
    outcome: CompileOutcome | None = None
    files: dict[str, bytes] = {}
    includes: dict[str, str] = {}
    error: SentError | None = None


class Begin(_Record, frozen=True):
    """What a bench on a node is begun with: the build's plan and roots of templates, how to measure and for how long to
    wait for the device; None is for ever."""

    plan: Plan
    roots: tuple[str, ...]
    policy: Policy
    threads: int
    exclusive: bool
    patience: float | None


class SentEntrant(_Record, frozen=True):
    """A candidate to measure. `file` names its linked object, whose bytes come beside the message.

    `requires` are its guards: of each its kind, its arguments and its value.
    """

    candidate: Candidate
    file: str
    symbol: str
    code: str
    requires: list[Any]

    @classmethod
    def of(cls, entrant: Entrant) -> SentEntrant:
        """As a bench takes it."""
        if not isinstance(entrant.candidate, Candidate):
            raise BuildError(f"{entrant.candidate.id} is no candidate of a build")
        return cls(
            candidate=entrant.candidate,
            file=entrant.shared_object.name,
            symbol=entrant.symbol,
            code=entrant.code,
            requires=[_row(e) for e in entrant.requires],
        )

    def entrant(self, folder: Path) -> Entrant:
        """As a bench takes it, with the object in a folder."""
        return Entrant(
            candidate=self.candidate,
            shared_object=folder / self.file,
            symbol=self.symbol,
            code=self.code,
            requires=tuple(_expr(row) for row in self.requires),
        )


class _Call(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="call", tag=str.lower):
    """`alone` is as in `Bench.alone`."""

    alone: bool = False


class PrepareCall(_Call, frozen=True):
    """See `Bench.prepare`."""

    operator: str
    on: Check


class ScreenCall(_Call, frozen=True):
    """See `Bench.screen`, or `Bench.verify` where it is not `timed`.

    `verdict` is what the object came to on odd problems on another device, where that is known.
    """

    prepared: Prepared
    entrant: SentEntrant
    best_ns: float | None
    tune_checks: bool
    timed: bool
    verdict: Checked | None = None


class RaceCall(_Call, frozen=True):
    """See `Bench.race`."""

    prepared: Prepared
    entrants: list[SentEntrant]


class SurveyCall(_Call, frozen=True):
    """See `Bench.survey`."""

    operator: str
    problem: Problem
    entrants: list[SentEntrant]


BenchCall = PrepareCall | ScreenCall | RaceCall | SurveyCall


class BenchAnswer(_Record, frozen=True):
    """What a call came to; `referring` are the bench's seconds of references so far.

    `verdict` is what a screened object comes to on odd problems, whatever else.
    """

    measurements: list[Measurement] = []
    prepared: Prepared | None = None
    referring: float = 0.0
    verdict: Checked | None = None
    error: SentError | None = None


def encode(message: object) -> bytes:
    """A record as MessagePack."""
    return msgspec.msgpack.encode(message)


def decode(data: bytes, kind: type[T]) -> T:
    """Read a record.

    Raises:
        msgspec.MsgspecError: where it is none of that kind.
    """
    return msgspec.msgpack.decode(data, type=kind)


def decode_call(data: bytes) -> BenchCall:
    """Read what a bench is asked.

    Raises:
        msgspec.MsgspecError: where it is nothing of that kind.
    """
    call: BenchCall = msgspec.msgpack.decode(data, type=BenchCall)
    return call


def sent_options(options: CompileOptions) -> dict[str, Any]:
    """An author's options as plain data."""
    return {
        "include_directories": [str(f) for f in options.include_directories],
        "definitions": dict(options.definitions),
        "options": list(options.options),
        "libraries": [str(one) for one in options.libraries],
    }


def taken_options(sent: dict[str, Any]) -> CompileOptions:
    """An author's options of plain data."""
    several = {n: tuple(sent[n]) for n in ("include_directories", "options", "libraries")}
    return CompileOptions(definitions=dict(sent["definitions"]), **several)


def _row(expr: Expr) -> list[Any]:
    return [expr.kind, [_row(a) for a in expr.args], expr.value]


def _expr(row: Sequence[Any]) -> Expr:
    kind, args, value = row
    return Expr(kind, tuple(_expr(a) for a in args), value)
