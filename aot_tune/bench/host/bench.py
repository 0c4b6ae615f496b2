"""The bench: prepares problems, screens candidates, races the best, verifies, surveys; one device, one thread."""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from aot_tune.bench.host.bench_context import BenchContext, Phases, Run
from aot_tune.bench.host.findings import Findings, Odd
from aot_tune.bench.host.pool import Pool
from aot_tune.bench.host.preparation import Preparation, check_need
from aot_tune.bench.host.race import Race
from aot_tune.bench.host.worker_process import DiedError, Worker
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check, Device, Measurement, Policy, Prepared
from aot_tune.bench.protocol.messages import failure_of
from aot_tune.compile import Variant
from aot_tune.spec import Expr, Operator, Problem
from aot_tune.support.digests import canonical_digest

__all__ = ["Bench", "verify_linked"]

_MOST_LOADED = 256
"""The most objects that stay loaded in a worker of a GPU. On a CPU none stays."""
_LARGE = 16 << 20
"""Bytes of a problem's tensors from which on its runs on a CPU are not repeated, nor placed at the end of memory."""
_JUST_NOW = 0.25
"""Seconds. While the state after one candidate's samples is no older, it is also the state before the next one's."""
_NEAR = 1.1
"""Candidates up to so much slower than the best are timed twice. Among many near ties, the least time is mostly
luck."""
_FAR, _AGAIN, _ALIKE = 8.0, 3, 1.5
"""Candidates that take so many times the best are timed again, at most three times. The least time counts, because
others may have used the cores. Two times within 1.5 x of each other are believed."""


