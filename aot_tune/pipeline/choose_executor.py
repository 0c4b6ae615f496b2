"""Where a build compiles and measures: on this machine, or also on those of a cluster, as AOT_TUNE_EXECUTOR says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from aot_tune.pipeline.executor import Executor
from aot_tune.pipeline.session import Session
from aot_tune.plan.library_plan import Paths, Plan, input_files
from aot_tune.support.errors import BuildError
from aot_tune.support.installed_paths import PACKAGE, project_files

__all__ = ["agree", "executor_of", "reach_cluster"]


def reach_cluster(log: Callable[[str], None]) -> AbstractContextManager[Executor]:
    """The cluster with all of its devices. It is used while a plan is made.

    Raises:
        BuildError: when no cluster can be reached, or its nodes have another version of this package.
    """
    from aot_tune.pipeline.cluster.ray_executor import ray_executor

    return ray_executor(lambda line: log(f"aot_tune: {line}"))


@contextmanager
def executor_of(plan: Plan, log: Callable[[str], None]) -> Iterator[Executor | None]:
    """The machines that help this one with a build; None if there are none, as in most builds.

    Raises:
        BuildError: as `reach_cluster` does.
    """
    if plan.options.executor == "local":
        yield None
        return
    from aot_tune.pipeline.cluster.ray_executor import ray_executor

    with ray_executor(log, plan.targets) as executor:
        yield executor


def agree(session: Session, executor: Executor, paths: Paths) -> None:
    """Check that the machines that help this one are fit for a build.

    Raises:
        BuildError: when one is not, or when no device runs a target that is to be measured.
    """
    roots = [Path(root) for root in paths.templates]
    files = input_files(roots, session.operators, "", project_files())
    executor.agree(session.plan, paths, [f for f in files if not f.is_relative_to(PACKAGE)])
    if not session.plan.may_measure or session.options.mode not in ("auto", "tune"):
        return
    recorded = {t for d in session.databases for t in d.targets} if session.options.mode == "auto" else set()
    for target in session.targets:
        if target.name not in recorded and session.device_for(target) is None:
            have = ", ".join(dict.fromkeys(d.name for d in session.devices)) or "none"
            raise BuildError(
                f"the Ray cluster has no device of target {target.name}",
                why=f"its devices are: {have}",
                fix="add a node that has one (`ray start --address=HEAD:6379`), or leave the target out of "
                "AOT_TUNE_TARGETS",
            )
