"""References of problems and of odd ones, as a bench asks for them."""

from __future__ import annotations

import errno
import functools
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from aot_tune.bench.devices.cpu import last_cache_bytes
from aot_tune.bench.devices.family import family
from aot_tune.bench.host.findings import Findings
from aot_tune.bench.host.worker_process import DiedError
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import WORKER_FAULT, Check, Device, Policy, Prepared, digest_of
from aot_tune.bench.protocol.messages import failure_of
from aot_tune.spec import Operator, Problem
from aot_tune.spec.generators import OF_VALUES
from aot_tune.support.errors import AotTuneError, TooLargeError, WorkerError
from aot_tune.support.limits import allowed_memory, kept_memory, size_text

Refer = Callable[[messages.Reference, float], messages.Reply]

_PROCESSES = 384 << 20
"""What a build's own process and workers without a problem hold together."""


def _needed_memory(operator: Operator, problem: Problem, policy: Policy) -> int:
    """About how many bytes a build needs to measure a problem on the host.

    Either the worker for references holds the inputs, also in float64, and the outputs three times in float64. Or both
    workers hold buffers: inputs to copy from, a copy of all tensors for each placement, and copies that rotate.
    """
    present = [t for t in operator.tensors if operator.is_present(problem, t)]
    counts = [(t, math.prod(operator.shape(problem, t))) for t in present]
    read = sum(n for t, n in counts if not t.output)
    written = sum(n for t, n in counts if t.written)
    stored = operator.tensor_bytes(problem)
    references = stored + 8 * read + 24 * written
    rotating = min(policy.cold_factor * last_cache_bytes(), (policy.copies - 1) * stored)
    buffers = (4 + 2) * stored + 2 * int(rotating) + 8 * written
    return _PROCESSES + max(references, buffers)


@functools.cache
def _allowed() -> int:
    """Reading it takes a millisecond, and a build asks for each variant and problem."""
    return allowed_memory()


def has_room(operator: Operator, problem: Problem, policy: Policy) -> bool:
    """Whether the memory that is allowed here is enough for a problem."""
    return _needed_memory(operator, problem, policy) <= _allowed()


def check_need(operator: Operator, problem: Problem, policy: Policy) -> None:
    """Check that the host has the memory that a problem needs. Raises TooLargeError with both."""
    if not has_room(operator, problem, policy):
        needed, allowed = _needed_memory(operator, problem, policy), _allowed()
        raise _left_out(
            operator, problem, f"it needs about {size_text(needed)}, but only {size_text(allowed)} are allowed"
        )


def _left_out(operator: Operator, problem: Problem, why: str) -> TooLargeError:
    return TooLargeError(
        f"problem '{problem.id}' of operator {operator.name!r} is left out: {why}",
        fix="give the build more memory, or leave the problem out of the workload",
    )


