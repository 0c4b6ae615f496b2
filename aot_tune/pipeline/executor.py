"""Other machines that take part in a build, with their compilers and devices. AOT_TUNE_EXECUTOR says whether."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from aot_tune.bench.host.bench import Bench
from aot_tune.pipeline.cluster.ray_executor import RayExecutor, RemoteBench, ray_executor
from aot_tune.plan.library_plan import Plan

MeasuringBench = Bench | RemoteBench
"""A bench, here or on another machine."""


def reach_cluster(log: Callable[[str], None]) -> AbstractContextManager[RayExecutor]:
    """The cluster with all of its devices, used while a plan is made. Raises BuildError as `ray_executor` does."""
    return ray_executor(lambda line: log(f"aot_tune: {line}"))


@contextmanager
def executor_of(plan: Plan, log: Callable[[str], None]) -> Iterator[RayExecutor | None]:
    """The machines that help with a build; None in most builds. Raises BuildError as `ray_executor` does."""
    if plan.options.executor == "local":
        yield None
        return
    with ray_executor(log, plan.targets) as executor:
        yield executor
