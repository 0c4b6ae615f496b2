"""Merges two databases: what both say together."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from aot_tune.bench.protocol.measurement_records import Measurement, is_baseline
from aot_tune.database.database_records import OperatorDatabase, SurveyedShape, canonical_database
from aot_tune.database.identity import problem_key
from aot_tune.spec import Problem
from aot_tune.support.errors import DatabaseError

__all__ = ["difference", "measured_before", "merge", "update", "without"]


def merge(older: OperatorDatabase, newer: OperatorDatabase) -> OperatorDatabase:
    """Everything of both. Where they differ in a candidate's code or in a measurement, `newer` holds.

    Times of one race stay together. If `newer` has other measurements of a race's entrants, the remaining entrants lose
    their final times.

    Raises:
        DatabaseError: when they are of different operators, devices or policies, or of different versions of the
            operator. Such measurements cannot be compared.
    """
    apart = difference(older, newer)
    if apart:
        raise DatabaseError(
            f"databases of {older.operator!r} differ in their {apart}",
            why="their measurements cannot be compared",
            fix="keep one of the two",
        )
    before = {c.id: c for c in older.candidates}
    candidates = before | {c.id: c for c in newer.candidates}
    same = {n for n, c in before.items() if c.code == candidates[n].code}
    fresh = {_at(m): m.race for m in newer.measurements}
    kept = [m for m in older.measurements if _stands(m, same) and _at(m) not in fresh]
    left = {id(m) for m in kept}
    lost = {
        (m.race or "", problem_key(m.problem))
        for m in older.measurements
        if id(m) not in left and fresh.get(_at(m)) != m.race  # otherwise the same race is there again
    }
    merged = [_without_race(m, lost) for m in kept]
    return canonical_database(
        msgspec.structs.replace(
            newer,
            toolchains=older.toolchains | newer.toolchains,
            baselines=older.baselines | newer.baselines,
            candidates=tuple(candidates.values()),
            problems=_union(newer.problems, older.problems),
            measurements=(*newer.measurements, *(m for m in merged if m is not None)),
            survey=_both(older.survey, newer.survey, same),
            opening=older.opening and newer.opening,  # what one of them searched is there
        )
    )


def update(older: OperatorDatabase, newer: OperatorDatabase) -> OperatorDatabase:
    """What a record becomes after `newer` was measured: both merged if they can be compared, or else `newer` alone."""
    return newer if difference(older, newer) else merge(older, newer)


def without(database: OperatorDatabase, gone: Collection[str]) -> OperatorDatabase:
    """The database without the candidates of these ids and their measurements.

    The others keep their races. The problems stay, even if nothing is left that was measured on them.
    """
    return msgspec.structs.replace(
        database,
        candidates=tuple(c for c in database.candidates if c.id not in gone),
        measurements=tuple(m for m in database.measurements if m.candidate not in gone),
        survey=tuple(
            msgspec.structs.replace(s, ns={c: ns for c, ns in s.ns.items() if c not in gone}) for s in database.survey
        ),
    )


def measured_before(older: OperatorDatabase, newer: OperatorDatabase) -> OperatorDatabase:
    """`older` without the measurements that `newer` replaces.

    Those are of a kernel and target that `newer` measured, on a problem that `newer` measured.

    This is for builds that measure again. A replay of the record must choose what such a build chose, so what the build
    did not try must not take part. Kernels that it did not measure stay as they are.
    """
    kernels = {c.id: (c.candidate.kernel, c.candidate.target) for c in (*older.candidates, *newer.candidates)}
    again = {kernels[m.candidate] for m in newer.measurements if m.candidate in kernels}
    problems = {problem_key(m.problem) for m in newer.measurements}
    kept = tuple(
        m for m in older.measurements if kernels.get(m.candidate) not in again or problem_key(m.problem) not in problems
    )
    empty = {m.candidate for m in older.measurements} - {m.candidate for m in kept}
    return without(msgspec.structs.replace(older, measurements=kept), empty)


def difference(older: OperatorDatabase, newer: OperatorDatabase) -> str:
    """Why the measurements of two databases cannot be compared. Empty when they can."""
    for what, one, two in (
        ("operator", older.operator, newer.operator),
        ("device", older.device.digest, newer.device.digest),
        ("policy", older.policy_digest, newer.policy_digest),
        ("version of the operator", older.contract, newer.contract),
        ("versions of the baselines", *_shared(older.baselines, newer.baselines)),
    ):
        if one != two:
            return f"{what}: {str(one)[:60]} and {str(two)[:60]}"
    return ""


def _at(m: Measurement) -> tuple[str, str]:
    return problem_key(m.problem), m.candidate


def _stands(m: Measurement, same: set[str]) -> bool:
    return is_baseline(m.candidate) or m.candidate in same


def _without_race(m: Measurement, lost: set[tuple[str, str]]) -> Measurement | None:
    if m.race is None or (m.race, problem_key(m.problem)) not in lost:
        return m
    return msgspec.structs.replace(m, final=None, race=None) if m.screen or m.status != "ok" else None


def _shared(one: dict[str, str], two: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    names = sorted(one.keys() & two.keys())
    return {n: one[n] for n in names}, {n: two[n] for n in names}


def _both(older: Iterable[SurveyedShape], newer: Iterable[SurveyedShape], same: set[str]) -> tuple[SurveyedShape, ...]:
    """All shapes of both. From the older one, only times of candidates whose code is the same."""
    found = {s.problem.id: s for s in newer}
    for shape in older:
        ns = {c: time for c, time in shape.ns.items() if c in same}
        new = found.get(shape.problem.id)
        found[shape.problem.id] = msgspec.structs.replace(shape, ns=ns if new is None else ns | new.ns)
    return tuple(found.values())


def _union(first: Iterable[Problem], second: Iterable[Problem]) -> tuple[Problem, ...]:
    found = {problem_key(p): p for p in second}
    found |= {problem_key(p): p for p in first}
    return tuple(found.values())
