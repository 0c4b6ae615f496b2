"""What two records say together. `update` knows which one is newer, so that one holds. `join` does not.

So joining is commutative, associative and idempotent. If the common ancestor is known, a change or removal by one side
only is taken over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from aot_tune.bench.protocol.measurement_records import BASELINE, Measurement, is_baseline
from aot_tune.database.records import CandidateRecord, OperatorDatabase, SurveyedShape, canonical_database, out_of_race
from aot_tune.spec import Problem
from aot_tune.support.digests import canonical
from aot_tune.support.errors import DatabaseError

K = TypeVar("K")
V = TypeVar("V")
_SHOWN = 5


def update(older: OperatorDatabase, newer: OperatorDatabase) -> OperatorDatabase:
    """What a record becomes after `newer` was measured: both together, or `newer` alone if they cannot be compared.

    Where they differ in a candidate's code or in a measurement, `newer` holds. Times of one race stay together. If
    `newer` has other measurements of a race's entrants, the remaining entrants lose their final times.
    """
    if difference(older, newer):
        return newer
    before = {c.id: c.code for c in older.candidates}
    other = {c.id for c in newer.candidates if before.get(c.id, c.code) != c.code}
    fresh = {_at(m): m.race for m in newer.measurements}
    kept = [m for m in older.measurements if m.candidate not in other and _at(m) not in fresh]
    left = {id(m) for m in kept}
    lost = {
        (m.race or "", m.problem.key)
        for m in older.measurements
        if id(m) not in left and fresh.get(_at(m)) != m.race  # otherwise the same race is there again
    }
    whole = tuple(filter(None, (out_of_race(m) if (m.race, m.problem.key) in lost else m for m in kept)))
    joined = _joined(None, msgspec.structs.replace(older, measurements=whole), newer, _newer)
    return msgspec.structs.replace(
        joined,
        device=newer.device,
        policy=newer.policy,
        opening=older.opening and newer.opening,  # what one of them searched is there
    )


def without(database: OperatorDatabase, gone: Collection[str]) -> OperatorDatabase:
    """The database without these candidates and their measurements. Races of others, and all problems, stay."""
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
    problems = {m.problem.key for m in newer.measurements}
    kept = tuple(
        m for m in older.measurements if kernels.get(m.candidate) not in again or m.problem.key not in problems
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
    return m.problem.key, m.candidate


def _shared(one: dict[str, str], two: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    names = sorted(one.keys() & two.keys())
    return {n: one[n] for n in names}, {n: two[n] for n in names}


def _newer(_one: V, two: V) -> V:
    return two


def join(one: OperatorDatabase, two: OperatorDatabase) -> OperatorDatabase:
    """Everything of both. If they differ, the one that `rank` puts last holds. Of two surveyed times, the lesser holds.

    Raises:
        DatabaseError: when they are of different operators, devices, policies, versions of the operator or of
            baselines, or when a candidate has different code. Such measurements cannot be compared.
    """
    return _joined(None, one, two)


def join_from(base: OperatorDatabase | None, ours: OperatorDatabase, theirs: OperatorDatabase) -> OperatorDatabase:
    """What both made of `base`. None counts as an empty one.

    Each candidate, measurement, surveyed time, problem and baseline version counts by itself. If one side left it
    unchanged, the other side decides, and may have removed it. If both changed it, they are joined as in `join`. If one
    side removed it and the other changed it, it stays. Measurements of code that is not kept are removed.

    Raises:
        DatabaseError: like `join`, when both sides changed something that cannot be joined.
    """
    if base is not None and (base.operator, base.device.digest) != (ours.operator, ours.device.digest):
        base = None
    return _joined(base, ours, theirs)


def rank(m: Measurement) -> tuple[Any, ...]:
    """If there are several measurements of one candidate on a problem, the one with the highest rank holds.

    A lasting failure ranks highest, so that nothing is chosen that failed once. Times come next. More rounds of a race
    rank higher, then the race with the greater name, so that the entrants of one race stay together. Then more samples
    of a screen rank higher, then the lesser time. What is no result ranks lowest.
    """
    lasting = m.status not in ("ok", "skipped") and m.lasting
    times = (len(m.final or ()), m.race or "", len(m.screen), -(m.ns or 0.0))
    return (2 if lasting else 1 if m.status == "ok" else 0, *times, canonical(m))


def other_toolchains(one: OperatorDatabase, two: OperatorDatabase) -> list[str]:
    """Backends for which two records have different toolchains. A joined record only names one of each."""
    shared = one.toolchains.keys() & two.toolchains.keys()
    return sorted(b for b in shared if one.toolchains[b] != two.toolchains[b])


def _joined(
    base: OperatorDatabase | None,
    one: OperatorDatabase,
    two: OperatorDatabase,
    always: Callable[[Any, Any], Any] | None = None,
) -> OperatorDatabase:
    """Both together. Where they differ, `always` decides if it is given, or else a rule for each kind of thing."""
    _check_comparable(base, one, two)
    sides = (base, one, two)
    baselines = _picked([{} if d is None else d.baselines for d in sides], max)
    candidates = _candidates(sides, always)
    codes = {i: c.code for i, c in candidates.items()}
    codes |= {f"{BASELINE}{name}": version for name, version in baselines.items()}
    measured = _picked([_measured(d, codes) for d in sides], always or (lambda a, b: max(a, b, key=rank)))
    surveyed = _picked([_surveyed(d, codes) for d in sides], always or min)
    spelled = (s.problem for d in (one, two) for s in d.survey)
    shapes = {p.key: p for p in sorted(spelled, key=lambda p: p.id, reverse=True)}
    times: dict[str, dict[str, float]] = {}
    for (key, candidate), ns in surveyed.items():
        times.setdefault(key, {})[candidate] = ns
    problems = _picked([_problems(d) for d in sides], always or (lambda a, b: min(a, b, key=lambda p: p.id)))
    versions = [{} if d is None else d.toolchains for d in sides]
    return canonical_database(
        msgspec.structs.replace(
            max(one, two, key=lambda d: canonical([d.device, d.policy])),
            toolchains=_picked(versions, always or (lambda a, b: max(a, b, key=_version))),
            baselines=baselines,
            candidates=tuple(candidates.values()),
            problems=tuple(problems.values()),
            measurements=tuple(measured.values()),
            survey=tuple(SurveyedShape(problem=shapes[key], ns=ns) for key, ns in times.items()),
        )
    )


def _picked(sides: Sequence[Mapping[K, V]], both: Callable[[V, V], V]) -> dict[K, V]:
    """For each key, what one side made of the base's value. If both changed it differently, `both` decides."""
    base, one, two = sides
    picked: dict[K, V] = {}
    for key in [*one, *(k for k in two if k not in one)]:
        was, a, b = base.get(key), one.get(key), two.get(key)
        if a is None or b is None:
            kept = b if a is None else a
            if kept is not None and (was is None or kept != was):  # otherwise the other side removed it
                picked[key] = kept
        elif a in (b, was):
            picked[key] = b
        else:
            picked[key] = a if b == was else both(a, b)
    return picked


