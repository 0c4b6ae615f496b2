"""The decision function: a tree over a call's facts, learned by cost and not by label."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from aot_tune.select.records import Costs, Node
from aot_tune.spec import Facts

__all__ = ["learn", "rank"]

_UNSERVED = math.log(100.0)
"""Counted for a variant that cannot serve a problem: far worse than any that can, but comparable."""


def learn(costs: Costs, facts: Mapping[str, Facts], kept: Sequence[str], *, tolerance: float = 0.002) -> list[Node]:
    """Learn the tree that picks among `kept`; node 0 is the root.

    A node is split where that lowers the summed log regret of its problems, on the fact and threshold that lower it
    most; thresholds lie at the geometric middle between neighbouring values. Ties go to the first fact by name.

    Args:
        costs: times in ns by problem and candidate.
        facts: facts by problem.
        kept: candidate ids; not empty.
        tolerance: log regret per problem that is not worth a split.
    """
    problems = sorted(p for p, row in costs.items() if any(c in row for c in kept))
    nodes: list[Node] = []
    _grow(nodes, problems, costs, facts, list(kept), tolerance)
    return nodes


def rank(nodes: Sequence[Node], facts: Facts) -> tuple[str, ...]:
    """The candidates that the tree proposes for a call, best first."""
    node = nodes[0]
    while node.fact:
        node = nodes[node.below if facts[node.fact] <= node.threshold else node.above]
    return node.ranked


def _regret(row: Mapping[str, float], candidate: str, kept: Sequence[str]) -> float:
    best = min(t for c, t in row.items() if c in kept) if any(c in row for c in kept) else 1.0
    return math.log(row[candidate] / best) if candidate in row else _UNSERVED


def _totals(problems: Sequence[str], costs: Costs, kept: Sequence[str]) -> dict[str, float]:
    return {c: sum(_regret(costs[p], c, kept) for p in problems) for c in kept}


def _grow(
    nodes: list[Node], problems: list[str], costs: Costs, facts: Mapping[str, Facts], kept: list[str], tolerance: float
) -> int:
    index = len(nodes)
    nodes.append(Node())
    totals = _totals(problems, costs, kept)
    ranked = tuple(sorted(kept, key=lambda c: (totals[c], c)))
    here = totals[ranked[0]]
    split = _best_split(problems, costs, facts, kept) if here > tolerance * len(problems) else None
    if split is None or split[0] >= here - tolerance:
        nodes[index] = Node(ranked=ranked)
        return index
    _, fact, threshold = split
    low = [p for p in problems if facts[p][fact] <= threshold]
    high = [p for p in problems if facts[p][fact] > threshold]
    below = _grow(nodes, low, costs, facts, kept, tolerance)
    above = _grow(nodes, high, costs, facts, kept, tolerance)
    nodes[index] = Node(fact=fact, threshold=threshold, below=below, above=above)
    return index


def _best_split(
    problems: list[str], costs: Costs, facts: Mapping[str, Facts], kept: list[str]
) -> tuple[float, str, int] | None:
    best: tuple[float, str, int] | None = None
    regret = {p: {c: _regret(costs[p], c, kept) for c in kept} for p in problems}
    for fact in sorted(f for f in facts[problems[0]] if not f.startswith("alignment.")):
        ordered = sorted(problems, key=lambda p: (facts[p][fact], p))
        prefix = _running_best(ordered, regret, kept)
        suffix = _running_best(ordered[::-1], regret, kept)[::-1]
        for i in range(1, len(ordered)):
            low, high = facts[ordered[i - 1]][fact], facts[ordered[i]][fact]
            if low == high or (fact.startswith("stride.") and not low <= 1 < high):
                continue  # of a stride, only whether it is 1 says something about other shapes
            total = prefix[i - 1] + suffix[i]
            if best is None or total < best[0] - 1e-12:
                best = (total, fact, 1 if fact.startswith("stride.") else _between(low, high))
    return best


def _running_best(ordered: Sequence[str], regret: Mapping[str, Mapping[str, float]], kept: list[str]) -> list[float]:
    sums = dict.fromkeys(kept, 0.0)
    found = []
    for p in ordered:
        for c in kept:
            sums[c] += regret[p][c]
        found.append(min(sums.values()))
    return found


def _between(low: int, high: int) -> int:
    """A threshold t with low <= t < high, at the geometric middle for positive values."""
    middle = math.isqrt(low * high) if low > 0 else (low + high) // 2
    return min(max(middle, low), high - 1)
