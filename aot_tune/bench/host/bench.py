"""The bench: prepares problems, screens candidates, races the best, verifies, surveys; one device, one thread."""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from aot_tune.bench.host.bench_context import BenchContext, Run
from aot_tune.bench.host.findings import Findings, Odd
from aot_tune.bench.host.preparation import Preparation, check_need
from aot_tune.bench.host.race import Race
from aot_tune.bench.host.worker_process import DiedError, Worker
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check, Device, Measurement, Policy, Prepared, Seen
from aot_tune.bench.protocol.messages import failure_of, is_fault
from aot_tune.compile import Variant
from aot_tune.spec import Expr, Operator, Problem
from aot_tune.support.digests import canonical_digest

_MOST_LOADED = 256
"""The most objects that stay loaded in a worker of a GPU. On a CPU none stays."""
_JUST_NOW = 0.25
"""Seconds. While the state after one candidate's samples is no older, it is also the state before the next one's."""
_NEAR, _ON_HOST = (1.1,), (8.0, *(2.5,) * 7)
"""Candidates up to so much slower than the best are timed once more for each number. Among many near ties, the least
time is mostly luck. On a shared host's CPU, what was best in one survey lost 3.5 % in the next one (23 % at p95) after
one pass, 2.1 % (14 %) after three. There, a pass after these follows only while times fall."""
_FELL, _MATTERS = 0.95, 1.5
"""A time falls if it is below this share of the least one before, and below this multiple of the best."""
_FAR, _AGAIN, _ALIKE = 8.0, 6, 1.5
"""Candidates that take so many times the best are timed again, at most six times. The least time counts, because
others may have used the cores. On a GPU, two times within 1.5 x of each other are believed. On a CPU, threads that wait
for a core often wait equally long."""


