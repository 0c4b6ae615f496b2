"""From times to a selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from aot_tune.select.choose_variants import choose_variants
from aot_tune.select.selection_records import Costs, Node, Selection
from aot_tune.select.tree import learn, rank
from aot_tune.spec import Facts

__all__ = ["REGRET_LIMIT", "select"]

REGRET_LIMIT = 0.005
"""Mean regret over the workload that is given up for fewer variants."""

_FOLDS = 12
"""Trees learned to judge dispatch on shapes that it has not seen; with fewer problems, each is left out alone."""


def select(
    costs: Costs,
    facts: Mapping[str, Facts],
    serves: Callable[[str, Facts], bool],
    *,
    limit: float = REGRET_LIMIT,
    times: Costs | None = None,
    sizes: Mapping[str, int] | None = None,
    byte_budget: int | None = None,
    plainer: Mapping[str, str] | None = None,
    alike: Mapping[str, str] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Selection:
    """Choose the variants and the decision tree of one operator for one target.

    Args:
        costs: times in ns by problem id and candidate id, of verified candidates only.
        facts: facts of each problem.
        serves: whether a candidate's guards hold for facts.
        limit, times, sizes, byte_budget, weights: see `choose_variants`.
        plainer: candidate to one that is right where its guards do not hold. It is kept beside it, to be tried after
            those that were chosen, in front of the generic variant: for calls unlike those of the workload.
        alike: problem that was not measured, of which `facts` tells too, to the one that resembles it most: what is
            fast there is taken to be fast here, as far as it serves.
    """
    rows = {p: row for p, row in sorted(costs.items()) if row}
    kept = choose_variants(rows, limit=limit, times=times, sizes=sizes, byte_budget=byte_budget, weights=weights)
    if not kept:
        return Selection(kept=(), nodes=(), regret={}, held_out={})
    likely = _Likely(alike or {}, facts, serves)
    nodes = learn(likely.beside(rows), facts, kept)
    measured = {c for row in rows.values() for c in row}
    beside = {c: p for c, p in (plainer or {}).items() if p in measured}
    return Selection(
        kept=_with(beside, kept),
        nodes=tuple(msgspec.structs.replace(n, ranked=_with(beside, n.ranked)) for n in nodes),
        regret={p: _regret(nodes, row, facts[p], serves) for p, row in rows.items()},
        held_out=_held_out(rows, facts, kept, serves, likely),
    )


@dataclass(frozen=True)
class _Likely:
    """What to expect of problems that were not measured; see `select`."""

    alike: Mapping[str, str]
    facts: Mapping[str, Facts]
    serves: Callable[[str, Facts], bool]

    def beside(self, rows: Costs) -> Costs:
        """The rows, and those of problems that are like one of them."""
        found = dict(rows)
        for problem, measured in self.alike.items():
            facts = self.facts[problem]
            row = {c: t for c, t in rows.get(measured, {}).items() if self.serves(c, facts)}
            if row and problem not in rows:
                found[problem] = row
        return found


def _with(beside: Mapping[str, str], ranked: Sequence[str]) -> tuple[str, ...]:
    """The candidates, and behind them those that stand beside them, each once."""
    return tuple(dict.fromkeys([*ranked, *(beside[c] for c in ranked if c in beside)]))


def _regret(nodes: list[Node], row: Mapping[str, float], facts: Facts, serves: Callable[[str, Facts], bool]) -> float:
    """Time of what dispatch picks over the best time, less 1; what was not timed counts as the slowest that was."""
    for candidate in rank(nodes, facts):
        if serves(candidate, facts):
            return row.get(candidate, max(row.values())) / min(row.values()) - 1
    return max(row.values()) / min(row.values()) - 1


def _held_out(
    rows: Costs,
    facts: Mapping[str, Facts],
    kept: list[str],
    serves: Callable[[str, Facts], bool],
    likely: _Likely,
) -> dict[str, float]:
    """Regret of each problem under a tree that was learned without it, and without the rest of its fold.

    Problems on which the tree picks what was never timed there are left out: nothing is known of them.
    """
    found: dict[str, float] = {}
    names = list(rows)
    for fold in range(min(_FOLDS, len(names))):
        left_out = names[fold::_FOLDS]
        rest = {p: r for p, r in rows.items() if p not in left_out}
        if not any(c in r for r in rest.values() for c in kept):
            continue
        nodes = learn(likely.beside(rest), facts, kept)
        for p in left_out:
            picked = next((c for c in rank(nodes, facts[p]) if serves(c, facts[p])), None)
            if picked is None or picked in rows[p]:
                found[p] = _regret(nodes, rows[p], facts[p], serves)
    return {p: found[p] for p in names if p in found}