class Bench:
    """A device to measure on, for the length of a `with` block.

    Args:
        device: as `devices` of its family gives it.
        policy: how to measure.
        scratch: a folder of this bench alone; workers' scratch folders go there.
        threads: of candidates and baselines.
        log: gets a line now and then.
        findings: what benches on devices of the same model share. Without, this bench has its own, in `scratch`.
        waits: whether to wait for a device that others use. It must, to take times.

    It belongs to the thread that enters it. This thread must live until it leaves.
    """

    def __init__(
        self,
        device: Device,
        policy: Policy,
        *,
        scratch: Path,
        threads: int,
        log: Callable[[str], None] = lambda _line: None,
        findings: Findings | None = None,
        waits: bool = True,
    ) -> None:
        self.context = BenchContext(device, policy, scratch.resolve(), threads, log, findings)
        self._waits = waits
        self._preparation = Preparation(device, policy, self.context.pool.refer, self.context.pool.relieve)
        self._own = Findings(self.context.findings.folder / scratch.resolve().name, "alone-")
        self._fitted: dict[tuple[Findings, str], list[Prepared]] = {}

    @property
    def device(self) -> Device:
        """What it measures on."""
        return self.context.device

    @property
    def policy(self) -> Policy:
        """How it measures."""
        return self.context.policy

    @property
    def pool(self) -> Pool:
        """Its workers."""
        return self.context.pool

    @property
    def findings(self) -> Findings:
        """What it shares with benches on devices of the same model."""
        return self.context.findings

    def measurement(self, prepared: Prepared, candidate: str, code: str, **fields: object) -> Measurement:
        """A measurement of this device and policy that was made elsewhere."""
        return self.context.measurement(prepared, candidate, code, **fields)

    def __enter__(self) -> Bench:
        if self._waits:
            self.context.monitor.begin()
        self.context.pool.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.context.pool.__exit__(kind, error, trace)

    def interrupt(self) -> None:
        """Kill the workers, from another thread. Their requests end with them."""
        for worker in self.pool.workers():
            with contextlib.suppress(OSError):
                os.killpg(worker.pid, signal.SIGKILL)

    def prepare(self, operator_folder: Path, operator: Operator, on: Problem | Check) -> Prepared:
        """Compute reference results and tolerances of a problem, or of a check, once.

        Raises:
            WorkerError: when no worker can be started.
            TooLargeError: when the host lacks the memory for it.
            AotTuneError: when the reference fails; with the operator, the problem and what it said.
        """
        check = Check(problem=on) if isinstance(on, Problem) else on
        found = self._preparation.of(self.context.findings, operator_folder.resolve(), operator, check)
        self.context.operators[operator.name] = operator
        return found

    @contextmanager
    def alone(self) -> Iterator[None]:
        """In the block, this device finds out everything for itself, and shares nothing of it."""
        shared, self.context.findings = self.context.findings, self._own
        try:
            yield
        finally:
            self.context.findings = shared

    @property
    def referring(self) -> float:
        """Seconds that references took so far."""
        return self._preparation.seconds

    def screen(
        self,
        prepared: Prepared,
        variant: Variant,
        best_ns: float | None = None,
        tune_checks: bool = True,
    ) -> Measurement:
        """Verify a candidate, then take a few times. `tune_checks` verifies it on odd problems too, once per object.

        `best_ns` is the best time so far on the problem. Whatever the candidate does becomes the measurement's status.

        Raises:
            WorkerError: when no worker can be started.
        """
        return self._measure(prepared, variant, best_ns, tune_checks, timed=True)

    def verify(self, prepared: Prepared, variant: Variant, tune_checks: bool = True) -> Measurement:
        """Like `screen`, without times. It is for variants that were replayed or linked."""
        return self._measure(prepared, variant, None, tune_checks, timed=False)

    def race(self, prepared: Prepared, variants: Sequence[Variant]) -> list[Measurement]:
        """Time variants and the operator's baselines in the same rounds.

        Returns one measurement per variant, then one per baseline that can run here. Those with status ok have the same
        `race` and equally many `final` times, one per round.

        Raises:
            WorkerError: when no worker can be started.
        """
        operator = self.context.operators[prepared.operator]
        baselines = [
            b for b in operator.baselines if self.context.family.runs(b.requires) and b.supports(prepared.problem)
        ]
        return Race(self.context, prepared, variants, baselines).run()

    def survey(
        self, operator_folder: Path, operator: Operator, problem: Problem, variants: Sequence[Variant]
    ) -> list[Measurement]:
        """Time candidates on a problem without reference results. They were verified elsewhere.

        Raises:
            WorkerError: when no worker can be started.
            TooLargeError: when the host lacks the memory for the problem.
        """
        if self.context.family.on_host:
            check_need(operator, problem, self.policy)
        folder = str(operator_folder.resolve())
        self.context.operators[operator.name] = operator
        key = f"survey {canonical_digest([folder, problem.id, dict(problem.dtypes)])}"
        prepared = Prepared(
            key=key, operator=operator.name, operator_folder=folder, check=Check(problem=problem), folder=""
        )
        return _survey_problem(self.context, prepared, variants)

    def _measure(
        self, prepared: Prepared, variant: Variant, best_ns: float | None, tune_checks: bool, *, timed: bool
    ) -> Measurement:
        digest = variant.code
        run = Run(self.context, prepared, variant.id, digest, Phases())
        if (refusal := self._refusal(digest)) is not None:
            return run.ended(refusal.status, refusal.reason)
        odd = self._odd(prepared, digest, variant.requires) if tune_checks else None
        load = messages.Load(handle=digest, path=variant.shared, symbol=variant.symbol)
        while True:
            worker = self._warm_worker(run, odd)
            # Otherwise, something that another object left running may have killed it.
            run.sure = run.spared or worker.hosted <= {digest}
            try:
                return self._attempt(run, worker, load, odd, best_ns, timed)
            except DiedError as death:
                if run.to_blame(death):
                    return run.ended(death.status, death.reason)
                if death.starved:
                    if run.starved:
                        raise self.context.cannot_hold(prepared, death) from None
                    self.context.pool.relieve()
                run.starved |= death.starved
                run.spared |= not death.starved

    def _refusal(self, digest: str) -> messages.Failure | None:
        """What to say of an object that is not run again."""
        struck = self.context.struck(digest)
        if struck is None:
            return None
        reason = f"{struck.reason}; not run again, because it has killed {self.context.policy.strikes} workers"
        return messages.Failure(kind="struck", status=struck.status, reason=reason)

    def _ask(self, run: Run, worker: Worker, request: messages.Request, seconds: float) -> messages.Reply:
        """Ask a worker.

        If it dies, that counts against the object at once, before another device tries the same object.
        """
        try:
            return self.context.pool.request(worker, request, seconds)
        except DiedError as death:
            if run.to_blame(death):
                self.context.findings.strike(run.digest, death)
            raise

    def _attempt(
        self,
        run: Run,
        worker: Worker,
        load: messages.Load,
        odd: Odd | None,
        best_ns: float | None,
        timed: bool,
    ) -> Measurement:
        worker.host(run.digest)
        if run.digest not in worker.loaded:
            with run.phases("load"):
                reply = self._ask(run, worker, load, self.context.policy.deadlines.load)
            if isinstance(reply, messages.Failure):
                return run.ended(reply.status, reply.reason)
            worker.keep(run.digest)
        measured = self._judge(run, worker, odd, best_ns, timed)
        with run.phases("unload"):
            self._unload(run, worker, 0 if self.context.family.on_host else _MOST_LOADED)
        return measured

    def _unload(self, run: Run, worker: Worker, most: int) -> None:
        """Unload the objects that were loaded longest ago, until at most `most` are left."""
        for handle in worker.let_go(most):
            self._ask(run, worker, messages.Unload(handle=handle), self.context.policy.deadlines.load)

    def _warm_worker(self, run: Run, odd: Odd | None) -> Worker:
        """A worker with the problem's buffers. If it dies of an earlier candidate, it is replaced once."""
        for last in (False, True):
            with run.phases("start"):
                worker = self.context.pool.candidates()
            try:
                with run.phases("prepare"):
                    new = run.prepared.key not in worker.known
                    self.context.introduce(worker, run.prepared, *(odd.problems if odd is not None else ()))
                    if new:
                        self.context.make_buffers(worker, run.prepared)
                return worker
            except DiedError as death:
                if last:
                    raise self.context.cannot_hold(run.prepared, death) from None
        raise AssertionError

    def _odd(self, prepared: Prepared, digest: str, requires: Sequence[Expr]) -> Odd | None:
        suite = self.context.findings.suite(prepared.operator_folder, digest, requires)
        if self.context.findings.verdicts.has(suite):
            return Odd(suite)
        problems = self._checks(prepared, requires)
        return Odd(suite, problems) if problems else None

    def _checks(self, prepared: Prepared, requires: Sequence[Expr]) -> list[Prepared]:
        operator, folder = self.context.operators[prepared.operator], prepared.operator_folder
        findings, key = self.context.findings, "\n".join((folder, *(r.key() for r in requires)))
        if (findings, key) not in self._fitted:
            found = findings.checks.of(
                Path(folder), operator, requires, self.context.policy, self.context.family.on_host
            )
            self._fitted[findings, key] = self._preparation.of_all(findings, Path(folder), operator, found)
        return self._fitted[findings, key]

    def _judge(self, run: Run, worker: Worker, odd: Odd | None, best_ns: float | None, timed: bool) -> Measurement:
        limits, key = self.context.policy.deadlines, run.prepared.key
        if odd is not None and (failed := self._failed(run, worker, odd)) is not None:
            return failed
        seconds = limits.verify
        if best_ns is not None:
            seconds = min(seconds, limits.verify_least + limits.per_best * best_ns / 1e9)
        with run.phases("verify"):
            renewed = best_ns is None or best_ns < self.context.policy.long_ns / 4
            quick = odd is not None and self._is_large(run.prepared)
            verify = messages.Verify(handle=run.digest, keys=(key,), quick=quick, renewed=renewed)
            reply = self._ask(run, worker, verify, seconds)
        if not isinstance(reply, messages.Checked):
            return run.ended(*failure_of(reply))
        facts: dict[str, Any] = {"error": reply.error, "bitwise": reply.bitwise}
        if reply.status != "ok" or not timed:
            return run.ended(reply.status, reply.reason, **facts)
        if min(reply.runs) > self.context.policy.long_ns:
            samples = reply.runs[:2]
            if len(samples) == 2 and (best_ns is None or min(samples) <= self.context.policy.screen_stop * best_ns):
                samples = reply.runs
            return run.timed(messages.Timed(samples=tuple(samples)), facts)
        with run.phases("settle"):
            self.context.pool.settle()
        bench = messages.Screen(handle=run.digest, key=key, best_ns=best_ns)
        most = self.context.policy.on_gpu.tries
        for tries in range(1, most + 1):
            before = self.context.conditions(_JUST_NOW if tries == 1 else 0.0)
            with run.phases("bench"):
                timing = self._ask(run, worker, bench, limits.bench)
            after = self.context.conditions()
            facts["conditions"] = tuple(s for s in (before, after) if s is not None)
            why = self.context.monitor.spoiled(after) if tries < most else ""
            if not why:
                break
            self.context.monitor.recover(why)
        if not isinstance(timing, messages.Timed):
            return run.ended(*failure_of(timing), **facts)
        return run.timed(timing, facts)

    def _is_large(self, prepared: Prepared) -> bool:
        """Whether preparing the calls of a CPU's problem takes far longer than the calls. The odd ones are repeated."""
        tensors = self.context.operators[prepared.operator].tensor_bytes(prepared.problem)
        return self.context.family.on_host and tensors > _LARGE

    def _failed(self, run: Run, worker: Worker, odd: Odd) -> Measurement | None:
        """The measurement of an object that is wrong on its odd problems, or None if it is right."""
        verify = messages.Verify(handle=run.digest, keys=tuple(p.key for p in odd.problems), renewed=True)

        def check() -> messages.Reply:  # while this device waited, it may have killed the workers of others
            return self._refusal(run.digest) or self._ask(run, worker, verify, self.context.policy.deadlines.check)

        with run.phases("check"):
            reply = self.context.findings.verdicts.get(odd.suite, check)
        if not isinstance(reply, messages.Checked):
            return run.ended(*failure_of(reply))
        return None if reply.status == "ok" else run.ended(reply.status, reply.reason, error=reply.error)


