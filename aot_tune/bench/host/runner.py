"""Candidates as a build hands them in, and how those in a race, and its baselines, fare."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec

from aot_tune.bench.host.worker_process import Worker
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import CandidateLike, Status
from aot_tune.spec import Expr

__all__ = ["Entrant", "Runner"]


_POISONED = 4
"""Before one sample of so many, outputs are poisoned."""


class Entrant(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate to measure.

    Args:
        candidate: what its measurements are of.
        shared_object: its object, linked for the bench.
        symbol: what the names of its functions begin with.
        code: digest of what is measured.
        requires: its guards, with its pinned dims.
    """

    candidate: CandidateLike
    shared_object: Path
    symbol: str
    code: str
    requires: Sequence[Expr] = ()


class Runner:
    """An entry or a baseline during a race; out once `status` is not ok."""

    def __init__(self, name: str, digest: str, handle: str, entry: Entrant | None) -> None:
        self.name, self.digest, self.handle, self.entry = name, digest, handle, entry
        self.status: Status = "ok"
        self.reason = ""
        self.error: float | None = None
        self.overhead = 0.0
        self.calls, self.warm = 1, 1
        self.spared, self.tried = 0, False
        self.home: Worker | None = None
        self.samples: list[float] = []

    def turn(self, key: str, *, fresh: bool, clock: bool, resumed: bool) -> messages.Turn:
        """What to ask of its worker for the next sample; nobody knows before which of them outputs are poisoned."""
        return messages.Turn(
            handle=self.handle,
            key=key,
            calls=self.calls,
            warm=self.warm,
            fresh=fresh,
            poison=secrets.randbelow(_POISONED) == 0,
            clock=clock,
            resumed=resumed,
        )

    def out(self, status: Status, reason: str) -> None:
        """It takes no further turn, and why."""
        self.status, self.reason = status, reason
