"""A database: everything that was measured for one operator on one device. It can be committed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from aot_tune.bench.protocol.measurement_records import Device, Measurement, is_baseline
from aot_tune.compile.toolchain import CompileStatus, measured_code
from aot_tune.compile.variant import Variant
from aot_tune.render import Candidate
from aot_tune.spec import Problem
from aot_tune.support.errors import DatabaseError

V = TypeVar("V")


class CandidateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that was tried: how to make it again, and the result of compiling it.

    `source` is the digest of its rendered source, `object` that of a CPU's object file, and `device` that of what a GPU
    runs. The latter two are empty if it did not compile. `sanitized` has the verdict of each sanitizer that it ran
    under: `clean`, or `reported falsely` with the reason.
    """

    candidate: Candidate
    source: str
    object: str = ""
    device: str = ""
    status: CompileStatus
    error: str = ""
    sanitized: dict[str, str] = {}

    @classmethod
    def of(cls, variant: Variant) -> CandidateRecord:
        """The record of a variant that was compiled."""
        made = variant.made
        return cls(
            candidate=variant.candidate,
            source=variant.rendered.digest,
            object="" if made.device else made.digest,
            device=made.device,
            status=made.status,
            error=made.error,
        )

    @property
    def id(self) -> str:
        return self.candidate.id

    @property
    def code(self) -> str:
        """What its measurements are of. Empty if it did not compile."""
        return measured_code(self.source, self.object, self.device)


class SurveyedShape(msgspec.Struct, frozen=True, kw_only=True):
    """A shape of a survey: ns of the candidates that were timed on it, by id."""

    problem: Problem
    ns: dict[str, float]


