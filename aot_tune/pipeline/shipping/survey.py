"""The survey: times of preselected variants on shapes that nobody tuned, from which dispatch is learned."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from aot_tune.bench.protocol.measurement_records import Device, Measurement
from aot_tune.database import OperatorStore, as_recorded, operator_digest, rounded
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.records.lookup import recall_survey
from aot_tune.pipeline.scheduling.time_to_link import seconds_after
from aot_tune.pipeline.session import Session
from aot_tune.select import preselect
from aot_tune.spec import Problem
from aot_tune.spec.survey_shapes import Kind, kind_of, survey_shapes
from aot_tune.support.errors import AotTuneError, ToolchainError

__all__ = ["survey_all"]

_SHAPES = {"quick": 0, "default": 200, "thorough": 800, "exhaustive": 800}
"""Shapes of each kind of calls, by effort."""
_SECONDS = {"default": 90.0}
"""What a survey may take on a device, by effort; without a limit otherwise."""
_SHARE, _AT_LEAST = 0.5, 30.0
"""With the default effort a survey takes no longer than this share of what was measured before, or so many seconds."""
_OF_BUDGET = 0.15
"""A survey takes no more of a budget than that."""


@dataclass(frozen=True)
class _Part:
    """The shapes of one kind of an operator's calls, and the candidates that are timed on them, the vendor's first."""

    evidence: Evidence
    kind: Kind
    problems: Sequence[Problem]
    entries: Sequence[Entry]


def survey_all(session: Session, evidence: Mapping[str, Sequence[Evidence]], measured: float) -> None:
    """Survey what was tuned on the devices that are here; `measured` are the seconds that tuning took.

    A survey that has no time left ends with the shapes that it has, as many of each kind.
    """
    count = session.options.survey if session.options.survey is not None else _SHAPES[session.options.effort]
    if count == 0:
        return
    by_device: dict[str, tuple[Device, list[_Part]]] = {}
    for found in evidence.values():
        for one in found:
            device = session.device_for(one.target)
            if device is not None and session.plan.may_measure and not one.left_out:
                one.surveyed.on(device)
                recall_survey(session, device, one)
                by_device.setdefault(device.digest, (device, []))[1].extend(_parts(one, count))
    for device, parts in by_device.values():
        if parts:
            _survey_on(session, device, parts, _seconds(session, measured))


def _seconds(session: Session, measured: float) -> float:
    """How long a survey may take."""
    limit = _SECONDS.get(session.options.effort, math.inf) if session.options.survey is None else math.inf
    if limit < math.inf:
        limit = min(limit, max(_SHARE * measured, _AT_LEAST))
    if session.budget.seconds is not None:
        limit = min(limit, _OF_BUDGET * session.budget.seconds, session.budget.left - seconds_after(session))
    return limit


def _parts(evidence: Evidence, count: int) -> Iterator[_Part]:
    """What is to be surveyed of an operator, where there is more than one variant to choose from."""
    operator = evidence.operator
    kinds = {p.id: kind_of(operator, operator.facts(p)) for p in evidence.workload}
    costs = evidence.choice_costs()
    generics = [e for e in evidence.entries.values() if e.candidate.generic and e.code]
    for kind, problems in survey_shapes(operator, evidence.target.family, count).items():
        rows = {p: _unbound(evidence, row) for p, row in costs.items() if kinds.get(p) == kind}
        chosen = preselect({p: row for p, row in rows.items() if row}, _tile_of(evidence))
        if len(chosen) > 1:
            others = [evidence.entries[c] for c in chosen if not evidence.entries[c].candidate.generic]
            first = _heuristics(evidence, problems) or generics
            own = [p for p in evidence.workload if kinds[p.id] == kind and p.id in rows]
            yield _Part(evidence, kind, _mixed(own, problems), [*first, *(e for e in others if e not in first)])


def _mixed(own: Sequence[Problem], drawn: Sequence[Problem]) -> list[Problem]:
    """Drawn shapes, and behind each, as long as there are any, a tuned problem: not all was timed on all of these."""
    pairs = itertools.zip_longest(drawn, own)
    return [p for pair in pairs for p in pair if p is not None]


def _heuristics(evidence: Evidence, problems: Sequence[Problem]) -> list[Entry]:
    """The candidates that leave the choice to a vendor's library, for the dtypes at hand."""
    vendors = [e for e in evidence.entries.values() if evidence.is_vendors(e) and not evidence.is_bound(e) and e.code]
    return [e for e in vendors if any(evidence.worth_a_try(e, p) for p in problems)]


