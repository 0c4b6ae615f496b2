"""A measurement in the making: what its phases took, and what its answers come to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aot_tune.bench import messages
from aot_tune.bench.process import DiedError
from aot_tune.bench.records import WORKER_FAULT, Measurement, Prepared, Status

if TYPE_CHECKING:
    from aot_tune.bench.bench import Bench

__all__ = ["Phases", "Remarks", "Run", "failure_of", "told_apart"]

_CLOCK = 0.01
"""On a host's clock, times are told to this share of an empty call, which is taken off them, and no closer."""


class Remarks:
    """What workers say of problems when they first set them up: it belongs to every time that is taken of one."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._known: dict[str, str] = {}
        self._told: set[str] = set()

    def prepare(self, prepared: Prepared, ask: Callable[[messages.Prepare], messages.Reply]) -> messages.Reply:
        """Have a worker make a problem's buffers, and keep and log what the first one to do so says of them."""
        new = prepared.key not in self._known
        reply = ask(messages.Prepare(key=prepared.key, probe=new))
        if new and isinstance(reply, messages.Done):
            self._known[prepared.key] = reply.remark
            self.log(f"{prepared.operator} {prepared.problem.id}: {reply.remark}" if reply.remark else "")
            self.log(reply.log)
        return reply

    def log(self, line: str) -> None:
        """Log a line that was not logged before."""
        if line and line not in self._told:
            self._told.add(line)
            self._log(line)

    def on(self, prepared: Prepared, note: str) -> str:
        """A note on times of a problem with what is to be said of all of them."""
        return "; ".join(text for text in (note, self._known.get(prepared.key, "")) if text)


class Phases(dict[str, float]):
    """Seconds by phase."""

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Add what the block takes to a phase."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self[name] = self.get(name, 0.0) + time.monotonic() - begin


class Run:
    """A measurement in the making.

    `sure` says that only its object can have killed the worker it is in, `spared` that another one was killed before
    where that was not sure.
    """

    sure = spared = False

    def __init__(self, bench: Bench, prepared: Prepared, candidate: str, digest: str, phases: Phases) -> None:
        self.bench, self.prepared, self.candidate, self.digest = bench, prepared, candidate, digest
        self.phases = phases

    def to_blame(self, death: DiedError) -> bool:
        """Whether its object killed the worker, as far as can be told or is worth another try."""
        return self.sure or death.certain or death.status == "timeout"

    def ended(self, status: Status, reason: str = "", **fields: object) -> Measurement:
        """A measurement with this status."""
        return self.bench.measurement(
            self.prepared, self.candidate, self.digest, status=status, reason=reason, phases=dict(self.phases), **fields
        )

    def timed(self, timing: messages.Timed, facts: Mapping[str, object]) -> Measurement:
        """A measurement with times, if they can be true and the candidate did not leak."""
        policy = self.bench.policy
        status, reason = timing.status, timing.reason
        floor = self.bench.floor_ns(self.prepared)
        samples = told_apart(self.bench, floor, timing.samples, timing.overhead)
        if status == "ok" and samples and min(samples) < floor:
            status = "suspicious"
            reason = f"{min(samples):.1f} ns per call, less than the {floor:.1f} ns that the device's peaks allow"
        elif status == "ok" and not any(samples):
            status, reason = "suspicious", f"no slower than an empty call of {timing.overhead:.0f} ns"
        elif status == "ok" and timing.leak > policy.leak_bytes:
            status, reason = "oom", f"grows by {timing.leak} bytes per call"
        elif status == "ok":
            reason = self.bench.remarks.on(self.prepared, reason)
        return self.ended(status, reason, screen=samples, overhead=timing.overhead, leak=timing.leak, **facts)


def told_apart(bench: Bench, floor: float, samples: Sequence[float], overhead: float) -> tuple[float, ...]:
    """Samples as far as they can be told from the `overhead` that was taken off them.

    Those of a call on so little that even the device's `floor` cannot be told from it may come out as less than that,
    or as nothing: they count as the least time that can be told.
    """
    least = _CLOCK * overhead if bench.family.on_host else 0.0
    if not samples or min(samples) >= floor or floor > least:
        return tuple(samples)
    return tuple(max(s, least) for s in samples)


def failure_of(reply: messages.Reply) -> tuple[Status, str]:
    """The status and the reason of a reply that is not the one that was asked for."""
    if isinstance(reply, messages.Failure):
        return reply.status, reply.reason
    return "failed", f"{WORKER_FAULT}an answer of the wrong kind: {reply!r:.200}"