class Preparation:
    """Computes the references that findings lack. `refer` asks the worker for one, within so many seconds.

    `relieve` frees what workers keep. `log` gets what authors should know of their problems. `seconds` is how long this
    took so far, with the time spent waiting for other benches.
    """

    def __init__(
        self, device: Device, policy: Policy, refer: Refer, relieve: Callable[[], None], log: Callable[[str], None]
    ) -> None:
        self._device, self._policy, self._refer, self._relieve, self._log = device, policy, refer, relieve, log
        self._told: set[tuple[str, str]] = set()
        self._sources: dict[str, str] = {}
        self._fits = 0
        self.seconds = 0.0

    def of(self, findings: Findings, operator: Operator, check: Check, *, tell: bool = True) -> Prepared:
        """The reference of a problem or check. `tell`: its author is told what it lacks. Raises as `Bench.prepare`."""
        key, begin = findings.prefix + self._key(operator, check), time.monotonic()
        files = findings.folder / key
        try:
            return findings.references.get(key, lambda: self._made(key, files, operator, check, tell=tell))
        finally:
            self.seconds += time.monotonic() - begin

    def of_all(self, findings: Findings, operator: Operator, checks: Sequence[Check]) -> list[Prepared]:
        """The references of several checks, first those that no other bench computes. Raises as `Bench.prepare`."""
        try:
            for check in checks:
                if not findings.references.making(findings.prefix + self._key(operator, check)):
                    self.of(findings, operator, check, tell=False)
            return [self.of(findings, operator, check, tell=False) for check in checks]
        except TooLargeError as error:
            raise AotTuneError(error.what.replace("is left out", "is not checked"), fix=error.fix) from error

    @property
    def _on_host(self) -> bool:
        return family(self._device.family).on_host

    def _make_room(self, operator: Operator, problem: Problem) -> None:
        """Free what workers keep if a problem needs the memory. Raises TooLargeError if it needs more than allowed."""
        if not self._on_host or (needed := _needed_memory(operator, problem, self._policy)) <= self._fits:
            return
        check_need(operator, problem, self._policy)
        if needed + 2 * kept_memory() <= _allowed():
            self._fits = needed  # so do smaller ones: there are hundreds of small checks
        else:
            self._relieve()

    def _key(self, operator: Operator, check: Check) -> str:
        if operator.folder not in self._sources:
            self._sources[operator.folder] = Path(operator.folder, "operator.py").read_text("utf-8")
        return digest_of([operator.name, self._sources[operator.folder], check, self._policy.seed])[:24]

    def _made(self, key: str, files: Path, operator: Operator, check: Check, *, tell: bool) -> Prepared:
        request = messages.Reference(operator_folder=operator.folder, check=check, folder=str(files))
        self._make_room(operator, check.problem)
        try:
            reply = self._refer(request, self._policy.deadlines.prepare)
        except DiedError as death:
            if death.certain and death.reason.startswith(WORKER_FAULT):
                unit = self._device.unit
                raise WorkerError(
                    f"{self._device.name}{unit and f' ({unit})'} cannot be measured on",
                    why=death.reason.removeprefix(WORKER_FAULT),
                    fix=unit and "leave it out of CUDA_VISIBLE_DEVICES: what was measured so far is kept",
                ) from death
            reply = messages.Failure(kind=death.status, reason=death.reason, status=death.status)
        if not isinstance(reply, messages.Done):
            status, why = failure_of(reply)
            if os.strerror(errno.ENOSPC) in why:
                raise WorkerError(
                    f"{files.parent} is full: the reference for problem '{check.problem.id}' of operator "
                    f"{operator.name!r} takes {_size(operator, check.problem)} bytes there",
                    fix="free disk space, or set TMPDIR to a folder on another disk",
                )
            if status == "oom" and self._on_host:
                raise _left_out(operator, check.problem, f"its reference takes more memory than there is ({why})")
            rest = ", or leave such calls out by `legal`"
            less = "; have it compute some rows at a time, or leave the problem out of the workload"
            raise AotTuneError(
                f"operator {operator.name!r}: no reference for problem '{check.problem.id}'",
                why=f"{why} (out of memory)" if status == "oom" else why,
                fix=f"correct {_blamed(why)} in {Path(operator.folder, 'operator.py')}"
                + (less if status == "oom" else rest),
            )
        told = (operator.folder, reply.remark)
        if reply.remark and tell and told not in self._told:
            self._told.add(told)
            self._log(f"{operator.name} {check.problem.id}: {reply.remark}")
        return Prepared(
            key=key, operator=operator.name, operator_folder=operator.folder, check=check, folder=str(files)
        )


def _blamed(why: str) -> str:
    """What is to be corrected: where inputs cannot be drawn, it is not the reference."""
    return "the function" if OF_VALUES in why else "`reference`"


def _size(operator: Operator, problem: Problem) -> int:
    """Bytes of the true values of an operator."""
    outputs = [t for t in operator.outputs if operator.is_present(problem, t)]
    return sum(8 * math.prod(operator.shape(problem, t)) for t in outputs)
