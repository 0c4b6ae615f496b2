"""How long it takes to link, to survey and to tune for older CPUs. A budget keeps that time free."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from aot_tune.bench.devices.family import family
from aot_tune.pipeline.records.record_writer import records_folder
from aot_tune.pipeline.session import Session
from aot_tune.spec import Target
from aot_tune.support.wall_clock import link_seconds, link_times

_SHAPES = {"quick": 0, "default": 200, "thorough": 800, "exhaustive": 800}
"""How many shapes of each kind of calls a survey has, by effort."""
_SURVEY, _SURVEY_OF_BUDGET = {"default": 90.0}, 0.15
"""The longest time of a survey on one model of devices, by effort; and the largest share of a budget that it may take.

Other efforts have no limit."""

_TO_TUNE = 0.8
"""Share of the stated extra seconds that goes to tuning. The rest is for linking and checking more variants."""
_OF_BUDGET = 0.2
"""The largest share of the tuning budget that older CPUs may get."""

_PACKAGE = Path(__file__).resolve().parents[2]
_FILES, _CHOICE = 1.0, 0.01
"""Seconds for writing the library's files or records, and for choosing variants, for each problem."""
_PER_SOURCE, _LONGEST = 0.8, 5
"""Time to compile one of the library's sources, divided by a generic variant's compile time. The longest takes as many
times that. All else waits for it, however many cores there are."""
_CHECK, _PER_PROBLEM, _MOST = 3.0, 0.08, 75
"""Seconds to link and to check files, and to verify variants inside the library, for each problem of the workload.

There are two or three problems for each variant, and not many more variants than belong to so many problems."""
_BENCHES, _BESIDE = 2, 5.0
"""How often a GPU's workers start, for generic variants and for the library, and seconds that each costs beside it."""
_KEPT, TO_CHECK = 8, 0.2
"""Variants that a record chooses for an operator on a target, and seconds to check one."""
_PESSIMISM = 0.5
"""Other programs that slow compilers down more than twice will hardly do so all the time."""
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
        counts = [len(o.workload_for(t.family)) for t in session.targets for o in session.operators.values()]
        gpus = [family(d.family) for d in session.devices if not family(d.family).on_host]
        seconds = _FILES + _CHECK + max((_BENCHES * (gpu.start_seconds + _BESIDE) for gpu in gpus), default=0.0)
        seconds += _CHOICE * sum(counts) + _PER_PROBLEM * sum(min(count, _MOST) for count in counts)
        seconds += _PER_SOURCE * (_LONGEST + _sources(session) / load.jobs) * (load.each or _COMPILE)
    return seconds / load.granted


def seconds_to_link(session: Session) -> float:
    """How long the link will likely take. What is kept free for it is more, lest a budget is exceeded."""
    memory = link_memory(session) if session.links else None
    last = link_times(memory)[:1] if memory is not None else ()
    return last[0] if last else seconds_after(session) * max(session.time.load.granted, _PESSIMISM)


def _sources(session: Session) -> int:
    """How many C++ sources a library has."""
    runtime = _PACKAGE / "runtime"
    folders = [runtime, *(runtime / name for name in session.plan.families)]
    folders += [_PACKAGE / "link" / "binding"] if session.plan.module else []
    return 1 + bool(session.plan.module) + sum(len(list(f.glob("*.cpp"))) for f in folders)


def seconds_of_kept(session: Session) -> Callable[[], float]:
    """Tells the seconds of variants that records choose: they are compiled, if not cached, and checked last."""
    count = 0
    if session.options.mode == "auto" and session.links:
        places = [(t, session.device_for(t)) for t in session.targets]
        chosen = {t.name for t, d in places if t == session.older or d is None or session.is_recorded(d)}
        databases = (d for d in session.databases if d.operator in session.operators)
        count = _KEPT * len({(d.operator, t) for d in databases for t in chosen.intersection(d.targets)})
    load = session.time.load
    return lambda: count * ((load.each or _COMPILE) / load.jobs / load.granted + TO_CHECK)


def survey_shapes_wanted(session: Session) -> int:
    """How many shapes of each kind of calls are surveyed."""
    options = session.options
    return options.survey if options.survey is not None else _SHAPES[options.effort]


def survey_limit(session: Session, spent: float = 0.0) -> float:
    """The most seconds that a survey on one model of devices may take, after earlier ones of so many seconds there."""
    limit = _SURVEY.get(session.options.effort, math.inf) if session.options.survey is None else math.inf
    budget = session.time.budget.seconds
    return limit if budget is None else min(limit, _SURVEY_OF_BUDGET * budget - spent)


def seconds_beside(session: Session, target: Target, kept: float) -> float:
    """Seconds of a budget left for older CPUs, or a GPU's survey, without the `kept` ones for what comes after."""
    if session.time.budget.seconds is None:
        return 0.0
    if target.on_host:
        return older_seconds(session, kept)
    return survey_limit(session) if survey_shapes_wanted(session) else 0.0


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
