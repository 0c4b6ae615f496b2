"""Records of one operator on one device become one: what both say together, whichever is named first.

Two records are joined without knowing which is newer, so that joining is commutative, associative and idempotent. With
their common ancestor, what one side alone changed or removed is taken from that side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from aot_tune.bench.protocol.measurement_records import BASELINE, Measurement, is_baseline
from aot_tune.database.database_records import CandidateRecord, OperatorDatabase, SurveyedShape, canonical_database
from aot_tune.database.identity import problem_key
from aot_tune.database.merge_records import difference
from aot_tune.spec import Problem
from aot_tune.support.digests import canonical
from aot_tune.support.errors import DatabaseError

__all__ = ["join", "join_from", "other_toolchains"]

K = TypeVar("K")
V = TypeVar("V")
_SHOWN = 5


def join(one: OperatorDatabase, two: OperatorDatabase) -> OperatorDatabase:
    """All of both. Where they differ, that which `rank` puts last, of a surveyed time the lesser one.

    Raises:
        DatabaseError: when they are of different operators, devices, policies, versions of the operator or of
            baselines, or of different code of a candidate: such measurements cannot be compared.
    """
    return _joined(None, one, two)


def join_from(base: OperatorDatabase | None, ours: OperatorDatabase, theirs: OperatorDatabase) -> OperatorDatabase:
    """What both made of `base`, for which None is nothing.

    A candidate, a measurement, a surveyed time, a problem and a version of a baseline count by themselves: what one
    side left as it was is as the other has it, or gone where the other has it no more. What both changed is joined as
    by `join`; what one removed and the other changed stays. Measurements of code that is not kept go.

    Raises:
        DatabaseError: as `join` does, when both changed what cannot be joined.
    """
    if base is not None and (base.operator, base.device.digest) != (ours.operator, ours.device.digest):
        base = None
    return _joined(base, ours, theirs)


def rank(m: Measurement) -> tuple[Any, ...]:
    """Of several measurements of one candidate on a problem, that of the highest rank holds.

    A failure that lasts comes last, so that nothing is chosen that failed once. Before it are times: those of more
    rounds of a race, then of the race whose name is the greater, so that entrants of one race stay together; then of
    more samples of a screen, then the lesser. What is no result comes first.
    """
    lasting = m.status not in ("ok", "skipped") and m.lasting
    times = (len(m.final or ()), m.race or "", len(m.screen), -(m.ns or 0.0))
    return (2 if lasting else 1 if m.status == "ok" else 0, *times, canonical(m))


def other_toolchains(one: OperatorDatabase, two: OperatorDatabase) -> list[str]:
    """Backends of which two records have different toolchains: a joined record names but one of each."""
    shared = one.toolchains.keys() & two.toolchains.keys()
    return sorted(b for b in shared if one.toolchains[b] != two.toolchains[b])


def _joined(base: OperatorDatabase | None, one: OperatorDatabase, two: OperatorDatabase) -> OperatorDatabase:
    _check_comparable(base, one, two)
    sides = (base, one, two)
    baselines = _picked([{} if d is None else d.baselines for d in sides], max)
    candidates = _candidates(sides)
    codes = {i: c.code for i, c in candidates.items()}
    codes |= {f"{BASELINE}{name}": version for name, version in baselines.items()}
    measured = _picked([_measured(d, codes) for d in sides], lambda a, b: max(a, b, key=rank))
    surveyed = _picked([_surveyed(d, codes) for d in sides], min)
    spelled = (s.problem for d in (one, two) for s in d.survey)
    shapes = {problem_key(p): p for p in sorted(spelled, key=lambda p: p.id, reverse=True)}
    times: dict[str, dict[str, float]] = {}
    for (key, candidate), ns in surveyed.items():
        times.setdefault(key, {})[candidate] = ns
    problems = _picked([_problems(d) for d in sides], lambda a, b: min(a, b, key=lambda p: p.id))
    toolchains = _picked([{} if d is None else d.toolchains for d in sides], lambda a, b: max(a, b, key=_version))
    return canonical_database(
        msgspec.structs.replace(
            max(one, two, key=lambda d: canonical([d.device, d.policy])),
            toolchains=toolchains,
            baselines=baselines,
            candidates=tuple(candidates.values()),
            problems=tuple(problems.values()),
            measurements=tuple(measured.values()),
            survey=tuple(SurveyedShape(problem=shapes[key], ns=ns) for key, ns in times.items()),
        )
    )


def _picked(sides: Sequence[Mapping[K, V]], both: Callable[[V, V], V]) -> dict[K, V]:
    """For each key what one side made of the base's value; what both changed to different values is for `both`."""
    base, one, two = sides
    found: dict[K, V] = {}
    for key in [*one, *(k for k in two if k not in one)]:
        was, a, b = base.get(key), one.get(key), two.get(key)
        if a is None or b is None:
            kept = b if a is None else a
            if kept is not None and (was is None or kept != was):  # else the other side removed it
                found[key] = kept
        elif a in (b, was):
            found[key] = b
        else:
            found[key] = a if b == was else both(a, b)
    return found