class OperatorDatabase(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one operator on one device under one policy, in canonical order.

    Args:
        contract: digest of the operator's arguments, reference and tolerance.
        policy: the measurement policy as plain data. `policy_digest` is its digest.
        toolchains: identity of each backend's toolchain, by backend.
        baselines: version of each baseline that took part, by name.
        candidates: sorted by id. problems: by id. measurements: by problem id, then candidate id.
        survey: sorted by problem id, with times of the candidates above.
        opening: the slugs of the devices whose records the build began with, so that it searched only where these did
            not hold. Empty if it searched everywhere.
    """

    operator: str
    contract: str
    device: Device
    policy: dict[str, object]
    policy_digest: str
    toolchains: dict[str, dict[str, str]]
    baselines: dict[str, str]
    candidates: tuple[CandidateRecord, ...]
    problems: tuple[Problem, ...]
    measurements: tuple[Measurement, ...]
    survey: tuple[SurveyedShape, ...] = ()
    opening: str = ""

    @property
    def targets(self) -> list[str]:
        """Names of the targets that have a measured candidate, sorted."""
        measured = {m.candidate for m in self.measurements if m.status == "ok"}
        return sorted({c.candidate.target for c in self.candidates if c.id in measured})

    def was_made_on(self, device: Device, policy: str) -> bool:
        """Whether it is of this very device, under the policy with this digest."""
        return (self.device.digest, self.policy_digest) == (device.digest, policy)


def canonical_database(database: OperatorDatabase) -> OperatorDatabase:
    """The same data in the text's order, without what only stores keep. Raises DatabaseError if inconsistent."""
    problems = {m.problem.key: m.problem for m in database.measurements}
    problems |= {p.key: p for p in database.problems}
    candidates = {c.id: c for c in database.candidates}
    if len(candidates) != len(database.candidates):
        raise DatabaseError(f"database of {database.operator!r}: a candidate is listed twice")
    codes = {name: c.code for name, c in candidates.items()}
    identity = database.device.digest, database.policy_digest
    measurements: dict[tuple[str, str], Measurement] = {}
    for measurement in database.measurements:
        problem = problems[measurement.problem.key]
        at = (problem.id, measurement.candidate)
        where = f"database of {database.operator!r}: {measurement.candidate} on '{problem.id}'"
        if at in measurements:
            raise DatabaseError(f"{where} is measured twice", fix="keep one of the two")
        if (measurement.device, measurement.policy) != identity:
            raise DatabaseError(f"{where} was measured on another device or under another policy")
        _check_subject(measurement, codes, where)
        _check_times(measurement, where)
        measurements[at] = _for_record(measurement, problem)
    return msgspec.structs.replace(
        database,
        candidates=tuple(sorted(database.candidates, key=lambda c: c.id)),
        problems=tuple(sorted(problems.values(), key=lambda p: p.id)),
        measurements=tuple(m for _, m in sorted(measurements.items(), key=lambda item: item[0])),
        survey=_tidy_survey(database, candidates),
        toolchains=_sorted({k: _sorted(v) for k, v in database.toolchains.items()}),
        baselines=_sorted(database.baselines),
    )


def out_of_race(m: Measurement) -> Measurement | None:
    """A measurement without its final times, which say nothing beside those of other races; None if nothing is left."""
    return msgspec.structs.replace(m, final=None, race=None) if m.screen or m.status != "ok" else None


def _check_subject(measurement: Measurement, codes: Mapping[str, str], where: str) -> None:
    if is_baseline(measurement.candidate):
        return
    code = codes.get(measurement.candidate)
    if code is None:
        raise DatabaseError(f"{where}: there is no such candidate", fix="list every candidate that was tried")
    if code != measurement.code:
        raise DatabaseError(
            f"{where}: it was measured as code {measurement.code[:12] or 'none'}, but the candidate's is "
            f"{code[:12] or 'none'}",
            fix="keep only measurements of the code that the candidates have now",
        )


def _check_times(m: Measurement, where: str) -> None:
    times = (*m.screen, *(m.final or ()), m.overhead)
    for value in times:
        if not (math.isfinite(value) and value >= 0):
            raise DatabaseError(f"{where}: {value} is not a time")
    if m.status == "ok" and not is_baseline(m.candidate) and m.error is not None and not m.error <= 1:
        raise DatabaseError(
            f"{where}: its error is {m.error:g} tolerances, but its status is ok",
            fix="restore the file, or measure again",
        )
    if 0 in times[:-1] and m.ns == 0:
        raise DatabaseError(f"{where}: no call takes 0 ns", fix="restore the file, or measure again")


def _for_record(m: Measurement, problem: Problem) -> Measurement:
    """A measurement with this spelling of its problem. What was seen of the device stays with races, but its UUID."""
    error = m.error if m.error is not None and math.isfinite(m.error) else None
    seen = None if m.seen is None or m.final is None else msgspec.structs.replace(m.seen, unit="")
    if (m.problem.id, m.error, m.phases, m.seen) == (problem.id, error, {}, seen):
        return m
    return msgspec.structs.replace(m, problem=problem, error=error, phases={}, seen=seen)


def _tidy_survey(database: OperatorDatabase, candidates: Mapping[str, CandidateRecord]) -> tuple[SurveyedShape, ...]:
    shapes: dict[str, SurveyedShape] = {}
    for shape in database.survey:
        where = f"database of {database.operator!r}: the survey of '{shape.problem.id}'"
        if shape.problem.id in shapes:
            raise DatabaseError(f"{where} is there twice", fix="keep one of the two")
        for candidate, ns in shape.ns.items():
            if candidate not in candidates:
                raise DatabaseError(f"{where}: there is no candidate {candidate}", fix="list every one that was timed")
            if not (math.isfinite(ns) and ns > 0):
                raise DatabaseError(f"{where}: {ns} is not a time", fix="restore the file, or measure again")
        shapes[shape.problem.id] = msgspec.structs.replace(shape, ns=_sorted(shape.ns))
    return tuple(shapes[name] for name in sorted(shapes) if shapes[name].ns)


def _sorted(mapping: Mapping[str, V]) -> dict[str, V]:
    return dict(sorted(mapping.items()))
