"""Who takes part in a race: candidates as a build hands them in, and how each of them fares."""

from __future__ import annotations

from pathlib import Path

import msgspec

from aot_tune.bench.host.worker_process import Worker
from aot_tune.bench.protocol.measurement_records import CandidateLike, Status

__all__ = ["Entry", "Runner"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate in a race."""

    candidate: CandidateLike
    shared_object: Path
    symbol: str
    code: str


class Runner:
    """An entry or a baseline during a race; out once `status` is not ok."""

    def __init__(self, name: str, digest: str, handle: str, entry: Entry | None) -> None:
        self.name, self.digest, self.handle, self.entry = name, digest, handle, entry
        self.status: Status = "ok"
        self.reason = ""
        self.error: float | None = None
        self.overhead = 0.0
        self.calls, self.warm = 1, 1
        self.spared, self.tried = 0, False
        self.home: Worker | None = None
        self.samples: list[float] = []

    def out(self, status: Status, reason: str) -> None:
        """It takes no further turn, and why."""
        self.status, self.reason = status, reason
