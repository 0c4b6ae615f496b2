"""What records that were made elsewhere say: the times of their races, and configs that won there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from aot_tune.bench.protocol.measurement_records import Device, is_baseline
from aot_tune.database import OperatorDatabase, nearest_databases, problem_key
from aot_tune.spec import Config, Kernel, Operator
from aot_tune.support.digests import canonical_digest

__all__ = ["recorded_rows", "winners_elsewhere"]


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
    turns = [config for place in range(max(map(len, lists), default=0)) for row in lists for config in row[place:][:1]]
    return list({canonical_digest(c): c for c in turns}.values())


def recorded_rows(
    database: OperatorDatabase, target: str, workload: Mapping[str, str]
) -> tuple[dict[str, dict[str, float]], frozenset[str]]:
    """A record's times on a workload in ns, and the problems on which a baseline was faster than all of them.

    Times are of candidates of one target. On a problem that raced, only those that took part count. `workload` has the
    id of each problem by its key.
    """
    own = {c.id for c in database.candidates if c.candidate.target == target and not c.candidate.generic}
    raced: dict[str, dict[str, float]] = {}
    screened: dict[str, dict[str, float]] = {}
    others: dict[str, float] = {}
    for m in database.measurements:
        problem = workload.get(problem_key(m.problem))
        if problem is None or m.ns is None or m.status != "ok":
            continue
        if is_baseline(m.candidate):
            others[problem] = min(m.ns, others.get(problem, m.ns))
        elif m.candidate in own:
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
