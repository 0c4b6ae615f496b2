"""What the compile stage hands on: objects, and what a compiler run came to."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

__all__ = ["CompileOutcome", "CompileStatus", "Object", "measured_code"]

CompileStatus = Literal["ok", "compile-failed", "timeout"]


class CompileOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one compiler run came to.

    `log` is the compiler's output, cut in the middle when it is long. `lasting` says that the same input would end the
    same way again; a run that lost its memory, disk or time to something else is not lasting and is never cached.
    `includes` are the files that it read beside the source, under names that `Toolchain.locate` knows. `device` is the
    digest of what a GPU runs, as in `Object`. `resources` are
    bytes: `text` of the object, `stack` of its deepest function, `memory` at the peak of the compiler. Those of a GPU
    are of the worst of its kernels, and also hold `registers` of a thread (a count), `spill_bytes`, and `shared`, as
    far as the compiler knows it: what a launch adds is known of Triton's kernels only, as `dynamic_shared` in it.
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
        key: digest of everything that decides what the compiler makes; the name of the cache entry.
        path: the object file; empty unless `status` is ok.
        digest: SHA-256 of the object file; empty unless `status` is ok.
        device: digest of what a GPU runs of it: its device code, or the name of a library that it calls. It does not
            depend on the host compiler. Empty on a CPU, where only the whole object tells.
        symbol: its functions are `<symbol>_workspace` and `<symbol>_launch`.
        source: the digest of the rendered source.
        target: name of the target.
        error: the first line that matters, with the template's file and line.
        log: the compiler's output, when it failed.
        seconds: what the compiler took when it ran.
        cached: nothing had to be compiled.
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
        """What measurements of it are of."""
        return measured_code(self.source, self.digest, self.device)


def measured_code(source: str, digest: str, device: str) -> str:
    """What a measurement of an object is of: on a CPU the whole object, on a GPU its device code and its source.

    The source has what launches the device code. Which host compiler made that changes nothing that was measured.

    Args:
        source, digest, device: as in `Object`; empty as far as there are none.
    """
    return hashlib.sha256(f"{source}\0{device}".encode()).hexdigest() if device else digest
