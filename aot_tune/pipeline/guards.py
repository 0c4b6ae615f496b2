"""Which conditions hold on which problems: asked for every candidate again and again, so each is evaluated once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from aot_tune.spec import Expr, Facts, Operator, Problem

__all__ = ["Conditions"]


class Conditions:
    """Conditions on calls of an operator, such as what candidates require; many candidates share most of theirs."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._facts: dict[str, Facts] = {}
        self._keys: dict[Hashable, tuple[tuple[str, Expr], ...]] = {}
        self._held: dict[tuple[str, str], bool] = {}
        self._answers: dict[tuple[Hashable, str], bool] = {}

    def facts(self, problem: Problem) -> Facts:
        """The facts of a problem."""
        if problem.id not in self._facts:
            self._facts[problem.id] = self._operator.facts(problem)
        return self._facts[problem.id]

    def known(self, owner: Hashable, problem: Problem) -> bool | None:
        """What `hold` said of an owner's conditions on a problem; None where it was not asked."""
        return self._answers.get((owner, problem.id))

    def hold(self, owner: Hashable, conditions: Iterable[Expr], problem: Problem) -> bool:
        """Whether all conditions hold on a problem; `owner` always has the same ones."""
        keyed = self._keys.get(owner)
        if keyed is None:
            keyed = self._keys[owner] = tuple((c.key(), c) for c in conditions)
        answer = all(self._holds(key, condition, problem) for key, condition in keyed)
        self._answers[owner, problem.id] = answer
        return answer

    def _holds(self, key: str, condition: Expr, problem: Problem) -> bool:
        known = self._held.get((key, problem.id))
        if known is None:
            known = self._held[key, problem.id] = bool(condition.evaluate(self.facts(problem)))
        return known