def _check_comparable(base: OperatorDatabase | None, one: OperatorDatabase, two: OperatorDatabase) -> None:
    apart = difference(one, two)
    if apart.startswith("versions of the baselines") and base is not None:  # one side may have got another one
        shared = one.baselines.keys() & two.baselines.keys()
        versions = [{base.baselines.get(n, ""), one.baselines[n], two.baselines[n]} for n in shared]
        apart = apart if any(len(v) == 3 for v in versions) else ""
    if not apart:
        return
    newer = ""
    if base is not None:
        changed = [name for name, d in (("ours", one), ("theirs", two)) if difference(base, d)]
        newer = f"; {' and '.join(changed)} changed it" if changed else ""
    raise DatabaseError(
        f"records of {one.operator!r} on {one.device.slug} differ in their {apart}{newer}",
        why="their measurements cannot be compared",
        fix="take the one that the operator and the devices are of now, and measure anew what the other had added",
    )


def _candidates(
    sides: tuple[OperatorDatabase | None, OperatorDatabase, OperatorDatabase],
) -> dict[str, CandidateRecord]:
    apart: list[CandidateRecord] = []

    def both(a: CandidateRecord, b: CandidateRecord) -> CandidateRecord:
        if a.source != b.source or (a.code and b.code and a.code != b.code):
            apart.append(a)
        return max(a, b, key=lambda c: (c.status == "ok", canonical(c)))

    found = _picked([{} if d is None else {c.id: c for c in d.candidates} for d in sides], both)
    if apart:
        kernels = sorted({c.candidate.kernel for c in apart})
        listed = ", ".join(kernels[:_SHOWN]) + (", ..." if len(kernels) > _SHOWN else "")
        raise DatabaseError(
            f"records of {sides[1].operator!r} on {sides[1].device.slug} are of different code: {len(apart)} "
            f"candidates of {listed}",
            why="each was recorded of its own sources, or by its own compiler; times of both in one record would be of "
            "kernels that are in no library together",
            fix="take the one whose sources are those of the tree now, and measure anew what the other had added",
        )
    return found


def _measured(database: OperatorDatabase | None, codes: Mapping[str, str]) -> dict[tuple[str, str], Measurement]:
    """Measurements of the code that is kept, by problem and candidate."""
    if database is None:
        return {}
    return {
        (problem_key(m.problem), m.candidate): m
        for m in database.measurements
        if codes.get(m.candidate) == _code_of(database, m)
    }


def _code_of(database: OperatorDatabase, m: Measurement) -> str | None:
    return database.baselines.get(m.candidate.removeprefix(BASELINE)) if is_baseline(m.candidate) else m.code


def _surveyed(database: OperatorDatabase | None, codes: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """Surveyed times of the code that is kept, by shape and candidate."""
    if database is None:
        return {}
    same = {c.id for c in database.candidates if codes.get(c.id) == c.code}
    return {(problem_key(s.problem), c): ns for s in database.survey for c, ns in s.ns.items() if c in same}


def _problems(database: OperatorDatabase | None) -> dict[str, Problem]:
    if database is None:
        return {}
    every: Collection[Problem] = (*database.problems, *(m.problem for m in database.measurements))
    return {problem_key(p): p for p in every}


def _version(toolchain: Mapping[str, str]) -> tuple[list[int], bytes]:
    return [int(n) for n in re.findall(r"\d+", toolchain.get("version", ""))], canonical(toolchain)
