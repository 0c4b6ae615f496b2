"""Which conditions hold on which problems. They are asked for every candidate, so each is evaluated once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from aot_tune.spec import Expr, Facts, Operator, Problem

__all__ = ["Conditions"]


class Conditions:
    """Conditions on calls of an operator, such as what candidates require; many candidates share most of theirs."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._facts: dict[str, Facts] = {}
        self._of: dict[Hashable, _Same] = {}
        self._same: dict[tuple[str, ...], _Same] = {}
        self._held: dict[tuple[str, str], bool] = {}

    def facts(self, problem: Problem) -> Facts:
        """The facts of a problem."""
        if problem.id not in self._facts:
            self._facts[problem.id] = self._operator.facts(problem)
        return self._facts[problem.id]

    def known(self, owner: Hashable, problem: Problem) -> bool | None:
        """What `hold` said of an owner's conditions on a problem; None if it was not asked."""
        same = self._of.get(owner)
        return None if same is None else same.answers.get(problem.id)

    def hold(self, owner: Hashable, conditions: Iterable[Expr], problem: Problem) -> bool:
        """Whether all conditions hold on a problem; `owner` always has the same ones."""
        same = self._of.get(owner)
        if same is None:
            keyed = tuple((c.key(), c) for c in conditions)
            same = self._of[owner] = self._same.setdefault(tuple(key for key, _ in keyed), _Same(keyed))
        answer = same.answers.get(problem.id)
        if answer is None:
            answer = all(self._holds(key, condition, problem) for key, condition in same.conditions)
            same.answers[problem.id] = answer
        return answer

    def _holds(self, key: str, condition: Expr, problem: Problem) -> bool:
        known = self._held.get((key, problem.id))
        if known is None:
            known = self._held[key, problem.id] = bool(condition.evaluate(self.facts(problem)))
        return known


@dataclass(frozen=True)
class _Same:
    """Conditions that owners have in common, by their texts; and whether all hold, by problem id."""

    conditions: tuple[tuple[str, Expr], ...]
    answers: dict[str, bool] = field(default_factory=dict)
