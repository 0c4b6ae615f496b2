"""What records say of a device: which measurements may be used as they are, and what the nearest records chose."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from aot_tune.bench.protocol.measurement_records import Device, Measurement, is_baseline
from aot_tune.compile.device_targets import cpu_level
from aot_tune.database.records import OperatorDatabase
from aot_tune.spec import Config, Kernel, Operator, Problem
from aot_tune.support.digests import canonical_digest

_CACHE = re.compile(r"L\d+d?=(\d+)([KMG])")
_KIB = {"K": 1, "M": 1 << 10, "G": 1 << 20}
_NUMBERS = {2: "two", 3: "three"}


def match_measurements(
    database: OperatorDatabase, *, device: str, policy: str, contract: str, codes: Mapping[str, str]
) -> tuple[list[Measurement], list[Measurement]]:
    """Split a database's measurements into those that are valid here as they are, and the rest.

    Args:
        device, policy: digests of this machine's device and of the policy in force.
        contract: `operator_digest` of the operator as it is now.
        codes: candidate id to this build's code of it. Candidates that are missing here are refused.

    A race is usable as a whole or not at all. If one of its entrants is refused, the others lose their final times and
    keep their screen times. An entrant without a screen is then refused.
    """
    fits = (database.device.digest, database.policy_digest, database.contract) == (device, policy, contract)
    same = {c.id for c in database.candidates if fits and c.code and c.code == codes.get(c.id)}
    valid = {m.candidate for m in database.measurements if m.candidate in same or (fits and is_baseline(m.candidate))}
    broken = {(m.race, m.problem.key) for m in database.measurements if m.candidate not in valid}
    usable, refused = list[Measurement](), list[Measurement]()
    for m in database.measurements:
        alone = m.race is not None and (m.race, m.problem.key) in broken
        if m.candidate not in valid or (alone and not m.screen):
            refused.append(m)
        else:
            usable.append(msgspec.structs.replace(m, final=None, race=None) if alone else m)
    return usable, refused


def missing_problems(database: OperatorDatabase | None, problems: Iterable[Problem], target: str) -> list[Problem]:
    """Problems of a workload for which the database has no candidate of `target` that is ok. A replay lacks these."""
    if database is None:
        return list(problems)
    of_target = {c.id for c in database.candidates if c.candidate.target == target}
    measured = {m.problem.key for m in database.measurements if m.status == "ok" and m.candidate in of_target}
    return [p for p in problems if p.key not in measured]


def deciding(databases: Sequence[OperatorDatabase], patterns: Sequence[str]) -> list[OperatorDatabase]:
    """Databases that may decide. If patterns match any device of a family, only those of matching devices."""
    named = [d for d in databases if any(is_of(d.device, p) for p in patterns)]
    families = {d.device.family for d in named}
    return [d for d in databases if d in named or d.device.family not in families]


def is_of(device: Device, pattern: str) -> bool:
    """Whether a shell pattern matches a device's name or slug. Case does not matter."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for name in (device.name, device.slug))


def nearest_databases(databases: Sequence[OperatorDatabase], operator: str, device: Device) -> list[OperatorDatabase]:
    """Databases of an operator, nearest first: this very device, the same name, the same architecture, the rest.

    Among equals the nearer count of SMs or cores comes first, on CPUs then the nearer size of the caches, then the
    slug. An architecture is a GPU's capability, or a CPU's level of instructions. A name counts only with the same
    architecture, because a CPU's name can be as vague as "AMD EPYC". Other families are left out.
    """
    fitting = [d for d in databases if d.operator == operator and d.device.family == device.family]
    return sorted(fitting, key=lambda d: (_distance(device, d.device), d.device.slug))


def told_ties(databases: Sequence[OperatorDatabase], operators: Iterable[str], device: Device) -> list[str]:
    """Lines about records of other devices of which none is nearer to this device, if one of them is where to begin."""
    tied: dict[tuple[str, ...], None] = {}
    for operator in operators:
        near = nearest_databases(databases, operator, device)
        slugs = [d.device.slug for d in near if _distance(device, d.device) == _distance(device, near[0].device)]
        if len(slugs) > 1:
            tied[tuple(slugs)] = None
    return [
        f"{_NUMBERS.get(len(slugs), len(slugs))} records are equally near: {', '.join(slugs[:-1])} and {slugs[-1]}; "
        f"{slugs[0]} is taken; AOT_TUNE_DEVICE names another"
        for slugs in tied
    ]


