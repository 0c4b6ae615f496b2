"""What the bench, its races and its measurements share: a device, its workers, and what is known so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from aot_tune.bench.devices.family import Monitor, family
from aot_tune.bench.devices.roofline import floor_of
from aot_tune.bench.host.findings import Findings
from aot_tune.bench.host.worker_process import DiedError, Pool, Worker
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Device, DeviceState, Measurement, Policy, Prepared, Status
from aot_tune.spec import Operator
from aot_tune.support.errors import AotTuneError, TooLargeError, WorkerError

_CLOCK = 0.01
"""An empty call is taken off the times of a host's clock. So times are only exact to this share of it."""

_LARGE = 16 << 20
"""Bytes of a problem's tensors from which on its runs on a CPU are not repeated, nor placed at the end of memory."""


class _Phases(dict[str, float]):
    """Seconds by phase."""

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
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

    def __init__(self, context: BenchContext, prepared: Prepared, candidate: str, digest: str) -> None:
        self.context, self.prepared, self.candidate, self.digest = context, prepared, candidate, digest
        self.phases = _Phases()

    def to_blame(self, death: DiedError) -> bool:
        """Whether its object is to blame: it is sure, or it was a timeout, which is not worth another try."""
        return not death.starved and (self.sure or death.certain or death.status == "timeout")

    def ended(self, status: Status, reason: str = "", **fields: object) -> Measurement:
        return self.context.measurement(
            self.prepared, self.candidate, self.digest, status=status, reason=reason, phases=dict(self.phases), **fields
        )

    def timed(self, timing: messages.Timed, facts: Mapping[str, object]) -> Measurement:
        """A measurement with times, if they can be true and the candidate does not leak memory."""
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
        elif status == "ok" and timing.leak:
            status, reason = "oom", f"grows by {timing.leak} bytes per call"
        elif status == "ok":
            reason = self.context.remarks.on(self.prepared, reason)
        facts = {"leak": timing.leak, "threads": timing.threads, **facts}
        return self.ended(status, reason, screen=samples, overhead=timing.overhead, **facts)


def told_apart(context: BenchContext, floor: float, samples: Sequence[float], overhead: float) -> tuple[float, ...]:
    """Samples, as far as they can be distinguished from the `overhead` that was taken off them.

    A call may be so small that even the device's `floor` cannot be distinguished from it. Its samples may then be
    below the floor, or zero. They count as the least time that can be distinguished.
    """
    least = _CLOCK * overhead if context.family.on_host else 0.0
    if not samples or min(samples) >= floor or floor > least:
        return tuple(samples)
    return tuple(max(s, least) for s in samples)


class BenchContext:
    """One device's workers and findings; arguments as of `Bench`. `operators` are those of prepared problems."""

    def __init__(
        self,
        device: Device,
        policy: Policy,
        scratch: Path,
        threads: int,
        log: Callable[[str], None],
        findings: Findings | None = None,
    ) -> None:
        self.device, self.policy, self.log = device, policy, log
        self.findings = findings or Findings(scratch / "references")
        self.family = family(device.family)
        self.monitor: Monitor = self.family.monitor(device, policy, log)
        self.pool = Pool(device, policy, scratch, threads, log, references=self.findings.folder)
        self.pool.faults = self.monitor.faults
        self.remarks = Remarks(log)
        self.operators: dict[str, Operator] = {}
        self._conditions: tuple[float, DeviceState | None] = (-math.inf, None)

    def measurement(self, prepared: Prepared, candidate: str, code: str, **fields: object) -> Measurement:
        """A measurement of this device and policy, in the digits of a record."""
        return Measurement(
            candidate=candidate,
            code=code,
            problem=prepared.problem,
            device=self.device.digest,
            policy=self.policy.digest,
            **fields,  # type: ignore[arg-type]
        ).in_digits()

    def floor_ns(self, prepared: Prepared) -> float:
        """A time in ns per call. A measurement below it cannot be true."""
        operator = self.operators[prepared.operator]
        return floor_of(self.device, operator, prepared.problem)

    def is_large(self, prepared: Prepared) -> bool:
        """Whether preparing the calls of a CPU's problem takes far longer than the calls. The odd ones are repeated."""
        tensors = self.operators[prepared.operator].tensor_bytes(prepared.problem)
        return self.family.on_host and tensors > _LARGE

    def conditions(self, age: float = 0.0) -> DeviceState | None:
        """What the device is like now, or was at most `age` seconds ago. Asking takes milliseconds."""
        if time.monotonic() - self._conditions[0] > age:
            state = self.monitor.read([w.pid for w in self.pool.workers()])
            self._conditions = time.monotonic(), state
        return self._conditions[1]

    def struck(self, digest: str) -> DiedError | None:
        """How an object killed a worker, if it has killed as many workers as it may."""
        return self.findings.struck(digest, self.policy.strikes)

    def introduce(self, worker: Worker, *problems: Prepared) -> None:
        """Name problems to a worker that does not know them. Raises DiedError when the worker dies of it."""
        for prepared in problems:
            if prepared.key not in worker.known:
                work = messages.Work(
                    key=prepared.key,
                    operator_folder=prepared.operator_folder,
                    check=prepared.check,
                    folder=prepared.folder,
                )
                _expect_done(self.pool.request(worker, work, self.policy.deadlines.load))
                worker.known.add(prepared.key)

    def make_buffers(self, worker: Worker, prepared: Prepared) -> None:
        """Have a worker make a problem's buffers. Raises DiedError when it dies of that, or cannot, and is dropped."""
        limit = self.policy.deadlines.prepare
        reply = self.remarks.prepare(prepared, lambda r: self.pool.request(worker, r, limit))
        if isinstance(reply, messages.Failure):  # a candidate is at fault only if an earlier one leaked
            self.pool.dismiss(worker)
            raise DiedError(reply.status, reply.reason)

    def cannot_hold(self, prepared: Prepared, death: DiedError) -> AotTuneError:
        """The error for a problem whose buffers no worker can hold. On the host, that problem is left out."""
        what, fix = f"no worker can hold problem '{prepared.problem.id}'", "free memory, or leave the problem out"
        if self.family.on_host and death.status == "oom":
            return TooLargeError(f"{what} of operator {prepared.operator!r}, it is left out: {death.reason}", fix=fix)
        where = self.device.unit and f", on {self.device.unit}"
        return WorkerError(what, why=death.reason + where, fix=f"{fix} of the workload")


def _expect_done(reply: messages.Reply) -> None:
    if isinstance(reply, messages.Failure):
        raise WorkerError("a worker cannot set up a problem", why=reply.reason, fix="see the worker's output above")


class Remarks:
    """What workers say of a problem when they first set it up. It belongs to every time of that problem."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._known: dict[str, str] = {}
        self._told: set[str] = set()

    def prepare(self, prepared: Prepared, ask: Callable[[messages.Prepare], messages.Reply]) -> messages.Reply:
        """Have a worker make a problem's buffers. The first worker's remarks on the problem are kept and logged."""
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
        """A note on times of a problem, with the remarks that belong to all of them."""
        return "; ".join(text for text in (note, self._known.get(prepared.key, "")) if text)
