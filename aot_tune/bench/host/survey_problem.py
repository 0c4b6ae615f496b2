"""Times of verified candidates on a problem without reference results. So many shapes cost little."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from aot_tune.bench.host.attempt import Phases, Run
from aot_tune.bench.host.bench_context import BenchContext
from aot_tune.bench.host.runner import Entrant
from aot_tune.bench.host.worker_process import DiedError, Worker
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Measurement, Prepared
from aot_tune.bench.protocol.messages import failure_of

__all__ = ["survey_problem"]

_NEAR = 1.1
"""Candidates up to so much slower than the best are timed twice. Among many near ties, the least time is mostly
luck."""


_FAR, _AGAIN, _ALIKE = 8.0, 3, 1.5
"""Candidates that take so many times the best are timed again, at most three times. The least time counts, because
others may have used the cores. Two times within 1.5 x of each other are believed."""


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


def survey_problem(context: BenchContext, prepared: Prepared, entrants: Sequence[Entrant]) -> list[Measurement]:
    """A measurement of each candidate. The first candidate with results sets what the others are compared with.

    `prepared` needs no folder. Candidates stay loaded in the worker. If one kills the worker, its own status says so.

    Raises:
        WorkerError: when no worker can be started.
    """
    surveyed = _Surveyed()
    for number in range(len(entrants)):
        _survey(context, prepared, surveyed, number, entrants[number])
    best = surveyed.best or 0.0
    near = [n for n, m in surveyed.found.items() if m.ns is not None and m.ns <= _NEAR * best]
    far = [n for n, m in surveyed.found.items() if n > 0 and m.ns is not None and m.ns > _FAR * best]
    for number in reversed(near if len(near) > 1 else []) if surveyed.stands else ():
        first = surveyed.found[number]
        again = _survey(context, prepared, surveyed, number, entrants[number])
        if again.status == "ok":
            surveyed.found[number] = msgspec.structs.replace(first, screen=(*first.screen, *again.screen))
    for number in far if surveyed.stands else ():
        first = surveyed.found[number]
        for _ in range(_AGAIN):  # one of several threads may have waited for another program
            again = _survey(context, prepared, surveyed, number, entrants[number])
            if again.status != "ok":
                break
            settled = max(_ns(first), _ns(again)) <= _ALIKE * min(_ns(first), _ns(again))
            first = msgspec.structs.replace(first, screen=min(first, again, key=_ns).screen)
            surveyed.found[number] = first
            if settled or _ns(first) <= _FAR * best:
                break
    return [surveyed.found[n] for n in range(len(entrants))]


def _ns(measurement: Measurement) -> float:
    return math.inf if measurement.ns is None else measurement.ns


def _survey(
    context: BenchContext, prepared: Prepared, surveyed: _Surveyed, number: int, entrant: Entrant
) -> Measurement:
    """Time a candidate. If it kills its worker, its status says so."""
    run = Run(context, prepared, entrant.candidate.id, entrant.code, Phases())
    if (struck := context.struck(entrant.code)) is not None:
        measured = run.ended(struck.status, struck.reason)
    else:
        try:
            surveyed.worker = _worker(context, prepared, surveyed.worker)
            measured = _time(context, run, surveyed.worker, entrant, first=not surveyed.stands, best=surveyed.best)
            surveyed.stands = surveyed.stands or measured.status == "ok"
        except DiedError as death:
            if not death.starved:
                context.findings.strike(entrant.code, death)
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
