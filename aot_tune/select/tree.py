"""The decision function: a tree over a call's facts, learned by cost, not by label."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from aot_tune.select.choose_variants import Costs
from aot_tune.spec import Facts

__all__ = ["Node", "learn", "rank"]

Matrix = NDArray[np.float64]
Rows = NDArray[np.intp]

_TOLERANCE = 0.002
"""A split must lower the log regret per problem by more than this."""

_UNSERVED = math.log(100.0)
"""The log regret of a variant that cannot serve a problem: far worse than any that can, but comparable."""


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node of the decision tree: `facts[fact] <= threshold` goes to node `below`, else to `above`.

    A leaf has no fact, and `ranked` candidate ids to try in order, before the generic variant.
    """

    fact: str = ""
    threshold: int = 0
    below: int = 0
    above: int = 0
    ranked: tuple[str, ...] = ()


def learn(costs: Costs, facts: Mapping[str, Facts], kept: Sequence[str]) -> list[Node]:
    """Learn the tree that picks among `kept`; node 0 is the root.

    A node is split where that lowers the summed log regret of its problems most. If no single split lowers it, the
    split is taken that lowers it most together with the best splits below it. Thresholds are the geometric middle
    between neighbouring values. On a tie, the first fact by name wins.

    Args:
        costs: times in ns by problem and candidate.
        facts: facts by problem.
        kept: candidate ids; not empty.
    """
    problems = sorted(p for p, row in costs.items() if any(c in row for c in kept))
    regret = np.array([_regrets(costs[p], kept) for p in problems])
    learner = _Learner(regret, _columns(problems, facts), list(kept))
    learner.grow(np.arange(len(problems)))
    return learner.nodes


def rank(nodes: Sequence[Node], facts: Facts) -> tuple[str, ...]:
    """The candidates that the tree proposes for a call, best first."""
    node = nodes[0]
    while node.fact:
        node = nodes[node.below if facts[node.fact] <= node.threshold else node.above]
    return node.ranked


@dataclass(frozen=True)
class _Split:
    """A threshold on a fact, and the summed regret of both sides if each uses its best candidate."""

    total: float
    fact: str
    threshold: int


@dataclass(frozen=True)
class _Scan:
    """Some problems in the order of each of the `facts`, by number, in which they differ.

    `values` [fact, place] are their values. For each place but the last [fact, place], `totals` is the summed regret of
    splitting after it, and `splits` is whether that is a split.
    """

    facts: Rows
    values: NDArray[np.int64]
    totals: Matrix
    splits: NDArray[np.bool_]


class _Learner:
    """Grows a tree. `regret` is the log regret [problem, candidate], `columns` has the facts by name and problem.

    Problems are numbered in the order of their names.
    """

    def __init__(self, regret: Matrix, columns: Mapping[str, NDArray[np.int64]], kept: list[str]) -> None:
        self.nodes: list[Node] = []
        self._regret, self._columns, self._kept = regret, columns, kept
        self._facts = list(columns)
        self._strides = np.array([fact.startswith("stride.") for fact in columns], dtype=np.bool_)
        self._table = np.array(list(columns.values()), dtype=np.int64).reshape(len(columns), len(regret))

    def grow(self, problems: Rows) -> int:
        """Add the node of these problems and the nodes below it. Returns its index."""
        index = len(self.nodes)
        self.nodes.append(Node())
        totals = dict(zip(self._kept, self._regret[problems].sum(axis=0).round(12).tolist(), strict=True))
        ranked = tuple(sorted(totals, key=lambda c: (totals[c], c)))
        split = self._choose(problems, totals[ranked[0]])
        if split is None:
            self.nodes[index] = Node(ranked=ranked)
            return index
        low, high = self._sides(problems, split)
        below, above = self.grow(low), self.grow(high)
        self.nodes[index] = Node(fact=split.fact, threshold=split.threshold, below=below, above=above)
        return index

    def _choose(self, problems: Rows, here: float) -> _Split | None:
        worth = here - _TOLERANCE
        if here <= _TOLERANCE * len(problems):
            return None
        splits = list(self._splits(problems))
        best = min(splits, key=lambda s: s.total, default=None)
        if best is None or best.total < worth:
            return best
        totals = [sum(self._after_next(side) for side in self._sides(problems, s)) for s in splits]
        total, i = min((t, i) for i, t in enumerate(totals))
        return splits[i] if total < worth else None

    def _after_next(self, problems: Rows) -> float:
        """The summed regret of problems after one more split, or after none."""
        scan = self._scan(problems)
        split = scan.totals.min(where=scan.splits, initial=math.inf)
        return min(float(split), float(self._regret[problems].sum(axis=0).min()))

    def _sides(self, problems: Rows, split: _Split) -> tuple[Rows, Rows]:
        low = self._columns[split.fact][problems] <= split.threshold
        return problems[low], problems[~low]

    def _splits(self, problems: Rows) -> Iterator[_Split]:
        """All splits, by the name of the fact, then the threshold."""
        scan = self._scan(problems)
        for at, i in np.argwhere(scan.splits).tolist():
            fact, low, high = scan.facts[at], int(scan.values[at, i]), int(scan.values[at, i + 1])
            threshold = 1 if self._strides[fact] else _between(low, high)
            yield _Split(float(scan.totals[at, i]), self._facts[fact], threshold)

    def _scan(self, problems: Rows) -> _Scan:
        """What splits of problems give, for all facts at once."""
        columns = self._table[:, problems]
        facts = np.flatnonzero(columns.min(axis=1) != columns.max(axis=1))
        columns = columns[facts]
        order = np.argsort(columns, axis=1, kind="stable")
        values = np.take_along_axis(columns, order, axis=1)
        below = np.cumsum(self._regret[problems[order]], axis=1)
        totals = (below[:, :-1].min(axis=2) + (below[:, -1:] - below[:, :-1]).min(axis=2)).round(12)
        low, high = values[:, :-1], values[:, 1:]
        splits = np.where(self._strides[facts, None], (low <= 1) & (high > 1), low != high)
        return _Scan(facts, values, totals, splits)


def _columns(problems: Sequence[str], facts: Mapping[str, Facts]) -> dict[str, NDArray[np.int64]]:
    """The facts that splits may use, by name. Of facts that split alike, only the first."""
    columns: dict[str, NDArray[np.int64]] = {}
    seen: set[bytes] = set()
    for fact in sorted(f for f in facts[problems[0]] if not f.startswith("alignment.")) if problems else []:
        values = np.array([facts[p][fact] for p in problems], dtype=np.int64)
        # only whether a stride is 1 says something about other shapes
        told = (values > 1).tobytes() if fact.startswith("stride.") else values.tobytes()
        if told not in seen and values.min() != values.max():
            seen.add(told)
            columns[fact] = values
    return columns


def _regrets(row: Mapping[str, float], kept: Sequence[str]) -> list[float]:
    """The log regret of each kept candidate on a problem."""
    times = [row.get(c, math.inf) for c in kept]
    best = min(times)
    return [math.log(t / best) if t < math.inf else _UNSERVED for t in times]


def _between(low: int, high: int) -> int:
    """A threshold t with low <= t < high: the geometric middle of positive values."""
    middle = math.isqrt(low * high) if low > 0 else (low + high) // 2
    return min(max(middle, low), high - 1)