class _Surveyed:
    """What is known of candidates on a problem: the worker that holds them, and their measurements by number."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.stands = False  # whether the worker has results to compare with
        self.found: dict[int, Measurement] = {}

    @property
    def best(self) -> float | None:
        """The least time in ns."""
        return min((m.ns for m in self.found.values() if m.ns is not None), default=None)


def _survey_problem(context: BenchContext, prepared: Prepared, variants: Sequence[Variant]) -> list[Measurement]:
    """A measurement of each candidate. The first candidate with results sets what the others are compared with.

    `prepared` needs no folder. Candidates stay loaded in the worker. If one kills the worker, its own status says so.

    Raises:
        WorkerError: when no worker can be started.
    """
    surveyed = _Surveyed()
    for number in range(len(variants)):
        _survey(context, prepared, surveyed, number, variants[number])
    best = surveyed.best or 0.0
    near = [n for n, m in surveyed.found.items() if m.ns is not None and m.ns <= _NEAR * best]
    far = [n for n, m in surveyed.found.items() if n > 0 and m.ns is not None and m.ns > _FAR * best]
    for number in reversed(near if len(near) > 1 else []) if surveyed.stands else ():
        first = surveyed.found[number]
        again = _survey(context, prepared, surveyed, number, variants[number])
        if again.status == "ok":
            surveyed.found[number] = msgspec.structs.replace(first, screen=(*first.screen, *again.screen))
    for number in far if surveyed.stands else ():
        first = surveyed.found[number]
        for _ in range(_AGAIN):  # one of several threads may have waited for another program
            again = _survey(context, prepared, surveyed, number, variants[number])
            if again.status != "ok":
                break
            settled = max(_ns(first), _ns(again)) <= _ALIKE * min(_ns(first), _ns(again))
            first = msgspec.structs.replace(first, screen=min(first, again, key=_ns).screen)
            surveyed.found[number] = first
            if settled or _ns(first) <= _FAR * best:
                break
    return [surveyed.found[n] for n in range(len(variants))]


def _ns(measurement: Measurement) -> float:
    return math.inf if measurement.ns is None else measurement.ns


def _survey(
    context: BenchContext, prepared: Prepared, surveyed: _Surveyed, number: int, variant: Variant
) -> Measurement:
    """Time a candidate. If it kills its worker, its status says so."""
    run = Run(context, prepared, variant.id, variant.code, Phases())
    if (struck := context.struck(variant.code)) is not None:
        measured = run.ended(struck.status, struck.reason)
    else:
        try:
            surveyed.worker = _worker(context, prepared, surveyed.worker)
            measured = _time(context, run, surveyed.worker, variant, first=not surveyed.stands, best=surveyed.best)
            surveyed.stands = surveyed.stands or measured.status == "ok"
        except DiedError as death:
            if not death.starved:
                context.findings.strike(variant.code, death)
            surveyed.worker, surveyed.stands = None, False
            measured = run.ended(death.status, death.reason)
    surveyed.found[number] = measured
    return measured


def _worker(context: BenchContext, prepared: Prepared, worker: Worker | None) -> Worker:
    """A worker that knows the problem and is quiet."""
    worker = context.pool.candidates() if worker is None else worker
    context.introduce(worker, prepared)
    context.pool.settle()
    return worker


def _time(
    context: BenchContext, run: Run, worker: Worker, variant: Variant, *, first: bool, best: float | None
) -> Measurement:
    limits = context.policy.deadlines
    worker.host(run.digest)
    if run.digest not in worker.loaded:
        load = messages.Load(handle=run.digest, path=variant.shared, symbol=variant.symbol)
        reply = context.pool.request(worker, load, limits.load)
        if isinstance(reply, messages.Failure):
            return run.ended(reply.status, reply.reason)
        worker.keep(run.digest)
    request = messages.SurveyOne(handle=run.digest, key=run.prepared.key, first=first, best_ns=best)
    timing = context.pool.request(worker, request, limits.bench)
    if not isinstance(timing, messages.Timed):
        return run.ended(*failure_of(timing))
    return run.timed(timing, {})


def verify_linked(
    context: BenchContext, library: Path, function: str, variant: str, problems: Sequence[Prepared]
) -> Measurement:
    """Verify a variant on problems. The first fault ends it, and the measurement is of that problem.

    Args:
        context: of the bench of the device that the variant is for.
        library: the shared library.
        function: the operator's public C function.
        variant: `operator:name`, as AOT_TUNE_FORCE takes it.
        problems: those that it serves, at least one.

    Raises:
        WorkerError: when no worker can be started.
    """
    load = messages.Load(handle=variant, path=str(library.resolve()), symbol=function, variant=variant)
    while True:
        worker = context.pool.candidates()
        first = not worker.hosted  # else something left behind may be at fault, or a library that stayed
        run = Run(context, problems[0], variant, load.handle, Phases())
        try:
            return _verify_in(run, worker, load, problems)
        except DiedError as death:
            if first:
                return run.ended(death.status, death.reason)
            worker.kill()


def _verify_in(run: Run, worker: Worker, load: messages.Load, problems: Sequence[Prepared]) -> Measurement:
    context, limits = run.context, run.context.policy.deadlines
    worker.host(run.digest)
    context.introduce(worker, *problems)
    reply = context.pool.request(worker, load, limits.load)
    if isinstance(reply, messages.Failure):
        raise DiedError(reply.status, reply.reason)
    for run.prepared in problems:
        request = messages.Verify(handle=load.handle, keys=(run.prepared.key,), renewed=True)
        checked = context.pool.request(worker, request, limits.verify)
        if not isinstance(checked, messages.Checked):
            return run.ended(*failure_of(checked))
        if checked.status != "ok":
            return run.ended(checked.status, checked.reason, error=checked.error, bitwise=checked.bitwise)
    if context.unloads:
        _unload_library(context, worker, load.handle)
    return run.ended("ok")


def _unload_library(context: BenchContext, worker: Worker, handle: str) -> None:
    """Unload the library.

    A worker may die of its runtime library, which is no fault of the variant. Then another worker takes over. From then
    on libraries stay loaded, because workers take seconds to start. Each variant is called in its own copy.
    """
    try:
        context.pool.request(worker, messages.Unload(handle=handle), context.policy.deadlines.load)
    except DiedError as death:
        context.unloads = False
        context.log(f"libraries now stay loaded while verified, because a worker died of unloading one: {death.reason}")
