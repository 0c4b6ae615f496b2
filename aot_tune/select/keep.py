"""Which variants to keep: the fewest whose regret over the workload stays under a limit, within a byte budget."""

from __future__ import annotations

import math
from collections.abc import Mapping

from aot_tune.select.records import Costs

__all__ = ["choose_variants", "log_regret"]


def log_regret(costs: Mapping[str, float], kept: set[str] | frozenset[str]) -> float:
    """log(best time with `kept` / best time); infinite when none of `kept` serves the problem."""
    best = min(costs.values())
    mine = min((t for c, t in costs.items() if c in kept), default=math.inf)
    return math.log(mine / best)


def choose_variants(
    costs: Costs, *, limit: float, sizes: Mapping[str, int] | None = None, byte_budget: int | None = None
) -> list[str]:
    """Candidate ids to keep, in the order in which they pay off.

    Greedy: add the candidate that removes most regret until the geometric mean is within `limit` of the best and no
    problem is more than three times `limit` off; then drop what later additions made needless. Ties go to the smaller
    id, so the result does not depend on the order of the input.

    Args:
        costs: times in ns; problems without any are ignored.
        limit: allowed mean regret, such as 0.01.
        sizes: bytes of each candidate's object.
        byte_budget: bytes that the kept objects may take together; None is no limit.
    """
    rows = {p: c for p, c in costs.items() if c}
    candidates = sorted({c for row in rows.values() for c in row})
    kept: list[str] = []
    while rows and not _good_enough(rows, kept, limit):
        affordable = [c for c in candidates if c not in kept and _fits([*kept, c], sizes, byte_budget)]
        if not affordable:
            break
        before = _total(rows, kept)
        best = min(affordable, key=lambda c: (_total(rows, [*kept, c]), c))
        if _total(rows, [*kept, best]) >= before:
            break
        kept.append(best)
    for candidate in list(kept):
        rest = [c for c in kept if c != candidate]
        if rest and _good_enough(rows, rest, limit):
            kept = rest
    return kept


def _good_enough(rows: Costs, kept: list[str], limit: float) -> bool:
    regrets = [log_regret(row, frozenset(kept)) for row in rows.values()]
    return sum(regrets) / len(regrets) <= math.log1p(limit) and max(regrets) <= math.log1p(3 * limit)


def _total(rows: Costs, kept: list[str]) -> tuple[int, float]:
    regrets = [log_regret(row, frozenset(kept)) for row in rows.values()]
    return sum(math.isinf(r) for r in regrets), sum(r for r in regrets if not math.isinf(r))


def _fits(kept: list[str], sizes: Mapping[str, int] | None, budget: int | None) -> bool:
    return budget is None or sum((sizes or {}).get(c, 0) for c in kept) <= budget
