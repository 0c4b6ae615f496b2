"""Candidates as a build hands them in, and the state of entries and baselines in a race."""

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
"""Before one of so many samples, the outputs are poisoned."""


class Entrant(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate to measure.

    Args:
        candidate: what its measurements are of.
        shared_object: the candidate's object, linked for the bench.
        symbol: the prefix of its functions' names.
        code: digest of what is measured.
        requires: its guards and its pinned dims.
    """

    candidate: CandidateLike
    shared_object: Path
    symbol: str
    code: str
    requires: Sequence[Expr] = ()


class Runner:
    """An entry or a baseline during a race. It is out once `status` is not ok."""

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
        """The request for the next sample. Nobody can foresee before which samples the outputs are poisoned."""
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
        """End its turns, for a reason."""
        self.status, self.reason = status, reason
