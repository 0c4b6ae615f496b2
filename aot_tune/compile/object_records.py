"""What the compile stage passes on: objects, and results of compiler runs."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

__all__ = ["CompileOutcome", "CompileStatus", "Object", "measured_code"]

CompileStatus = Literal["ok", "compile-failed", "timeout"]
_OF_CODE = ("registers", "spill_bytes", "shared", "dynamic_shared", "stack")
"""Resources that depend on the code only, not on where and when it was compiled."""


class CompileOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one compiler run.

    `log` is the compiler's output, cut in the middle when it is long. `lasting` says that the same input would end the
    same way again. A run that lost its memory, disk or time to something else is not lasting, and is never cached.
    `includes` are the files that were read beside the source, under names that `Toolchain.locate` knows. `device` is
    the digest of what a GPU runs, as in `Object`. `resources` are bytes: `text` of the object, `stack` of its deepest
    function, `memory` at the compiler's peak. For a GPU they are of the worst kernel, and also have `registers` of a
    thread (a count), `spill_bytes`, and `shared`, as far as the compiler knows it. What a launch adds is only known of
    Triton's kernels. It is `dynamic_shared`, a part of `shared`.
    """

    status: CompileStatus
    log: str = ""
    seconds: float = 0.0
    lasting: bool = True
    includes: tuple[str, ...] = ()
    device: str = ""
    resources: dict[str, int] = {}


class Object(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled candidate.

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
        seconds: how long the compiler ran.
        cached: whether nothing had to be compiled.
    """

    key: str
    path: str
    digest: str
    symbol: str
    source: str
    target: str
    status: CompileStatus
    device: str = ""
    error: str = ""
    log: str = ""
    seconds: float = 0.0
    resources: dict[str, int] = {}
    cached: bool = False

    @property
    def code(self) -> str:
        """What its measurements are of. See `measured_code`."""
        return measured_code(self.source, self.digest, self.device)

    @property
    def code_resources(self) -> dict[str, int]:
        """The resources that depend on its code only; empty if it did not compile."""
        return {n: self.resources[n] for n in _OF_CODE if n in self.resources} if self.status == "ok" else {}


def measured_code(source: str, digest: str, device: str) -> str:
    """What a measurement of an object is of: on a CPU the whole object, on a GPU its device code and its source.

    The source contains what launches the device code. The host compiler does not matter, since it changes nothing that
    is measured.

    Args:
        source, digest, device: as in `Object`. Empty if there is none.
    """
    return hashlib.sha256(f"{source}\0{device}".encode()).hexdigest() if device else digest
