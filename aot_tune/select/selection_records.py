"""What select decides: the variants to keep, and for every call which of them to try first."""

from __future__ import annotations

import msgspec

__all__ = ["Costs", "Node", "Selection"]

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


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The variants of one operator for one target.

    `regret` is, per problem of the workload, the time of the variant that dispatch picks over the best time measured,
    less 1; `held_out` the same where the tree was learned without the problem (NaN-free; empty for a single problem).
    Problems of `regret` that are not in `held_out` could not be judged: what the tree picks was never timed there, or
    nothing that is kept was timed on any of the others.
    """

    kept: tuple[str, ...]
    nodes: tuple[Node, ...]
    regret: dict[str, float]
    held_out: dict[str, float]
