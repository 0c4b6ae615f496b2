"""The decision function: a tree over a call's facts, learned by cost and not by label."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aot_tune.select.records import Costs, Node
from aot_tune.spec import Facts

__all__ = ["learn", "rank"]

_UNSERVED = math.log(100.0)
"""Counted for a variant that cannot serve a problem: far worse than any that can, but comparable."""


def learn(costs: Costs, facts: Mapping[str, Facts], kept: Sequence[str], *, tolerance: float = 0.002) -> list[Node]:
    """Learn the tree that picks among `kept`; node 0 is the root.

    A node is split where that lowers the summed log regret of its problems most; where no single split lowers it, the
    one is taken that does so together with the best splits below it. Thresholds lie at the geometric middle between
    neighbouring values. Ties go to the first fact by name.

    Args:
        costs: times in ns by problem and candidate.
        facts: facts by problem.
        kept: candidate ids; not empty.
        tolerance: log regret per problem that is not worth a split.
    """
    problems = sorted(p for p, row in costs.items() if any(c in row for c in kept))
    regret = {p: {c: _regret(costs[p], c, kept) for c in kept} for p in problems}
    learner = _Learner(regret, facts, tolerance)
    learner.grow(problems)
    return learner.nodes


def rank(nodes: Sequence[Node], facts: Facts) -> tuple[str, ...]:
    """The candidates that the tree proposes for a call, best first."""
    node = nodes[0]
    while node.fact:
        node = nodes[node.below if facts[node.fact] <= node.threshold else node.above]
    return node.ranked


@dataclass(frozen=True)
class _Split:
    """A threshold on a fact, and the summed regret of the two sides when each uses its best candidate."""

    total: float
    fact: str
    threshold: int


class _Learner:
    """Grows a tree; `regret` is the log regret by problem and candidate."""

    def __init__(self, regret: Mapping[str, Mapping[str, float]], facts: Mapping[str, Facts], tolerance: float) -> None:
        self.nodes: list[Node] = []
        self._regret, self._facts, self._tolerance = regret, facts, tolerance

    def grow(self, problems: list[str]) -> int:
        """Add the node of these problems and what is below it; returns its index."""
        index = len(self.nodes)
        self.nodes.append(Node())
        totals: dict[str, float] = {}
        for p in problems:
            for c, regret in self._regret[p].items():
                totals[c] = totals.get(c, 0.0) + regret
        ranked = tuple(sorted(totals, key=lambda c: (totals[c], c)))
        split = self._choose(problems, totals[ranked[0]])
        if split is None:
            self.nodes[index] = Node(ranked=ranked)
            return index
        low, high = self._sides(problems, split)
        below, above = self.grow(low), self.grow(high)
        self.nodes[index] = Node(fact=split.fact, threshold=split.threshold, below=below, above=above)
        return index

    def _choose(self, problems: list[str], here: float) -> _Split | None:
        worth = here - self._tolerance
        if here <= self._tolerance * len(problems):
            return None
        splits = list(self._splits(problems))
        best = min(splits, key=lambda s: s.total, default=None)
        if best is None or best.total < worth:
            return best
        totals = [sum(self._after_next(side) for side in self._sides(problems, s)) for s in splits]
        total, i = min((t, i) for i, t in enumerate(totals))
        return splits[i] if total < worth else None

    def _after_next(self, problems: list[str]) -> float:
        """The summed regret of problems after one more split, or none."""
        totals = [s.total for s in self._splits(problems)]
        return min([*totals, _running_best(problems, self._regret)[-1]])

    def _sides(self, problems: list[str], split: _Split) -> tuple[list[str], list[str]]:
        low = [p for p in problems if self._facts[p][split.fact] <= split.threshold]
        high = [p for p in problems if self._facts[p][split.fact] > split.threshold]
        return low, high

    def _splits(self, problems: list[str]) -> Iterator[_Split]:
        """All splits, by the name of the fact, then the threshold."""
        for fact in sorted(f for f in self._facts[problems[0]] if not f.startswith("alignment.")):
            ordered = sorted(problems, key=lambda p: (self._facts[p][fact], p))
            values = [self._facts[p][fact] for p in ordered]
            if values[0] == values[-1]:
                continue
            prefix = _running_best(ordered, self._regret)
            suffix = _running_best(ordered[::-1], self._regret)[::-1]
            for i in range(1, len(ordered)):
                low, high = values[i - 1], values[i]
                if low == high or (fact.startswith("stride.") and not low <= 1 < high):
                    continue  # of a stride, only whether it is 1 says something about other shapes
                threshold = 1 if fact.startswith("stride.") else _between(low, high)
                yield _Split(round(prefix[i - 1] + suffix[i], 12), fact, threshold)


def _regret(row: Mapping[str, float], candidate: str, kept: Sequence[str]) -> float:
    best = min(t for c, t in row.items() if c in kept)
    return math.log(row[candidate] / best) if candidate in row else _UNSERVED


def _running_best(ordered: Sequence[str], regret: Mapping[str, Mapping[str, float]]) -> list[float]:
    """For each beginning of `ordered`, the summed regret of the candidate that is best for it as a whole."""
    sums = dict.fromkeys(regret[ordered[0]], 0.0)
    found = []
    for p in ordered:
        for c, value in regret[p].items():
            sums[c] += value
        found.append(min(sums.values()))
    return found


def _between(low: int, high: int) -> int:
    """A threshold t with low <= t < high, at the geometric middle for positive values."""
    middle = math.isqrt(low * high) if low > 0 else (low + high) // 2
    return min(max(middle, low), high - 1)
