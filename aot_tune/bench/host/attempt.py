"""A measurement in the making: how long its phases took, and what its answers say."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from aot_tune.bench.host.bench_context import BenchContext
from aot_tune.bench.host.worker_process import DiedError
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Measurement, Prepared, Status

__all__ = ["Phases", "Run", "told_apart"]

_CLOCK = 0.01
"""An empty call is taken off the times of a host's clock. So times are only exact to this share of it."""


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

    `sure`: only this object can have killed its worker. `spared`: an earlier worker died, and that was not sure.
    `starved`: an earlier worker was killed for memory that others held.
    """

    sure = spared = starved = False

    def __init__(self, context: BenchContext, prepared: Prepared, candidate: str, digest: str, phases: Phases) -> None:
        self.context, self.prepared, self.candidate, self.digest = context, prepared, candidate, digest
        self.phases = phases

    def to_blame(self, death: DiedError) -> bool:
        """Whether its object is to blame: it is sure, or it was a timeout, which is not worth another try."""
        return not death.starved and (self.sure or death.certain or death.status == "timeout")

    def ended(self, status: Status, reason: str = "", **fields: object) -> Measurement:
        """A measurement with this status."""
        return self.context.measurement(
            self.prepared, self.candidate, self.digest, status=status, reason=reason, phases=dict(self.phases), **fields
        )

    def timed(self, timing: messages.Timed, facts: Mapping[str, object]) -> Measurement:
        """A measurement with times, if they can be true and the candidate does not leak memory."""
        policy = self.context.policy
        status, reason = timing.status, timing.reason
        floor = self.context.floor_ns(self.prepared)
        samples = told_apart(self.context, floor, timing.samples, timing.overhead)
        if status == "ok" and samples and min(samples) < floor:
            status = "suspicious"
            reason = (
                f"{min(samples):.1f} ns per call is less than the {floor:.1f} ns that the device's peaks allow; "
                "if calls read only a part of a tensor, declare the least part with read=..."
            )
        elif status == "ok" and not any(samples):
            status, reason = "suspicious", f"no slower than an empty call of {timing.overhead:.0f} ns"
        elif status == "ok" and timing.leak > policy.leak_bytes:
            status, reason = "oom", f"grows by {timing.leak} bytes per call"
        elif status == "ok":
            reason = self.context.remarks.on(self.prepared, reason)
        return self.ended(status, reason, screen=samples, overhead=timing.overhead, leak=timing.leak, **facts)


def told_apart(context: BenchContext, floor: float, samples: Sequence[float], overhead: float) -> tuple[float, ...]:
    """Samples, as far as they can be distinguished from the `overhead` that was taken off them.

    A call may be so small that even the device's `floor` cannot be distinguished from it. Its samples may then be
    below the floor, or zero. They count as the least time that can be distinguished.
    """
    least = _CLOCK * overhead if context.family.on_host else 0.0
    if not samples or min(samples) >= floor or floor > least:
        return tuple(samples)
    return tuple(max(s, least) for s in samples)
