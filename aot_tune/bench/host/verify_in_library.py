"""Verifies a variant inside a linked library: through the public C function, by the same workers and references."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aot_tune.bench.host.attempt import Phases, Run
from aot_tune.bench.host.bench_context import BenchContext
from aot_tune.bench.host.worker_process import DiedError, Worker
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Measurement, Prepared
from aot_tune.bench.protocol.messages import failure_of

__all__ = ["verify_linked"]


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
            return _attempt(run, worker, load, problems)
        except DiedError as death:
            if first:
                return run.ended(death.status, death.reason)
            worker.kill()


def _attempt(run: Run, worker: Worker, load: messages.Load, problems: Sequence[Prepared]) -> Measurement:
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
        _unload(context, worker, load.handle)
    return run.ended("ok")


def _unload(context: BenchContext, worker: Worker, handle: str) -> None:
    """Unload the library.

    A worker may die of its runtime library, which is no fault of the variant. Then another worker takes over. From then
    on libraries stay loaded, because workers take seconds to start. Each variant is called in its own copy.
    """
    try:
        context.pool.request(worker, messages.Unload(handle=handle), context.policy.deadlines.load)
    except DiedError as death:
        context.unloads = False
        context.log(f"libraries now stay loaded while verified, because a worker died of unloading one: {death.reason}")