def _unbound(evidence: Evidence, row: Mapping[str, float]) -> dict[str, float]:
    """Without the algorithms of a vendor's library that were recorded for single problems."""
    return {c: t for c, t in row.items() if not evidence.is_bound(evidence.entries[c])}


def _tile_of(evidence: Evidence) -> Mapping[str, str]:
    """What candidates that are nearly the same have in common: their kernel, dtypes and tile."""
    found = {}
    for name, entry in evidence.entries.items():
        one = entry.candidate
        tiling = evidence.operator.kernel(one.kernel).tiling(one.config)
        if tiling is not None:
            found[name] = f"{one.kernel} {sorted(one.dtypes.items())} {sorted(tiling.extents.items())} {tiling.split}"
    return found


def _survey_on(session: Session, device: Device, parts: Sequence[_Part], seconds: float) -> None:
    """Survey on one device, a shape of each kind in turn."""
    session.compile([e for part in parts for e in _unlinked(part)], "survey")
    begun, total = session.progress.now(), sum(len(p.problems) for p in parts)
    longest, done = max(len(p.problems) for p in parts), 0
    with LazyBench(session, device) as bench:
        for number in range(longest):
            for part in parts:
                if number < len(part.problems):
                    if session.progress.now() - begun > seconds:
                        _tell(session, done, total, session.progress.now() - begun)
                        return
                    _survey_one(session, bench, part, part.problems[number])
                    done += 1
                    session.progress.count("survey:", done, total, since=begun, most=seconds)
    _tell(session, done, total, session.progress.now() - begun)


def _tell(session: Session, done: int, total: int, seconds: float) -> None:
    rest = f" of {total} shapes, all that there was time for" if done < total else " shapes"
    session.progress.line(f"survey: {done}{rest}, in {seconds:.0f} s")


def _unlinked(part: _Part) -> list[Entry]:
    return [e for e in part.entries if e.object is None]


def _survey_one(session: Session, bench: LazyBench, part: _Part, problem: Problem) -> None:
    """Times on one shape: those that the store has, or new ones."""
    evidence, operator = part.evidence, part.evidence.operator
    if operator.name in session.failures:
        return
    entries = [e for e in part.entries if evidence.worth_a_try(e, problem) and not evidence.failed(e.candidate.id)]
    known = evidence.surveyed.times.get(problem.id, {})
    if all(e.candidate.id in known for e in entries):
        return
    store = _store(session, bench, evidence)
    found = store.find_race([(e.candidate.id, e.code) for e in entries], problem)
    if found is None:
        found = _timed(session, bench, evidence, problem, entries)
        if found and all(m.lasting for m in found):
            policy = f"survey, {session.policy_of(bench.device.family).digest}"
            store.put_race([msgspec.structs.replace(m, policy=policy) for m in found])
    for measurement in map(as_recorded, found):
        if measurement.lasting and measurement.status not in ("ok", "skipped"):
            evidence.add(measurement)  # it is out, wherever it won
    times = {m.candidate: rounded(m.ns) for m in map(as_recorded, found) if m.ns is not None}
    evidence.surveyed.add(problem, times, evidence.entries)


def _timed(
    session: Session, bench: LazyBench, evidence: Evidence, problem: Problem, entries: Sequence[Entry]
) -> list[Measurement]:
    loaded, entrants = session.operators[evidence.operator.name], []
    with session.failures.of(evidence.operator.name):
        for entry in entries:
            try:
                entrants.append(bench.entrant(entry))
            except ToolchainError:  # told where it was compiled
                continue
        try:
            return bench.get().survey(loaded.folder, loaded.operator, problem, entrants)
        except AotTuneError:
            if session.budget.left > 0:
                raise
    return []


def _store(session: Session, bench: LazyBench, evidence: Evidence) -> OperatorStore:
    policy = f"survey, {session.policy_of(bench.device.family).digest}"
    name = evidence.operator.name
    return session.store.operator(name, operator_digest(evidence.operator), bench.device.digest, policy)
