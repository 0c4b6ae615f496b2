"""The messages between a build and the nodes of a cluster: typed records as MessagePack, never code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from aot_tune.bench.protocol.measurement_records import Check, Device, Measurement, Policy, Prepared
from aot_tune.bench.protocol.messages import Checked
from aot_tune.compile import Object, Variant
from aot_tune.plan.library_plan import Plan
from aot_tune.render import Candidate, Rendered
from aot_tune.spec import CompileOptions, Expr
from aot_tune.support.errors import SentError

T = TypeVar("T")


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class NodeQuestion(_Record, frozen=True):
    """What a build asks each node: its compilers for `backends` and targets, and the digests of `files`.

    `environ` are the build's variables that choose compilers. `roots` are folders of templates.
    """

    backends: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    environ: dict[str, str] = {}
    files: tuple[str, ...] = ()


class NodeFacts(_Record, frozen=True):
    """A node's answer: the package's version and digest, Python's version, and the identity of each compiler.

    `missing` says why the node has no compiler for a backend. `files` are digests, empty for a missing file.
    """

    version: str
    code: str
    python: str
    makers: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    files: dict[str, str] = {}


class GpuFacts(_Record, frozen=True):
    """The GPU that a node's process has for itself and the targets that it runs; or why there is none."""

    device: Device | None = None
    targets: tuple[str, ...] = ()
    error: str = ""


class CompileOrder(_Record, frozen=True):
    """A source to compile with the toolchain of a backend, within a time limit in seconds."""

    backend: str
    source: str
    target: str
    timeout: float
    options: dict[str, Any]
    environ: dict[str, str]


class MadeObject(_Record, frozen=True):
    """The result of a compiler run on a `node`, with digests of the files that it included, and the kept files."""

    node: str
    outcome: Object | None = None
    files: dict[str, bytes] = {}
    error: SentError | None = None


class Begin(_Record, frozen=True):
    """How to start a bench on a node: the build's plan, template roots, how to measure, and how long to wait.

    The wait is for the device. None waits without end.
    """

    plan: Plan
    roots: tuple[str, ...]
    policy: Policy
    threads: int
    exclusive: bool
    patience: float | None


class BenchCall(_Record, frozen=True):
    """A call of a bench's `method`, with what this takes; see `Bench`. `alone` is as in `Bench.alone`.

    `verdict` is the result of the object's checks on odd problems, if another device has run them already.
    """

    method: Literal["prepare", "screen", "verify", "race", "survey"]
    alone: bool
    variants: list[dict[str, Any]]
    operator: str = ""
    on: Check | None = None
    prepared: Prepared | None = None
    best_ns: float | None = None
    tune_checks: bool = True
    verdict: Checked | None = None


class BenchAnswer(_Record, frozen=True):
    """The result of a call. `referring` are the seconds that the bench has spent on references so far.

    `verdict` is the result of a screened object's checks on odd problems.
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
    """Read a record. Raises msgspec.MsgspecError when the bytes are not such a record."""
    return msgspec.msgpack.decode(data, type=kind)


def sent_options(options: CompileOptions) -> dict[str, Any]:
    """An author's compile options as plain data."""
    return {
        "include_directories": [str(f) for f in options.include_directories],
        "definitions": dict(options.definitions),
        "options": list(options.options),
        "libraries": [str(path) for path in options.libraries],
    }


def taken_options(sent: dict[str, Any]) -> CompileOptions:
    """An author's compile options, from plain data."""
    several = {n: tuple(sent[n]) for n in ("include_directories", "options", "libraries")}
    return CompileOptions(definitions=dict(sent["definitions"]), **several)


def sent_variant(variant: Variant) -> dict[str, Any]:
    """What a bench needs of a variant, as plain data. The bytes of its shared object come with the message."""
    return {
        "candidate": msgspec.to_builtins(variant.candidate),
        "symbol": variant.symbol,
        "requires": [e.data() for e in variant.requires],
        "object": msgspec.to_builtins(msgspec.structs.replace(variant.made, path="")),
        "file": Path(variant.shared).name,
    }


def taken_variant(sent: dict[str, Any], folder: Path) -> Variant:
    """A variant, from plain data, without its source. Its shared object lies in a folder."""
    rendered = Rendered(
        candidate=msgspec.convert(sent["candidate"], Candidate),
        source="",
        digest="",
        symbol=sent["symbol"],
        lines=(),
        requires=tuple(map(Expr.of, sent["requires"])),
    )
    shared = str(folder / sent["file"])
    return Variant(rendered=rendered, object=msgspec.convert(sent["object"], Object), shared=shared)
