"""Times that other programs on a CPU have spoiled: which they are, and another race, in which threads wait passively.

A thread that waits for another one spins for a while. If a third program has the other one's core, it spins until the
scheduler's next tick. Then every call takes as long, with hardly any spread, and a larger problem may seem faster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.host.bench import Bench
from aot_tune.bench.protocol.measurement_records import BUSY, SPOILED, Measurement, is_baseline
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.report.report_text import format_time
from aot_tune.spec import Problem
from aot_tune.spec.survey_shapes import kind_of
from aot_tune.support.errors import AotTuneError, WorkerError

_COARSE = 6
"""The clock CLOCK_MONOTONIC_COARSE, whose resolution is the scheduler's tick."""
_NEAR, _MOST_TICKS = 0.015, 16
"""A time is at a multiple of the tick, of so many ticks at most, if it is no farther from it than this share of one."""
_OUTDONE, _AT_LEAST = 2.0, 1e5
"""A time is doubtful if a larger problem takes less than half of it, and so many ns less."""
_BETTER, _ALIKE = 0.8, 1.25
"""Another race stands if it is faster by so much. If it is as long, and the machine is quiet, the time is right."""
_NOTED = "threads waited passively, because other programs had the cores"


def _is_at_ticks(ns: float, tick: float) -> bool:
    """Whether a time is a small multiple of the scheduler's tick."""
    ticks = round(ns / tick)
    return 1 <= ticks <= _MOST_TICKS and abs(ns / tick - ticks) <= _NEAR


def doubts(evidence: Evidence, problems: Collection[str], tick: float | None = None) -> dict[str, str]:
    """Why the best times on some problems may be wrong, by problem id. `tick` is the scheduler's, in ns."""
    tick = 1e9 * time.clock_getres(_COARSE) if tick is None else tick
    best = {name: min(row.values()) for name, row in evidence.times().items() if row}
    by_id = {p.id: p for p in evidence.workload if p.id in best}
    found: dict[str, str] = {}
    for name in problems:
        if name not in by_id:
            continue
        if _is_at_ticks(best[name], tick):
            found[name] = f"{format_time(best[name])} is {best[name] / tick:.1f} of the scheduler's ticks"
        for other in _larger(evidence, by_id[name], by_id.values()):
            if best[name] > max(_OUTDONE * best[other.id], best[other.id] + _AT_LEAST):
                times = f"{format_time(best[name])}, and '{other.id}' {format_time(best[other.id])}"
                found[name] = f"it takes {times}, though that is larger"
                break
    return found


def _larger(evidence: Evidence, problem: Problem, others: Iterable[Problem]) -> Iterator[Problem]:
    """Problems of the same kind and layout that are at least as large in every dim."""
    operator = evidence.operator
    kind = kind_of(operator, operator.facts(problem))
    for other in others:
        larger = other.dims != problem.dims and all(other.dims[d] >= size for d, size in problem.dims.items())
        if larger and _layout(other) == _layout(problem) and kind_of(operator, operator.facts(other)) == kind:
            yield other


def _layout(problem: Problem) -> str:
    """What a problem's name says beside its dims."""
    return " ".join(word for word in problem.id.split() if word.partition("=")[0] not in problem.dims)


def settle_doubts(measurer: Measurer) -> None:
    """Race again on a CPU where other programs may have spoiled what raced in this build, until the budget ends."""
    raced, measurer.raced = measurer.raced, []
    lazy = measurer.bench
    session = lazy.session
    for evidence in {id(e): e for e, _ in raced}.values() if family(lazy.device.family).on_host else ():
        operator, problems = evidence.operator, {p.id: p for e, p in raced if e is evidence}
        for name, why in doubts(evidence, problems).items():
            if operator.name in session.failures or (measurer.over and not session.busy):
                break
            begun = session.progress.now()
            if not _is_settled(measurer, evidence, problems[name], why):
                session.progress.line(f"NOTE {operator.name} {name}: {SPOILED}: {why}")
            measurer.spent["race"] += session.progress.now() - begun


def _is_settled(measurer: Measurer, evidence: Evidence, problem: Problem, why: str) -> bool:
    """Race a problem's best again, while threads wait passively. Returns whether its times are right now.

    If not, they are marked as spoiled: they still choose in this build, where there are no better ones, but are in no
    record. The store keeps no spoiled time.
    """
    lazy, row = measurer.bench, evidence.on(problem)
    bench, before = lazy.get(), min(evidence.times()[problem.id].values())
    timed = {c: m for c, m in row.items() if m.ns is not None and c in evidence.variants}
    entrants = [evidence.variants[c] for c, m in timed.items() if m.final or m.ns == before]
    if not isinstance(bench, Bench):  # it is on another machine
        return True
    try:
        if measurer.over:
            raise WorkerError("there is no time for another race")
        linked = [lazy.linked(e, evidence) for e in entrants]
        raced = bench.race(bench.prepare(evidence.operator, problem), linked, passively=True)
    except AotTuneError:
        linked, raced = [], []
    ours = [m.ns for m in raced if m.ns is not None and not is_baseline(m.candidate)]
    after = min(ours, default=math.inf)
    quiet = raced and not any(m.seen is not None and m.seen.load > BUSY for m in raced)
    if quiet and _BETTER * before <= after < _ALIKE * before:
        return True
    spoiled = [msgspec.structs.replace(m, reason=f"{SPOILED}: {why}") for m in row.values() if m.status == "ok"]
    _note_in_store(measurer, evidence, problem, spoiled)
    if after < _BETTER * before and all(m.lasting and m.status == "ok" for m in raced):
        noted = [m if is_baseline(m.candidate) else msgspec.structs.replace(m, reason=_NOTED) for m in raced]
        evidence.add(*noted)
        if problem.id not in doubts(evidence, [problem.id]):
            measurer.keep_race(evidence.operator, problem, noted, linked)
            return True
        spoiled = [msgspec.structs.replace(m, reason=f"{SPOILED}: {why}") for m in evidence.on(problem).values()]
    for own in spoiled:
        evidence.take_instead(own, own)
    return False


def _note_in_store(measurer: Measurer, evidence: Evidence, problem: Problem, spoiled: Iterable[Measurement]) -> None:
    """Replace stored times by spoiled ones, which the next build measures again."""
    races: dict[str, list[Measurement]] = {}
    for own in spoiled:
        if own.final and own.race is not None:
            races.setdefault(own.race, []).append(own)
        if own.candidate in evidence.variants:
            measurer.store(evidence.operator).put(own, [evidence.variants[own.candidate]])
    for raced in races.values():
        made = [evidence.variants[m.candidate] for m in raced if m.candidate in evidence.variants]
        measurer.keep_race(evidence.operator, problem, raced, made)
