"""The survey: times of preselected variants on shapes that nobody tuned. Dispatch is learned from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Device, Measurement, rounded
from aot_tune.compile import Variant
from aot_tune.database import OperatorStore, operator_digest
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.pipeline.records.lookup import recall_survey
from aot_tune.pipeline.scheduling.time_to_link import seconds_after
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.shipping.survey_plan import planned
from aot_tune.pipeline.shipping.surveyed_parts import Part, parts_of, turns
from aot_tune.spec import Problem
from aot_tune.support.errors import AotTuneError, TooLargeError, ToolchainError

__all__ = ["survey_all"]

_SHAPES = {"quick": 0, "default": 200, "thorough": 800, "exhaustive": 800}
"""How many shapes of each kind of calls, by effort."""
_SECONDS = {"default": 90.0}
"""The longest time of a survey on one model of devices, by effort. Other efforts have no limit."""
_ON_HOST = 20.0
"""The same on a CPU, where it is planned, so that nothing is begun that does not fit."""
_DISTURBED = 2.0
"""If others use the cores, a planned survey may take so many times as long. Then it ends with the shapes it has."""
_SHARE, _AT_LEAST = 0.5, 30.0
"""By default, a survey takes at most this share of the time measured before, but may always take these seconds."""
_OF_BUDGET = 0.15
"""The largest share of a budget that a survey may take."""


def survey_all(session: Session, evidence: Mapping[str, Sequence[Evidence]], measured: float) -> None:
    """Survey what was tuned on the devices that are here. `measured` is the time that tuning took, in seconds.

    On a CPU, it is planned to fit its time. If the time runs out nevertheless, the survey ends with the shapes that it
    has, about as many of each kind.
    """
    count = session.options.survey if session.options.survey is not None else _SHAPES[session.options.effort]
    if count == 0:
        return
    by_device: dict[str, tuple[list[Device], list[Part]]] = {}
    for found in evidence.values():
        for one in found:
            devices = session.devices_for(one.target)
            if devices and session.plan.may_measure and not (one.left_out or one.brief):
                one.survey_on(devices[0])
                recall_survey(session, devices[0], one)
                by_device.setdefault(devices[0].digest, (devices, []))[1].extend(parts_of(one, count))
    for devices, parts in by_device.values():
        on_host, seconds = family(devices[0].family).on_host, _seconds(session, measured)
        bounded = on_host and seconds < math.inf
        wanted = planned(parts, min(seconds, _ON_HOST)) if bounded else parts
        most = min(seconds, _DISTURBED * _ON_HOST) if bounded else seconds
        if any(p.left for p in wanted):
            _Surveying(session, [p for p in wanted if p.left], most).on(devices)


def _seconds(session: Session, measured: float) -> float:
    """The most seconds that a survey may take."""
    limit = _SECONDS.get(session.options.effort, math.inf) if session.options.survey is None else math.inf
    if limit < math.inf:
        limit = min(limit, max(_SHARE * measured, _AT_LEAST))
    if session.budget.seconds is not None:
        limit = min(limit, _OF_BUDGET * session.budget.seconds, session.budget.left - seconds_after(session))
    return limit


class _Surveying:
    """Times parts on all devices of a model. Each shape is timed on one of them."""

    def __init__(self, session: Session, parts: Sequence[Part], seconds: float) -> None:
        self._session, self._parts, self._seconds = session, parts, seconds
        self._total = sum(part.lacks(p) for part in parts for p in part.problems)
        self._begun, self._done, self._numbers = 0.0, list[str](), iter(range(self._total))

    def on(self, devices: list[Device]) -> None:
        """Time a few shapes with all candidates, then the others with the best of these."""
        session = self._session
        into = {id(part.evidence): part.evidence for part in self._parts}.values()
        session.compile([e for part in self._parts for e in part.entries() if e.object is None], "survey", into)
        self._begun = session.progress.now()
        with DevicePool(session, devices) as pool:
            pool.each(self._jobs(turns(self._parts, scouted=True)))
            for part in self._parts:
                part.settle()
            pool.each(self._jobs(turns(self._parts, scouted=False)))
        done, seconds = len(self._done), session.progress.now() - self._begun
        rest = f" of {self._total} planned shapes, all that there was time for" if done < self._total else " shapes"
        where = f", on {len(devices)} devices" if len(devices) > 1 else ""
        session.progress.line(f"survey: {done}{rest}, in {seconds:.0f} s{where}")

    def _jobs(self, shapes: Sequence[tuple[Part, Problem]]) -> Iterator[tuple[int, partial[None]]]:
        for part, one in shapes:
            yield next(self._numbers), partial(self._survey, part, one)

    def _survey(self, part: Part, problem: Problem, measurer: Measurer) -> None:
        session = self._session
        if session.progress.now() - self._begun > self._seconds:
            return
        _survey_one(session, measurer.bench, part, problem)
        self._done.append(problem.id)
        session.progress.count("survey:", len(self._done), self._total, since=self._begun, most=self._seconds)


def _survey_one(session: Session, bench: LazyBench, part: Part, problem: Problem) -> None:
    """Times on one shape, from the store or new."""
    evidence, operator = part.evidence, part.evidence.operator
    if operator.name in session.failures:
        return
    entries = part.tried(problem)
    store = _store(session, bench, evidence)
    found = store.find_race([(e.candidate.id, e.code) for e in entries], problem)
    if found is None:
        found = _timed(session, bench, evidence, problem, entries)
        if found and all(m.lasting for m in found):
            policy = f"survey, {session.policy_of(bench.device.family).digest}"
            store.put_race([msgspec.structs.replace(m, policy=policy) for m in found])
    for measurement in found:
        if measurement.lasting and measurement.status not in ("ok", "skipped"):
            evidence.add(measurement)  # it is out, even where it won
    times = {m.candidate: rounded(m.ns) for m in found if m.ns is not None}
    evidence.add_survey(problem, times)


def _timed(
    session: Session, bench: LazyBench, evidence: Evidence, problem: Problem, entries: Sequence[Variant]
) -> list[Measurement]:
    loaded, variants = session.operators[evidence.operator.name], []
    with session.failures.of(evidence.operator.name):
        for entry in entries:
            try:
                variants.append(bench.linked(entry, evidence))
            except ToolchainError:  # the compile reported it
                continue
        try:
            return bench.get().survey(loaded.folder, loaded.operator, problem, variants)
        except TooLargeError:
            return []  # nobody asked for this shape
        except AotTuneError:
            if session.budget.left > 0:
                raise
    return []


def _store(session: Session, bench: LazyBench, evidence: Evidence) -> OperatorStore:
    policy = f"survey, {session.policy_of(bench.device.family).digest}"
    name = evidence.operator.name
    return session.store.operator(name, operator_digest(evidence.operator), bench.device.digest, policy)
