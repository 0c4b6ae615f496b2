"""Objects, and variants: a candidate and its object, the same in compiling, measuring, on a cluster and in linking."""

from __future__ import annotations

import hashlib

import msgspec

from aot_tune.compile.toolchain import CompileStatus, target_by_name
from aot_tune.render import Candidate, Rendered, combination
from aot_tune.spec import Expr, Target

__all__ = ["Object", "Variant", "measured_code"]

_OF_CODE = ("registers", "spill_bytes", "shared", "dynamic_shared", "stack")
"""Resources that depend on the code only, not on where and when it was compiled."""


class Object(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A compiled candidate. The cache's `object.json` holds all of it but the key, the path and `cached`.

    Args:
        key: digest of everything that decides what the compiler makes. It is the name of the cache entry.
        path: the object file. Empty unless `status` is ok.
        digest: SHA-256 of the object file. Empty unless `status` is ok.
        device: digest of what a GPU runs of it: its device code, or the name of the library that it calls. It does not
            depend on the host compiler. Empty on a CPU, where only the whole object counts.
        symbol: its functions are `<symbol>_workspace` and `<symbol>_launch`.
        source: the digest of the rendered source.
        target: name of the target.
        error: the first line that matters, with the template's file and line.
        log: the compiler's output, if it failed.
        seconds: how long the compiler ran, at most `timeout`.
        cached: whether nothing had to be compiled.
        includes: in the cache, the digests of the files that were read beside the source; empty for files that were
            looked for but missing.
    """

    key: str = ""
    path: str = ""
    digest: str
    symbol: str
    source: str
    target: str
    status: CompileStatus
    device: str = ""
    error: str = ""
    log: str = ""
    seconds: float = 0.0
    timeout: float = 0.0
    resources: dict[str, int] = {}
    cached: bool = False
    includes: dict[str, str] = {}

    @property
    def code(self) -> str:
        """What its measurements are of. See `measured_code`."""
        return measured_code(self.source, self.digest, self.device)

    @property
    def code_resources(self) -> dict[str, int]:
        """The resources that depend on its code only; empty if it did not compile."""
        return {n: self.resources[n] for n in _OF_CODE if n in self.resources} if self.status == "ok" else {}


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate with its source and, once it is compiled, its object.

    Args:
        recorded: digest of the code that a database has measured. It is set only if the source and the toolchain are
            those of the record, or if the build measures nothing.
        shared: path of its object as a shared library, once it is linked for a bench.
    """

    rendered: Rendered
    object: Object | None = None
    recorded: str = ""
    shared: str = ""

    @property
    def candidate(self) -> Candidate:
        """What it is a variant of."""
        return self.rendered.candidate

    @property
    def target(self) -> Target:
        """What it is compiled for."""
        return target_by_name(self.rendered.candidate.target)

    @property
    def id(self) -> str:
        """The candidate's id."""
        return self.rendered.candidate.id

    @property
    def name(self) -> str:
        """For people, unique in an operator."""
        return self.rendered.candidate.name

    @property
    def symbol(self) -> str:
        """Its functions are `<symbol>_workspace` and `<symbol>_launch`, and for GPUs also `<symbol>_preload`."""
        return self.rendered.symbol

    @property
    def requires(self) -> tuple[Expr, ...]:
        """Guards. If one of them does not hold for a call, it does not serve the call."""
        return self.rendered.requires

    @property
    def guards(self) -> tuple[Expr, ...]:
        """The guards that a library checks. Of a generic one's, these tell it from its kernel's others."""
        return combination(self.requires) if self.candidate.generic else self.requires

    @property
    def made(self) -> Object:
        """Its object, which must be there."""
        assert self.object is not None
        return self.object

    @property
    def compiled(self) -> bool:
        """Whether there is an object to run or link."""
        return self.object is not None and self.object.status == "ok"

    @property
    def fails(self) -> bool:
        """Whether it does not compile."""
        return self.object is not None and self.object.status != "ok"

    @property
    def code(self) -> str:
        """The digest of the code that measurements refer to; empty without an object and a record."""
        return self.recorded if self.object is None else self.object.code

    @property
    def rebuilt(self) -> bool:
        """Whether the code here differs from the code that was measured."""
        return bool(self.recorded) and self.code != self.recorded


def measured_code(source: str, digest: str, device: str) -> str:
    """What a measurement of an object is of: on a CPU the whole object, on a GPU its device code and its source.

    The source contains what launches the device code. The host compiler does not matter, since it changes nothing that
    is measured.

    Args:
        source, digest, device: as in `Object`. Empty if there is none.
    """
    return hashlib.sha256(f"{source}\0{device}".encode()).hexdigest() if device else digest
