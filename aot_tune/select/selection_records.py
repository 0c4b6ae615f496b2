"""What select decides: the variants to keep, and for every call which of them to try first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from aot_tune.select.terms import Terms
from aot_tune.select.time_model import TimeModel

__all__ = ["Costs", "Expectation", "Judged", "Node", "Selection"]

Costs = dict[str, dict[str, float]]
"""Problem id to candidate id to time in ns; a candidate that cannot serve a problem is missing there."""


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node of the decision tree: `facts[fact] <= threshold` goes to node `below`, else to `above`.

    A leaf has no fact, and `ranked` candidate ids to try in order, before the generic variant.
    """

    fact: str = ""
    threshold: int = 0
    below: int = 0
    above: int = 0
    ranked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expectation:
    """What a candidate's time is expected from on calls of a kind, which have these facts.

    `caution` is added to it, in 1/4096 of log2 ns, where it is ranked.
    """

    candidate: str
    kind: tuple[tuple[str, int], ...]
    terms: Terms
    model: TimeModel
    caution: int = 0


@dataclass(frozen=True)
class Judged:
    """Regret on surveyed shapes that nothing was learned from, against the best candidate that was surveyed there.

    `regret` is by problem id: time of what dispatch picks over the best time, less 1.
    """

    regret: Mapping[str, float]
    learned_from: int

    @property
    def mean(self) -> float:
        """Over all of them."""
        return sum(self.regret.values()) / len(self.regret)

    @property
    def worst(self) -> tuple[float, str]:
        """The largest regret, and the problem."""
        problem = max(self.regret, key=lambda p: (self.regret[p], p))
        return self.regret[problem], problem

    def percentile(self, share: float) -> float:
        """The regret that so large a share of the shapes does not exceed."""
        ordered = sorted(self.regret.values())
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The variants of one operator for one target.

    `exact` has, for problems that were measured, the candidates to try; `expected` is for other calls, the tree of
    `nodes` where nothing in it serves. `regret` is, per problem of the workload, the time of the variant that dispatch
    picks over the best time measured, less 1; `held_out` the same where the tree was learned without the problem
    (empty for a single problem, and with a survey, whose own judgement is `judged`). Problems of `regret` that are not
    in `held_out` could not be judged: what the tree picks was never timed there, or nothing that is kept was timed on
    any of the others. `curves` tell for each kind of calls the mean regret over workload and survey with the first of
    its variants alone, with the first two, and so on; `order` has these variants, and `served` the
    share of problems that they serve at all.
    """

    kept: tuple[str, ...]
    nodes: tuple[Node, ...]
    regret: dict[str, float]
    held_out: dict[str, float]
    exact: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    expected: tuple[Expectation, ...] = ()
    judged: Judged | None = None
    curves: Mapping[tuple[tuple[str, int], ...], tuple[float, ...]] = field(default_factory=dict)
    order: Mapping[tuple[tuple[str, int], ...], tuple[str, ...]] = field(default_factory=dict)
    served: Mapping[tuple[tuple[str, int], ...], tuple[float, ...]] = field(default_factory=dict)
