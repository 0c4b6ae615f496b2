"""Tunes all of a plan, from an open session to its evidence. Both a build and `aot-tune tune` use it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from aot_tune.database import Begun, begin, forget
from aot_tune.pipeline.choose_executor import agree
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.executor import Executor
from aot_tune.pipeline.scheduling.tune import tune
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.shipping.survey import survey_all
from aot_tune.plan.library_plan import Paths, Plan
from aot_tune.search.budget import Budget
from aot_tune.support.digests import canonical_digest
from aot_tune.support.progress import Progress

__all__ = ["TuningRun", "begun_or_resumed", "opened_session", "tune_plan"]


@contextmanager
def opened_session(
    plan: Plan,
    paths: Paths,
    budget: Budget,
    progress: Progress,
    executor: Executor | None = None,
    *,
    links: bool = True,
) -> Iterator[Session]:
    """A session for a plan, closed in the end. Lines tell what it will use. Without `links`, nothing is linked.

    Raises:
        AotTuneError: for a cache that the user named and that cannot be used, or for machines of the `executor` that
            are not fit for the plan.
    """
    for line in (*plan.summary(), *paths.compilers):
        progress.line(line)
    session = Session(plan, paths, progress, budget, links=links, executor=executor)
    try:
        if executor is not None:
            agree(session, executor, paths)
        for line in session.left_out():
            progress.line(line)
        reasons = dict.fromkeys(session.compilers_of(backend).reason for backend in plan.toolchains)
        progress.line(f"cache {session.location.root or 'off'}, {'; '.join(reasons)}")
        yield session
    finally:
        session.close()


def tune_plan(session: Session) -> dict[str, list[Evidence]]:
    """Evidence by operator, one for each target, of everything that a session's plan asks for, surveys included.

    In the mode `auto`, what records and the store know is used as it is. Each new measurement is in the store as soon
    as it is made, so a killed run loses at most one.
    """
    began = session.progress.now()
    with session.spent.stage("compiling and measuring"):
        evidence = tune(session)
    with session.spent.stage("survey"):
        survey_all(session, evidence, session.progress.now() - began)
    return evidence


class TuningRun:
    """A run that may measure anew, from `begun_or_resumed`. Call `end` when all is measured and written."""

    def __init__(self, session: Session, begun: Begun | None) -> None:
        self._session, self._begun = session, begun

    def end(self) -> None:
        """All is measured. The next run that measures anew starts from nothing."""
        if self._begun is not None:
            self._begun.end()
        elif self._session.options.mode == "auto":
            forget(self._session.location, _kind(self._session))


@contextmanager
def begun_or_resumed(session: Session) -> Iterator[TuningRun]:
    """In the mode `tune`, use what an interrupted run has measured anew."""
    begun = _begin(session)
    try:
        yield TuningRun(session, begun)
    finally:
        if begun is not None:
            begun.leave()


def _begin(session: Session) -> Begun | None:
    if session.options.mode != "tune":
        return None
    if session.location.mode == "fresh":
        forget(session.location, _kind(session))
    begun = begin(session.location, _kind(session))
    if begun is not None:
        session.goes_on_with(begun)
        if begun.resumed:
            when = time.strftime("%H:%M:%S", time.localtime(begun.since / 1e9))
            session.progress.line(
                f"continues the build of {when}, which did not end (AOT_TUNE_CACHE=fresh measures all again)"
            )
    return begun


def _kind(session: Session) -> str:
    """Identifies builds that would measure the same."""
    plan, options = session.plan, session.options
    asked = [options.filter, options.exclude_backends, options.effort, plan.workload.operators]
    return canonical_digest([plan.name, plan.prefix, plan.operators, plan.targets, plan.devices, asked])
