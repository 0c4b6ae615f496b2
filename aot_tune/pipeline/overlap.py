"""Devices whose measurements compilers do not disturb: candidates are screened while others still compile."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from functools import partial

from aot_tune.compile.run import kill_running
from aot_tune.pipeline.crew import Crew, Job
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.follow import to_compile
from aot_tune.pipeline.linking import Linker
from aot_tune.pipeline.measure import Measurer, finalists
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.spec import Problem

__all__ = ["Timings", "measure_overlapped"]

_KEPT_FOR_RACES = 0.3
"""Share of a budget after which nothing is compiled any more."""

_PATIENCE = 0.2
"""Seconds between two looks at the budget while nothing gets ready."""

Pairs = Sequence[tuple[LoadedOperator, Evidence]]


class Timings:
    """Seconds of a target's tuning: compiling and measuring each by itself, and on the wall."""

    def __init__(self) -> None:
        self.compiling = self.waiting = self.wall = 0.0

    @property
    def measuring(self) -> float:
        """Seconds on the wall in which the device was at work."""
        return self.wall - self.waiting


def measure_overlapped(
    session: Session,
    crew: Crew,
    pairs: Pairs,
    entries: list[Entry],
) -> Timings:
    """Compile `entries` and screen each on its problems as it gets ready; race when all are there.

    Entries that are not among `entries` have their object, or a record that knows all of them. Those that follow
    another one wait for it; what only the races tell of their leaders, they are compiled, screened and raced after.
    """
    timings, linker = Timings(), Linker(session, crew, pairs)
    start = session.progress.now()
    new = {id(e) for e in entries}
    _screen(crew, pairs, [e for _, v in pairs for e in v.entries.values() if id(e) not in new])
    wanted, left = _in_two(pairs, entries)
    while True:
        while wanted:
            for ready in _compiled(session, linker, wanted, timings):
                _screen(crew, pairs, ready)
            wanted, left = _in_two(pairs, left)
        _race_all(session, crew, pairs, linker)
        wanted, left = _in_two(pairs, left)
        if not wanted:
            timings.wall = session.progress.now() - start
            return timings


def _in_two(pairs: Pairs, entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """The entries that are to be compiled now, and the others."""
    now = {
        id(e)
        for _, evidence in pairs
        for e in to_compile(evidence, [e for e in entries if e.candidate.operator == evidence.operator.name])
    }
    return [e for e in entries if id(e) in now], [e for e in entries if id(e) not in now]


def _problems(pairs: Pairs) -> Iterator[tuple[int, LoadedOperator, Evidence, Problem]]:
    """All problems with their number, which decides on which device they are measured."""
    each = ((loaded, evidence, problem) for loaded, evidence in pairs for problem in evidence.workload)
    return ((number, *one) for number, one in enumerate(each))


def _screen(crew: Crew, pairs: Pairs, ready: Sequence[Entry]) -> None:
    by_operator: dict[str, list[Entry]] = {}
    for entry in ready:
        by_operator.setdefault(entry.candidate.operator, []).append(entry)
    jobs: list[tuple[int, Job]] = []
    for number, loaded, evidence, problem in _problems(pairs):
        mine = by_operator.get(evidence.operator.name, [])
        tried = [e for e in evidence.tried(problem, mine) if not evidence.has(e, problem)]
        if tried:
            jobs.append((number, partial(_screen_one, loaded, evidence, problem, tried)))
    crew.each(jobs)


def _screen_one(
    loaded: LoadedOperator,
    evidence: Evidence,
    problem: Problem,
    tried: list[Entry],
    measurer: Measurer,
) -> None:
    measurer.screen(loaded, evidence, problem, tried)


def _race_all(session: Session, crew: Crew, pairs: Pairs, linker: Linker) -> None:
    """Race on every problem where that is due; entrants that only a record knew are compiled together before.

    Where the budget does not allow that, the times of the record stand.
    """
    due = [(problem, entrants) for problem in _problems(pairs) if (entrants := finalists(problem[2], problem[3]))]
    missing = {e.candidate.id: e for _, entrants in due for e in entrants if e.object is None}
    if missing and _may_compile(session):
        session.compile(missing.values(), "finalists")
    races = [one for one in due if all(e.object is not None for e in one[1])]
    unknown = [entrants for (_, loaded, _, p), entrants in races if not crew.knows_race(loaded, p, entrants)]
    linker.all({e.digest: e for entrants in unknown for e in entrants}.values())
    crew.each((number, partial(_race, loaded, evidence, problem)) for (number, loaded, evidence, problem), _ in races)


def _race(loaded: LoadedOperator, evidence: Evidence, problem: Problem, measurer: Measurer) -> None:
    measurer.race(loaded, evidence, problem)


def _compiled(session: Session, linker: Linker, entries: list[Entry], timings: Timings) -> Iterator[list[Entry]]:
    """Compile in the background, the longest first; yields what has got ready, until all has or the budget ends."""
    found: queue.Queue[Entry | BaseException | None] = queue.Queue()

    stopping = threading.Event()

    def ready(entry: Entry) -> None:
        if stopping.is_set():
            raise InterruptedError("the budget has ended, or the build")  # ends all that still waits to be compiled
        found.put(entry)

    def compile_them() -> None:
        try:
            kernels = {n: loaded.operator for n, loaded in session.operators.items()}
            order = sorted(
                entries, key=lambda e: -kernels[e.candidate.operator].kernel(e.candidate.kernel).compile_seconds
            )
            session.compile(order, order[0].candidate.target if order else "", ready, linker.after)
            found.put(None)
        except BaseException as error:  # handed on to the thread that measures
            found.put(error)

    if not entries or not _may_compile(session):
        return
    start = session.progress.now()
    thread = threading.Thread(target=compile_them, daemon=True)
    thread.start()
    try:
        last = False
        while not last:
            batch, last = _next_batch(session, found, timings)
            yield batch
    finally:
        stopping.set()
        while thread.is_alive():
            kill_running()
            thread.join(0.2)
        timings.compiling += session.progress.now() - start


def _next_batch(
    session: Session, found: queue.Queue[Entry | BaseException | None], timings: Timings
) -> tuple[list[Entry], bool]:
    """What has got ready since the last time, waiting for the first; and whether there will be no more."""
    start = session.progress.now()
    batch: list[Entry | BaseException | None] = []
    while not batch:
        try:
            batch.append(found.get(timeout=_PATIENCE))
        except queue.Empty:
            if not _may_compile(session):
                return [], True
    timings.waiting += session.progress.now() - start
    with contextlib.suppress(queue.Empty):
        while True:
            batch.append(found.get_nowait())
    for one in batch:
        if isinstance(one, BaseException):
            raise one
    return [e for e in batch if isinstance(e, Entry)], None in batch or not _may_compile(session)


def _may_compile(session: Session) -> bool:
    return session.turn.allows(_KEPT_FOR_RACES * (session.turn.seconds or 0.0))
