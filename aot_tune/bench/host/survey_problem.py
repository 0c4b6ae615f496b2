"""Times of verified candidates on a problem without reference results: many shapes cost little that way."""

from __future__ import annotations

from collections.abc import Sequence

from aot_tune.bench.host.attempt import Phases, Run
from aot_tune.bench.host.bench_context import BenchContext
from aot_tune.bench.host.runner import Entrant
from aot_tune.bench.host.worker_process import DiedError, Worker
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Measurement, Prepared
from aot_tune.bench.protocol.messages import failure_of

__all__ = ["survey_problem"]


def survey_problem(context: BenchContext, prepared: Prepared, entrants: Sequence[Entrant]) -> list[Measurement]:
    """A measurement of each candidate; the results of others are compared with those of the first that has some.

    `prepared` needs no folder. Candidates stay loaded in the worker; what one does to it is a status of its own.

    Raises:
        WorkerError: when no worker can be started.
    """
    found: list[Measurement] = []
    worker: Worker | None = None
    best: float | None = None
    stands = False  # whether the worker has results to compare with
    for entrant in entrants:
        run = Run(context, prepared, entrant.candidate.id, entrant.code, Phases())
        if (struck := context.struck(entrant.code)) is not None:
            found.append(run.ended(struck.status, struck.reason))
            continue
        try:
            worker = _worker(context, prepared, worker)
            measured = _time(context, run, worker, entrant, first=not stands, best=best)
            stands = stands or measured.status == "ok"
        except DiedError as death:
            context.findings.strike(entrant.code, death)
            worker, stands = None, False
            measured = run.ended(death.status, death.reason)
        if measured.ns is not None:
            best = measured.ns if best is None else min(best, measured.ns)
        found.append(measured)
    return found


def _worker(context: BenchContext, prepared: Prepared, worker: Worker | None) -> Worker:
    """A worker that knows the problem, and is quiet."""
    worker = context.pool.candidates() if worker is None else worker
    context.introduce(worker, prepared)
    context.pool.settle()
    return worker


def _time(
    context: BenchContext, run: Run, worker: Worker, entrant: Entrant, *, first: bool, best: float | None
) -> Measurement:
    limits = context.policy.deadlines
    worker.host(run.digest)
    if run.digest not in worker.loaded:
        load = messages.Load(handle=run.digest, path=str(entrant.shared_object.resolve()), symbol=entrant.symbol)
        reply = context.pool.request(worker, load, limits.load)
        if isinstance(reply, messages.Failure):
            return run.ended(reply.status, reply.reason)
        worker.keep(run.digest)
    request = messages.SurveyOne(handle=run.digest, key=run.prepared.key, first=first, best_ns=best)
    timing = context.pool.request(worker, request, limits.bench)
    if not isinstance(timing, messages.Timed):
        return run.ended(*failure_of(timing))
    return run.timed(timing, {})