def _distance(device: Device, other: Device) -> tuple[int, ...]:
    """How unlike two devices of a family are, in order of weight."""
    if other.digest == device.digest:
        return ()  # nothing is nearer
    ours, theirs = _shape(device), _shape(other)
    return (
        ours[0] != theirs[0],
        other.name != device.name,
        *(abs(a - b) for a, b in zip(ours[1:], theirs[1:], strict=True)),
    )


def _shape(device: Device) -> tuple[int, int, int]:
    """A device's architecture, its SMs or cores, and the KiB of a CPU's caches for data."""
    facts = device.identity
    if device.family == "cpu":
        flags = f"flags: lm pni {facts.get('flags', '')}"  # an identity does not hold these two
        caches = _CACHE.findall(str(facts.get("caches", "")))
        return cpu_level(flags), int(facts.get("cores", 0)), sum(int(n) * _KIB[unit] for n, unit in caches)
    return int(facts.get("capability", 0)), int(facts.get("sm_count", 0)), 0


def winners_elsewhere(
    databases: Sequence[OperatorDatabase], operator: Operator, kernel: Kernel, device: Device, policy: str
) -> list[Config]:
    """Configs of a kernel that were its fastest on some problem on other devices of the family, best first.

    From each database, configs that won most problems come first. The databases take turns, beginning with the most
    similar device. There are none if the device has a database of its own under the policy with the digest `policy`.
    Its candidates are measured already, and others would only take their place. If that database was made under another
    policy, it must be measured again, and says best where to begin.
    """
    near = nearest_databases(databases, operator.name, device)
    if any(d.was_made_on(device, policy) for d in near):
        return []
    lists = [_winners(d, kernel) for d in near]
    turns = [config for turn in range(max(map(len, lists), default=0)) for row in lists for config in row[turn:][:1]]
    return list({canonical_digest(c): c for c in turns}.values())


def recorded_rows(
    database: OperatorDatabase, target: str, workload: Mapping[str, str]
) -> tuple[dict[str, dict[str, float]], frozenset[str]]:
    """A record's times on a workload in ns, and the problems on which a baseline was faster than all of them.

    Times are of candidates of one target. On a problem that raced, only those that took part count. `workload` has the
    id of each problem by its key.
    """
    of_target = {c.id for c in database.candidates if c.candidate.target == target and not c.candidate.generic}
    raced: dict[str, dict[str, float]] = {}
    screened: dict[str, dict[str, float]] = {}
    others: dict[str, float] = {}
    for m in database.measurements:
        problem = workload.get(m.problem.key)
        if problem is None or m.ns is None or m.status != "ok":
            continue
        if is_baseline(m.candidate):
            others[problem] = min(m.ns, others.get(problem, m.ns))
        elif m.candidate in of_target:
            (raced if m.final else screened).setdefault(problem, {})[m.candidate] = m.ns
    rows = screened | raced
    return rows, frozenset(p for p, row in rows.items() if others.get(p, math.inf) < min(row.values()))


def _winners(database: OperatorDatabase, kernel: Kernel) -> list[Config]:
    configs = {r.id: r.candidate.config for r in database.candidates if r.candidate.kernel == kernel.name}
    best: dict[str, tuple[float, str]] = {}
    for m in database.measurements:
        if m.candidate in configs and m.ns is not None:
            best[m.problem.id] = min(best.get(m.problem.id, (m.ns, m.candidate)), (m.ns, m.candidate))
    names = {canonical_digest(configs[c]): configs[c] for _, c in best.values()}
    wins = Counter(canonical_digest(configs[c]) for _, c in best.values())
    return [names[d] for d in sorted(wins, key=lambda d: (-wins[d], d))]
