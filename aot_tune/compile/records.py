"""What the compile stage hands on: objects, and what a compiler run came to."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["CompileOutcome", "CompileStatus", "Object"]

CompileStatus = Literal["ok", "compile-failed", "timeout"]


class CompileOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one compiler run came to.

    `log` is the compiler's output, cut in the middle when it is long. `lasting` says that the same input would end the
    same way again; a run that lost its memory, disk or time to something else is not lasting and is never cached.
    `includes` are the files that it read beside the source. `resources` are bytes: `text` of the object, `stack` of its
    deepest function, `memory` at the peak of the compiler.
    """

    status: CompileStatus
    log: str = ""
    seconds: float = 0.0
    lasting: bool = True
    includes: tuple[str, ...] = ()
    resources: dict[str, int] = {}


class Object(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled candidate.

    Args:
        key: digest of everything that decides what the compiler makes; the name of the cache entry.
        path: the object file; empty unless `status` is ok.
        digest: SHA-256 of the object file; empty unless `status` is ok.
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
    error: str = ""
    log: str = ""
    seconds: float = 0.0
    resources: dict[str, int] = {}
    cached: bool = False
