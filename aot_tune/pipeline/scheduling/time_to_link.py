"""How long the steps after tuning take: files, the link and its checks, and older CPUs. A budget keeps it free."""

from __future__ import annotations

from pathlib import Path

from aot_tune.bench.devices.family import family
from aot_tune.pipeline.records.record_writer import records_folder
from aot_tune.pipeline.session import Session
from aot_tune.spec import Target
from aot_tune.support.wall_clock import link_seconds

__all__ = ["link_memory", "older_seconds", "on_record", "seconds_after"]

_TO_TUNE = 0.8
"""Share of the stated extra seconds that goes to tuning. The rest is for linking and checking more variants."""
_OF_BUDGET = 0.2
"""The largest share of the tuning budget that older CPUs may get."""

_PACKAGE = Path(__file__).resolve().parents[2]
_FILES = 1.0
"""Seconds for choosing variants, writing the library's files or records, and starting and checking the link."""
_PER_SOURCE = 1.2
"""Time to compile one of the library's sources, links included, divided by a generic variant's compile time."""
_CHECK, _PER_PROBLEM = 1.0, 0.08
"""Seconds to verify variants inside the library: to start the workers, and for each problem of the workload.

There are two or three problems for each variant, and no more variants than are kept."""
_VARIANTS, _PROBLEMS = 12, 2.5
_COMPILE = 0.5
"""CPU seconds of a compile, if no generic variant was compiled."""


def link_memory(session: Session) -> Path | None:
    """The file that remembers how long linking the library took; None without a cache."""
    folder = records_folder(session)
    return None if folder is None else folder.parent.parent / "links" / f"{folder.name}.json"


def seconds_after(session: Session) -> float:
    """Seconds to keep for the steps after tuning: verification, files, the link and its checks.

    The estimate is the time of earlier links. Without one, it follows from the library's own sources and the first
    compiles. It is longer if other programs keep the machine busy, and short if nothing is linked.
    """
    load = session.time.load
    seconds = link_seconds(link_memory(session)) if session.links else _FILES
    if seconds is None:
        runtime = _PACKAGE / "runtime"
        folders = [runtime, *(runtime / name for name in session.plan.families)]
        folders += [_PACKAGE / "link" / "binding"] if session.plan.module else []
        sources = 1 + bool(session.plan.module) + sum(len(list(f.glob("*.cpp"))) for f in folders)
        most = _PROBLEMS * (session.options.max_variants or _VARIANTS)
        counts = (len(o.workload_for(t.family)) for t in session.targets for o in session.operators.values())
        problems = sum(min(count, most) for count in counts)
        seconds = _FILES + _CHECK + _PER_PROBLEM * problems
        seconds += max((family(d.family).start_seconds for d in session.devices), default=0.0)
        seconds += _PER_SOURCE * sources * (load.each or _COMPILE) / load.jobs
    return seconds / load.granted


def on_record(session: Session, older: Target) -> set[str]:
    """The operators for which records decide on older CPUs. Their races are made once, for the record, by `tune`."""
    if session.options.mode != "auto":
        return set()
    return {d.operator for d in session.databases if older.name in d.targets}


def older_seconds(session: Session, kept: float) -> float:
    """Seconds for tuning variants for older CPUs. `kept` are the seconds for what comes after tuning."""
    if session.older is None or not session.plan.may_measure:
        return 0.0
    if session.operators.keys() <= on_record(session, session.older):
        return 0.0
    return min(_TO_TUNE * session.options.older_cpus, _OF_BUDGET * max(session.time.budget.left - kept, 0.0))