class Bench(BenchContext):
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
        super().__init__(device, policy, scratch.resolve(), threads, log, findings)
        self._waits, self._unloads_libraries = waits, True
        self._preparation = Preparation(device, policy, self.pool.refer, self.pool.relieve, log)
        self._own = Findings(self.findings.folder / scratch.resolve().name, "alone-")
        self._fitted: dict[tuple[Findings, str], list[Prepared]] = {}

    def __enter__(self) -> Bench:
        if self._waits:
            self.monitor.begin()
        self.pool.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        self.pool.close()

    def interrupt(self) -> None:
        """Kill the workers, from another thread. Their requests end with them."""
        for worker in self.pool.workers():
            with contextlib.suppress(OSError):
                os.killpg(worker.pid, signal.SIGKILL)

    def prepare(self, operator: Operator, on: Problem | Check) -> Prepared:
        """Compute reference results and tolerances of a problem, or of a check, once.

        Raises:
            WorkerError: when no worker can be started.
            TooLargeError: when the host lacks the memory for it.
            AotTuneError: when the reference fails; with the operator, the problem and what it said.
        """
        check = Check(problem=on) if isinstance(on, Problem) else on
        prepared = self._preparation.of(self.findings, operator, check)
        self.operators[operator.name] = operator
        return prepared

    @contextmanager
    def alone(self) -> Iterator[None]:
        """In the block, this device finds out everything for itself, and shares nothing of it."""
        shared, self.findings = self.findings, self._own
        try:
            yield
        finally:
            self.findings = shared

    @property
    def referring(self) -> float:
        return self._preparation.seconds

    def screen(
        self, prepared: Prepared, variant: Variant, best_ns: float | None = None, tune_checks: bool = True
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

    def race(self, prepared: Prepared, variants: Sequence[Variant], *, passively: bool = False) -> list[Measurement]:
        """Time variants and the operator's baselines in the same rounds; `passively`, threads sleep while they wait.

        Returns one measurement per variant, then one per baseline that can run here. Those with status ok have the same
        `race` and equally many `final` times, one per round.

        Raises:
            WorkerError: when no worker can be started.
        """
        operator = self.operators[prepared.operator]
        baselines = [b for b in operator.baselines if self.family.runs(b.requires) and b.supports(prepared.problem)]
        with self.pool.passive() if passively else contextlib.nullcontext():
            return Race(self, prepared, variants, baselines).run()

    def survey(self, operator: Operator, problem: Problem, variants: Sequence[Variant]) -> list[Measurement]:
        """Time candidates on a problem without reference results. They were verified elsewhere.

        Raises:
            WorkerError: when no worker can be started.
            TooLargeError: when the host lacks the memory for the problem.
        """
        if self.family.on_host:
            check_need(operator, problem, self.policy)
        self.operators[operator.name] = operator
        key = f"survey {canonical_digest([operator.folder, problem.id, dict(problem.dtypes)])}"
        prepared = Prepared(
            key=key, operator=operator.name, operator_folder=operator.folder, check=Check(problem=problem), folder=""
        )
        return _Survey(self, prepared, variants).run()

    def _measure(
        self, prepared: Prepared, variant: Variant, best_ns: float | None, tune_checks: bool, *, timed: bool
    ) -> Measurement:
        digest = variant.code
        run = Run(self, prepared, variant.id, digest)
        if (refusal := self._refusal(digest)) is not None:
            return run.ended(refusal.status, refusal.reason)
        odd = self._odd(prepared, digest, variant.requires) if tune_checks else None
        load = messages.Load(handle=digest, path=variant.shared, symbol=variant.symbol)
        while True:
            worker = self._warm_worker(run, odd)
            # Otherwise, something that another object left behind may have killed it, or made this one wrong.
            run.sure = run.spared or worker.hosted <= {digest}
            try:
                return self._attempt(run, worker, load, odd, best_ns, timed)
            except DiedError as death:
                if run.to_blame(death):
                    return run.ended(death.status, death.reason)
                if death.starved:
                    if run.starved:
                        raise self.cannot_hold(prepared, death) from None
                    self.pool.relieve()
                run.starved |= death.starved
                run.spared |= not death.starved

    def _refusal(self, digest: str) -> messages.Failure | None:
        """What to say of an object that is not run again."""
        struck = self.struck(digest)
        if struck is None:
            return None
        reason = f"{struck.reason}; not run again, because it has killed {self.policy.strikes} workers"
        return messages.Failure(kind="struck", status=struck.status, reason=reason)

    def _ask(self, run: Run, worker: Worker, request: messages.Request, seconds: float) -> messages.Reply:
        """Ask a worker.

        If it dies, that counts against the object at once, before another device tries the same object.

        Raises:
            DiedError: when the worker dies, or when something else in it may be why the object is wrong. It is then
                not used again.
        """
        try:
            reply = self.pool.request(worker, request, seconds)
        except DiedError as death:
            if run.to_blame(death):
                self.findings.strike(run.digest, death)
            raise
        if is_fault(reply) and not run.sure:
            self.pool.dismiss(worker)
            raise DiedError(*failure_of(reply))
        return reply

    def _attempt(
        self, run: Run, worker: Worker, load: messages.Load, odd: Odd | None, best_ns: float | None, timed: bool
    ) -> Measurement:
        worker.hosted.add(run.digest)
        if run.digest not in worker.loaded:
            with run.phases("load"):
                reply = self._ask(run, worker, load, self.policy.deadlines.load)
            if isinstance(reply, messages.Failure):
                return run.ended(reply.status, reply.reason)
            worker.loaded[run.digest] = None
        measured = self._judge(run, worker, odd, best_ns, timed)
        with run.phases("unload"):
            for handle in worker.let_go(0 if self.family.on_host else _MOST_LOADED):
                self._ask(run, worker, messages.Unload(handle=handle), self.policy.deadlines.load)
        return measured

    def _warm_worker(self, run: Run, odd: Odd | None) -> Worker:
        """A worker with the problem's buffers. If it dies of an earlier candidate, it is replaced once."""
        for last in (False, True):
            with run.phases("start"):
                worker = self.pool.candidates()
            try:
                with run.phases("prepare"):
                    new = run.prepared.key not in worker.known
                    self.introduce(worker, run.prepared, *(odd.problems if odd is not None else ()))
                    if new:
                        self.make_buffers(worker, run.prepared)
                return worker
            except DiedError as death:
                if last:
                    raise self.cannot_hold(run.prepared, death) from None
        raise AssertionError

    def _odd(self, prepared: Prepared, digest: str, requires: Sequence[Expr]) -> Odd | None:
        suite = self.findings.suite(prepared.operator_folder, digest, requires)
        if self.findings.verdicts.has(suite):
            return Odd(suite)
        operator = self.operators[prepared.operator]
        findings, key = self.findings, "\n".join((operator.folder, *(r.key() for r in requires)))
        if (findings, key) not in self._fitted:
            checks = findings.checks.of(operator, requires, self.policy, self.family.on_host)
            self._fitted[findings, key] = self._preparation.of_all(findings, operator, checks)
        problems = self._fitted[findings, key]
        return Odd(suite, problems) if problems else None

    def _judge(self, run: Run, worker: Worker, odd: Odd | None, best_ns: float | None, timed: bool) -> Measurement:
        limits, key = self.policy.deadlines, run.prepared.key
        if odd is not None and (failed := self._failed(run, worker, odd)) is not None:
            return failed
        seconds = limits.verify
        if best_ns is not None:
            seconds = min(seconds, limits.verify_least + limits.per_best * best_ns / 1e9)
        with run.phases("verify"):
            renewed = best_ns is None or best_ns < self.policy.long_ns / 4
            quick = odd is not None and self.is_large(run.prepared)
            verify = messages.Verify(handle=run.digest, keys=(key,), quick=quick, renewed=renewed)
            reply = self._ask(run, worker, verify, seconds)
        if not isinstance(reply, messages.Checked):
            return run.ended(*failure_of(reply))
        facts: dict[str, Any] = {"error": reply.error, "bitwise": reply.bitwise}
        if reply.status != "ok" or not timed:
            return run.ended(reply.status, reply.reason, **facts)
        if min(reply.runs) > self.policy.long_ns:
            samples = reply.runs[:2]
            if len(samples) == 2 and (best_ns is None or min(samples) <= self.policy.screen_stop * best_ns):
                samples = reply.runs
            return run.timed(messages.Timed(samples=tuple(samples)), facts)
        with run.phases("settle"):
            self.pool.settle()
        bench = messages.Screen(handle=run.digest, key=key, best_ns=best_ns)
        most = self.policy.on_gpu.tries
        for tries in range(1, most + 1):
            before = self.conditions(_JUST_NOW if tries == 1 else 0.0)
            with run.phases("bench"):
                timing = self._ask(run, worker, bench, limits.bench)
            after = self.conditions()
            facts["seen"] = Seen.of(self.device, [s for s in (before, after) if s is not None])
            why = self.monitor.spoiled(after) if tries < most else ""
            if not why:
                break
            self.monitor.recover(why)
        if not isinstance(timing, messages.Timed):
            return run.ended(*failure_of(timing), **facts)
        return run.timed(timing, facts)

    def _failed(self, run: Run, worker: Worker, odd: Odd) -> Measurement | None:
        """The measurement of an object that is wrong on its odd problems, or None if it is right."""
        verify = messages.Verify(handle=run.digest, keys=tuple(p.key for p in odd.problems), renewed=True)

        def check() -> messages.Reply:  # while this device waited, it may have killed the workers of others
            return self._refusal(run.digest) or self._ask(run, worker, verify, self.policy.deadlines.check)

        with run.phases("check"):
            reply = self.findings.verdicts.get(odd.suite, check)
        if not isinstance(reply, messages.Checked):
            return run.ended(*failure_of(reply))
        return None if reply.status == "ok" else run.ended(reply.status, reply.reason, error=reply.error)

    def verify_linked(
        self, library: Path, function: str, variant: str, problems: Sequence[Prepared], *, repeat: bool = True
    ) -> Measurement:
        """Verify a variant inside a linked library on problems. The measurement is of the first that has a fault.

        Args:
            library: the shared library. It is called through its public C functions.
            function: the operator's public C function.
            variant: `operator:name`, as AOT_TUNE_FORCE takes it.
            problems: those that it serves, at least one.
            repeat: whether to repeat its calls on the first one.

        Raises:
            WorkerError: when no worker can be started.
        """
        load = messages.Load(handle=variant, path=str(library.resolve()), symbol=function, variant=variant)
        while True:
            worker = self.pool.candidates()
            run = Run(self, problems[0], variant, load.handle)
            run.sure = not worker.hosted  # else something left behind may be at fault, or a library that stayed
            try:
                return self._verify_in(run, worker, load, problems, repeat=repeat)
            except DiedError as death:
                if run.sure:
                    return run.ended(death.status, death.reason)
                self.pool.dismiss(worker)

    def _verify_in(
        self, run: Run, worker: Worker, load: messages.Load, problems: Sequence[Prepared], *, repeat: bool
    ) -> Measurement:
        limits = self.policy.deadlines
        worker.hosted.add(run.digest)
        self.introduce(worker, *problems)
        reply = self.pool.request(worker, load, limits.load)
        if isinstance(reply, messages.Failure):
            raise DiedError(reply.status, reply.reason)
        bitwise: bool | None = None
        for run.prepared in problems:
            again = repeat and run.prepared is problems[0]
            request = messages.Verify(handle=load.handle, keys=(run.prepared.key,), renewed=True, repeat=again)
            checked = self.pool.request(worker, request, limits.verify)
            if is_fault(checked) and not run.sure:
                raise DiedError(*failure_of(checked))
            if not isinstance(checked, messages.Checked):
                return run.ended(*failure_of(checked))
            if checked.status != "ok":
                return run.ended(checked.status, checked.reason, error=checked.error, bitwise=checked.bitwise)
            bitwise = checked.bitwise if again else bitwise
        run.prepared = problems[0]
        if self._unloads_libraries:
            self._unload_library(worker, load.handle)
        return run.ended("ok", bitwise=bitwise)

    def _unload_library(self, worker: Worker, handle: str) -> None:
        """Unload a library.

        A worker may die of its runtime library, which is no fault of the variant. Then another worker takes over. From
        then on libraries stay loaded, because workers take seconds to start. Each variant is called in its own copy.
        """
        try:
            self.pool.request(worker, messages.Unload(handle=handle), self.policy.deadlines.load)
        except DiedError as death:
            self._unloads_libraries = False
            self.log(
                f"libraries now stay loaded while verified, because a worker died of unloading one: {death.reason}"
            )


class _Survey:
    """Times of candidates on a problem, which needs no folder. They stay loaded in the worker that holds them."""

    def __init__(self, context: BenchContext, prepared: Prepared, variants: Sequence[Variant]) -> None:
        self._context, self._prepared, self._variants = context, prepared, variants
        self._worker: Worker | None = None
        self._stands = False  # whether the worker has results to compare with
        self._found: dict[int, Measurement] = {}

    def run(self) -> list[Measurement]:
        """A measurement of each candidate. The first candidate with results sets what the others are compared with.

        If one kills the worker, its own status says so.

        Raises:
            WorkerError: when no worker can be started.
        """
        numbers = range(len(self._variants))
        for number in numbers:
            self._one(number)
        best = self._best or 0.0
        far = [n for n, m in self._found.items() if n > 0 and math.inf > _ns(m) > _FAR * best]
        for turn, factor in enumerate(_ON_HOST if self._context.family.on_host else _NEAR):
            calm = self._again(factor, backwards=turn % 2 == 0)
            if calm and turn > 0:
                break
        for number in far if self._stands else ():
            self._settle(number, best)
        return [self._found[n] for n in numbers]

    def _again(self, factor: float, *, backwards: bool) -> bool:
        """Time those again that are up to so much slower than the best. Returns whether times were about as before.

        On a CPU other programs slow some calls down, and none is too fast: the turn with the least time counts.
        """
        calm = True
        most = factor * (self._best or 0.0)
        near = [n for n, m in self._found.items() if _ns(m) <= most]
        for number in sorted(near, reverse=backwards) if self._stands and len(near) > 1 else ():
            first = self._found[number]
            again = self._one(number)
            if again.status == "ok":
                calm &= _ns(again) > min(_FELL * _ns(first), _MATTERS * (self._best or math.inf))
                screen = (*first.screen, *again.screen)
                if self._context.family.on_host:
                    screen = min(first, again, key=_ns).screen
                self._found[number] = msgspec.structs.replace(first, screen=screen)
        return calm

    def _settle(self, number: int, best: float) -> None:
        """Time a slow candidate again: one of several threads may have waited for another program."""
        first = self._found[number]
        for _ in range(_AGAIN):
            again = self._one(number)
            if again.status != "ok":
                break
            alike = max(_ns(first), _ns(again)) <= _ALIKE * min(_ns(first), _ns(again))
            first = msgspec.structs.replace(first, screen=min(first, again, key=_ns).screen)
            self._found[number] = first
            if (alike and not self._context.family.on_host) or _ns(first) <= _FAR * best:
                break

    @property
    def _best(self) -> float | None:
        """The least time in ns."""
        return min((m.ns for m in self._found.values() if m.ns is not None), default=None)

    def _one(self, number: int) -> Measurement:
        """Time a candidate. If it is wrong or kills its worker, its status says so.

        Something that others left in the worker may be why. So it is tried again in a worker that has held nothing
        else. There it comes first, and a candidate that was right before is compared with it.
        """
        context, variant, doubt = self._context, self._variants[number], None
        run = Run(context, self._prepared, variant.id, variant.code)
        struck = context.struck(variant.code)
        measured = run.ended(struck.status, struck.reason) if struck is not None else None
        while measured is None:
            try:
                reply = self._time(run, variant, again=number in self._found)
                measured = run.timed(reply, {}) if isinstance(reply, messages.Timed) else run.ended(*failure_of(reply))
                self._stands = self._stands or measured.status == "ok"
                if doubt is not None and measured.status == "ok" and not self._agrees(number):
                    measured = run.ended(doubt.status, doubt.reason)
            except DiedError as death:
                self._worker, self._stands = None, False
                if run.to_blame(death):
                    context.findings.strike(variant.code, death)
                if death.starved or run.to_blame(death):
                    measured = run.ended(death.status, death.reason)
                run.spared, doubt = True, death
        self._found[number] = measured
        return measured

    def _agrees(self, number: int) -> bool:
        """Whether a candidate that was right before has the results that this one left in its worker."""
        other = next((n for n, m in self._found.items() if n != number and m.status == "ok"), number)
        variant = self._variants[other]
        run = Run(self._context, self._prepared, variant.id, variant.code)
        run.spared = True  # its faults count, though others are in the worker
        try:
            return not is_fault(self._time(run, variant))
        except DiedError:
            self._worker, self._stands = None, False
            return True

    def _time(self, run: Run, variant: Variant, *, again: bool = False) -> messages.Reply:
        """Time a candidate in a worker that knows the problem and is quiet. Raises DiedError as `_ask` does."""
        pool, limits = self._context.pool, self._context.policy.deadlines
        worker = self._worker = self._worker or pool.candidates()
        run.sure = run.spared or worker.hosted <= {run.digest}
        self._context.introduce(worker, self._prepared)
        pool.settle()
        worker.hosted.add(run.digest)
        if run.digest not in worker.loaded:
            load = messages.Load(handle=run.digest, path=variant.shared, symbol=variant.symbol)
            reply = pool.request(worker, load, limits.load)
            if isinstance(reply, messages.Failure):
                return reply
            worker.loaded[run.digest] = None
        first = not self._stands
        request = messages.SurveyOne(
            handle=run.digest, key=run.prepared.key, first=first, again=again and not first, best_ns=self._best
        )
        timing = pool.request(worker, request, limits.bench)
        if is_fault(timing) and not run.sure:
            pool.dismiss(worker)
            raise DiedError(*failure_of(timing))
        return timing


def _ns(measurement: Measurement) -> float:
    return math.inf if measurement.ns is None else measurement.ns