def _check_comparable(base: OperatorDatabase | None, one: OperatorDatabase, two: OperatorDatabase) -> None:
    apart = difference(one, two)
    if apart.startswith("versions of the baselines") and base is not None:  # one side may have got another version
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
        fix="take the one that fits the present operator and devices, and measure again what the other had added",
    )


def _candidates(
    sides: tuple[OperatorDatabase | None, OperatorDatabase, OperatorDatabase], always: Callable[[Any, Any], Any] | None
) -> dict[str, CandidateRecord]:
    apart: list[CandidateRecord] = []

    def both(a: CandidateRecord, b: CandidateRecord) -> CandidateRecord:
        if always is not None:
            return _with_verdicts(always(a, b), a, b)
        if a.source != b.source or (a.code and b.code and a.code != b.code):
            apart.append(a)
        return _with_verdicts(max(a, b, key=lambda c: (c.status == "ok", canonical(c))), a, b)

    candidates = _picked([{} if d is None else {c.id: c for c in d.candidates} for d in sides], both)
    if apart:
        kernels = sorted({c.candidate.kernel for c in apart})
        listed = ", ".join(kernels[:_SHOWN]) + (", ..." if len(kernels) > _SHOWN else "")
        raise DatabaseError(
            f"records of {sides[1].operator!r} on {sides[1].device.slug} have different code: {len(apart)} "
            f"candidates of {listed}",
            why="each was recorded from its own sources, or with its own compiler; a joined record would have times of "
            "kernels that no library has together",
            fix="take the one whose sources are in the tree now, and measure again what the other had added",
        )
    return candidates


def _with_verdicts(kept: CandidateRecord, a: CandidateRecord, b: CandidateRecord) -> CandidateRecord:
    """A candidate with all verdicts of sanitizers on its code."""
    verdicts: dict[str, str] = {}
    for c in (a, b):
        of_code = c.sanitized if c.code == kept.code else {}
        verdicts |= {tool: max(verdict, verdicts.get(tool, "")) for tool, verdict in of_code.items()}
    return msgspec.structs.replace(kept, sanitized=dict(sorted(verdicts.items())))


def _measured(database: OperatorDatabase | None, codes: Mapping[str, str]) -> dict[tuple[str, str], Measurement]:
    """Measurements of the code that is kept, by problem and candidate."""
    if database is None:
        return {}
    return {
        (m.problem.key, m.candidate): m
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
    return {(s.problem.key, c): ns for s in database.survey for c, ns in s.ns.items() if c in same}


def _problems(database: OperatorDatabase | None) -> dict[str, Problem]:
    if database is None:
        return {}
    every: Collection[Problem] = (*database.problems, *(m.problem for m in database.measurements))
    return {p.key: p for p in every}


def _version(toolchain: Mapping[str, str]) -> tuple[list[int], bytes]:
    return [int(n) for n in re.findall(r"\d+", toolchain.get("version", ""))], canonical(toolchain)
