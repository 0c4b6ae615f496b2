"""What select decides: the variants to keep, and which of them to try first for every call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from aot_tune.select.terms import Terms
from aot_tune.select.time_model import TimeModel

__all__ = ["Costs", "Expectation", "Judged", "Node", "Selection"]

Costs = dict[str, dict[str, float]]
"""Problem id to candidate id to time in ns. A candidate that cannot serve a problem has no time there."""


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
    """The expectation of a candidate's time on calls of a kind, which have these facts.

    For ranking, `caution` is added to the expected time, in 1/4096 of log2 ns.
    """

    candidate: str
    kind: tuple[tuple[str, int], ...]
    terms: Terms
    model: TimeModel
    caution: int = 0


@dataclass(frozen=True)
class Judged:
    """Regret on held-out surveyed shapes, against the best candidate that was surveyed there.

    `regret` is by problem id: the time of what dispatch picks over the best time, less 1.
    """

    regret: Mapping[str, float]
    learned_from: int

    @property
    def mean(self) -> float:
        """The mean over all shapes."""
        return sum(self.regret.values()) / len(self.regret)

    @property
    def worst(self) -> tuple[float, str]:
        """The largest regret, and its problem."""
        problem = max(self.regret, key=lambda p: (self.regret[p], p))
        return self.regret[problem], problem

    def percentile(self, share: float) -> float:
        """The regret that this share of the shapes does not exceed."""
        ordered = sorted(self.regret.values())
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The variants of one operator for one target.

    `exact` has the candidates to try on problems that were measured. Other calls go by `expected`, and by the tree of
    `nodes` if nothing in `expected` serves. `regret` is, for each problem of the workload, the time of what dispatch
    picks over the best measured time, less 1. `held_out` is the same with a tree that was learned without the problem.
    It is empty for a single problem, and with a survey, which has `judged` instead. A problem of `regret` that is not
    in `held_out` could not be judged: the tree's choice was never timed there, or no kept candidate was timed on the
    other problems. By kind of calls, `order` has the kind's variants, `curves` the mean regret over workload and survey
    with only the first of them, with the first two, and so on, and `served` the share of problems that these serve.
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
